"""The settings of a run, read back from the ``config.yaml`` of its folder."""

from __future__ import annotations

import errno
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gloader.config import (
    RECORDED_AS,
    LinkConfig,
    LoaderSettings,
    ModelConfig,
    OptimConfig,
    StepConfig,
    TrainSettings,
)
from gloader.core.malformed import MALFORMED
from gloader.core.yaml_file import read_yaml_mapping
from gloader.errors import ConfigError, StoreExistsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

CONFIG = "config.yaml"
_SECTIONS = frozenset({"dataset", "model", "optim", "loader"})  # of every config.yaml that a run wrote
_MAX_CONFIG_BYTES = 1 << 14  # a run writes about 1,500; the YAML reader looks at every bracket that is open
_KEYWORDS = {recorded: name for name, recorded in RECORDED_AS.items()}


def read_train_settings(run: Path) -> TrainSettings:
    """Return what `gloader.training.train.fit` was given for the run in a folder.

    Raises
    ------
    ConfigError
        There is no ``config.yaml``, or it is not what a run writes.
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
            step=StepConfig(**{part.name: content[part.name] for part in fields(StepConfig)}),
            loader=LoaderSettings.of(**loader),
            task=content.get("task", "node"),
            links=_links(content.get("links", {})),
            runs=content["runs"],
        )
    except MALFORMED as error:
        raise ConfigError(f"{path} is not what gloader train wrote: {error!r}") from error


def holds_run(root: Path) -> bool:
    """Return whether the folder ``root`` holds a run, whatever became of that."""
    # numba comes with it, which loads when something is trained, not for --help.
    from gloader.training.checkpoint.find import newest_checkpoint

    return recorded_settings(root) is not None or newest_checkpoint(root) is not None


def require_no_run(root: Path) -> None:
    """Raise StoreExistsError where the folder ``root`` holds a run."""
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
    """Return the settings of the run in ``root``; None where there is no such file, or no run wrote it."""
    yaml = yaml_reader()
    try:
        with (root / CONFIG).open("rb") as file:
            content = yaml.safe_load(file.read(_MAX_CONFIG_BYTES))
    except (OSError, yaml.YAMLError, *MALFORMED):
        return None
    return content if isinstance(content, dict) and content.keys() >= _SECTIONS else None


def yaml_reader() -> ModuleType:
    """Return PyYAML, which training without a folder does without."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a run's folder has its settings as YAML, and {error}: pip install pyyaml"
        ) from error
    return yaml


def _links(values: Mapping[str, Any]) -> LinkConfig:
    edges = values.get("eval_edges")
    return LinkConfig(**{**values, "eval_edges": None if edges is None else tuple(edges)})
