"""A run's settings, from keywords or from the ``config.yaml`` of its folder.

A run is a training by `gloader.training.train.fit`; it may have a folder for its files. `train_settings` makes settings
from keywords, for the Python interface and the command line. `read_train_settings` reads them from a run's folder.
The other functions find out whether a folder holds a run.

Settings are grouped in sections: "model", "optim", "step", "links", "embeddings", "loader", and "run" for the rest.
Keywords and flags name a setting without its section.
"""

from __future__ import annotations

import errno
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gloader.config import (
    RECORDED_AS,
    EmbedConfig,
    LinkConfig,
    LoaderSettings,
    ModelConfig,
    OptimConfig,
    StepConfig,
    TrainSettings,
    loader_defaults,
)
from gloader.core.flag_values import parse_embed, parse_share
from gloader.core.malformed import MALFORMED, read_yaml_mapping
from gloader.core.near_names import near_advice
from gloader.errors import ConfigError, StoreExistsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType


# The sections with a dataclass whose fields are the settings. The sections "loader" and "run" are handled apart.
_SECTIONS = {"model": ModelConfig, "optim": OptimConfig, "step": StepConfig, "links": LinkConfig}
# The settings of embeddings have names of their own: those of the optimisation are also "optimizer" and "lr".
_EMBED_NAMES = {"embed": "dims"} | {f"embed_{name}": name for name in ("optimizer", "lr", "cache")}
_RUN_SETTINGS = ("task", "table", "runs")  # the section "run": entries at the top level of ``config.yaml``


def train_settings(keywords: Mapping[str, Any]) -> TrainSettings:
    """Return a run's settings from keywords without sections. Pure.

    A keyword is a flag name of `gloader train` with underscores, such as ``batch_size`` and ``checkpoint_every``. The
    loader's keywords are those of `Loader`, such as ``fanouts``, ``sharing`` and ``stall_timeout_s``.

    Parameters
    ----------
    keywords : values by name; missing keywords have their defaults

    Raises
    ------
    TypeError
        A keyword does not exist.
    ConfigError
        A size cannot be read.
    """
    homes = setting_homes()
    parts: dict[str, dict[str, Any]] = {
        section: {} for section in (*_SECTIONS, "embeddings", "loader", "run")
    }
    for name, value in keywords.items():
        if name not in homes:
            raise TypeError(f"a run has no setting {name!r}; {near_advice(name, homes)}")
        section, field = homes[name]
        parts[section][field] = value
    return TrainSettings(
        model=ModelConfig(**parts["model"]),
        optim=OptimConfig(**parts["optim"]),
        step=StepConfig(**parts["step"]),
        links=LinkConfig(**parts["links"]),
        embed=_embeddings(parts["embeddings"]),
        loader=LoaderSettings.of(**parts["loader"]),
        **parts["run"],
    )


def setting_homes() -> dict[str, tuple[str, str]]:
    """Return each keyword's section, and the setting's name in the section."""
    # ``config.yaml`` records only the loader settings that have a flag. The others, such as epochs and rank, are for a
    # loader in another program's training loop.
    recorded = LoaderSettings().recorded()
    homes = {name: ("loader", name) for name in loader_defaults() if RECORDED_AS.get(name, name) in recorded}
    for section, kind in _SECTIONS.items():
        homes |= {field.name: (section, field.name) for field in fields(kind)}
    homes["model"] = homes.pop("name")  # the keyword ``model`` is the field `ModelConfig.name`
    homes |= {name: ("embeddings", field) for name, field in _EMBED_NAMES.items()}
    return homes | {name: ("run", name) for name in _RUN_SETTINGS}


CONFIG = "config.yaml"
# Sections of every written config.yaml.
_EVERY_RUN_HAS = frozenset({"dataset", "model", "optim", "loader"})
# Maximum bytes that are parsed to recognise a run's file. A run writes about 1,500 bytes. The bound is for foreign
# files, because nested brackets make the YAML reader slow.
_MAX_CONFIG_BYTES = 1 << 14
# Each name in config.yaml that differs from the loader's keyword, with this keyword.
_KEYWORDS = {recorded: name for name, recorded in RECORDED_AS.items()}


def read_train_settings(run: Path) -> TrainSettings:
    """Return the settings of the run in the folder ``run``, as an argument of `gloader.training.train.fit`.

    Raises
    ------
    ConfigError
        There is no ``config.yaml``, or the file is not from a run.
    """
    path = run / CONFIG
    content: Mapping[str, Any] = read_yaml_mapping(
        path, what="the settings of a run", holds="what gloader train wrote", error=ConfigError
    )
    try:
        loader: Any = {_KEYWORDS.get(name, name): value for name, value in content["loader"].items()}
        return TrainSettings(
            model=ModelConfig(**content["model"]),
            optim=OptimConfig(**content["optim"]),
            # An earlier version recorded fewer settings of a step.
            step=StepConfig(
                **{part.name: content[part.name] for part in fields(StepConfig) if part.name in content}
            ),
            loader=LoaderSettings.of(**loader),
            task=content.get("task", "node"),
            table=content.get("table"),
            links=_links({"metric": content.get("metric", "auto"), **content.get("links", {})}),
            embed=_embeddings(content.get("embeddings", {})),
            runs=content["runs"],
        )
    except MALFORMED as error:
        raise ConfigError(f"{path} is not what gloader train wrote: {error!r}") from error


def holds_run(root: Path) -> bool:
    """Return whether the folder ``root`` holds a run, in any state: settings or a checkpoint."""
    # Imported here because it imports numba, which training needs but --help does not.
    from gloader.training.checkpoint.files import newest_checkpoint

    return recorded_settings(root) is not None or newest_checkpoint(root) is not None


def require_no_run(root: Path) -> None:
    """Raise StoreExistsError if the folder ``root`` holds a run."""
    if holds_run(root):
        raise StoreExistsError(
            errno.EEXIST,
            "holds a run already; resume=True goes on with it, overwrite=True replaces it",
            str(root),
        )


def is_begun(root: Path) -> bool:
    """Return whether a run has begun in the folder ``root``, so that it can be resumed."""
    return recorded_settings(root) is not None


def recorded_settings(root: Path) -> dict[str, Any] | None:
    """Return the settings of the run in ``root``, or None without a ``config.yaml`` from a run."""
    yaml = yaml_reader()
    try:
        with (root / CONFIG).open("rb") as file:
            content = yaml.safe_load(file.read(_MAX_CONFIG_BYTES))
    except (OSError, yaml.YAMLError, *MALFORMED):
        return None
    return content if isinstance(content, dict) and content.keys() >= _EVERY_RUN_HAS else None


def yaml_reader() -> ModuleType:
    """Return the module PyYAML, which only training with a folder needs; ConfigError if it is not installed."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a run's folder has its settings as YAML, and {error}: pip install pyyaml"
        ) from error
    return yaml


def _embeddings(values: Mapping[str, Any]) -> EmbedConfig:
    """Return the settings of embeddings from keywords: widths and sizes may be text or numbers."""
    read = dict(values)
    if isinstance(dims := read.get("dims"), str | int):
        read["dims"] = parse_embed([str(dims)])
    if isinstance(cache := read.get("cache"), str):
        read["cache"] = parse_share(cache)
    return EmbedConfig(**read)


def _links(values: Mapping[str, Any]) -> LinkConfig:
    """Return the link settings from their entries in config.yaml, where the tuple ``eval_edges`` is a list."""
    edges = values.get("eval_edges")
    return LinkConfig(**{**values, "eval_edges": None if edges is None else tuple(edges)})
