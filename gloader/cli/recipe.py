"""Recipes: runs as YAML files, whose keys are the flags of `gloader train`.

`gloader train --config FILE` reads a recipe: `apply_recipe` calls `load_recipe`, which checks the keys. A run folder's
``config.yaml`` is a recipe, too, with the keys in sections. `recipe_of` writes a recipe for given settings.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cyclopts import App, ArgumentCollection
from cyclopts.config import Dict

from gloader.config import RECORDED_AS, TrainSettings
from gloader.core.malformed import read_yaml_mapping, shown
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.dataset import Dataset


# Names from other tools or earlier recipes, with the flag that each means. The error for an unknown key proposes it,
# because these names are too different from the flags to be found by similarity.
_SYNONYMS = {
    "learning-rate": "lr",
    "num-epochs": "epochs",
    "fanouts": "fanout",
    "fan-out": "fanout",
    "num-neighbors": "fanout",
    "num-layers": "fanout",
    "batchsize": "batch-size",
    "hidden-dim": "hidden",
    "hidden-channels": "hidden",
    "num-hidden": "hidden",
    "num-heads": "heads",
    "wd": "weight-decay",
    "host-cache": "cache",
    "cache-bytes": "cache",
    "memory-budget-bytes": "memory-budget",
    "num-workers": "threads",
    "num-threads": "threads",
    "output": "out",
    "data": "dataset",
    "name": "model",
}

# The sections of a run folder's config.yaml. Each section maps its keys to the flags' names, where these differ. None
# marks a key that is no setting. `gloader train --config RUN/config.yaml` repeats a run.
_SECTIONS: dict[str, dict[str, str | None]] = {
    "run": {"id": None},
    "dataset": {"path": "dataset", "name": None, "fingerprint": None},
    "model": {"name": "model"},
    "optim": {},
    "loader": {
        **{recorded: name for name, recorded in RECORDED_AS.items() if name != "sharing"},
        "fanouts": "fanout",
        "stall_timeout_s": "stall-timeout",
    },
    "links": {},
    "knowledge": {},
    "embeddings": {
        "dims": "embed",
        "optimizer": "embed-optimizer",
        "lr": "embed-lr",
        "cache": "embed-cache",
    },
    "objects": {},
}


_MAX_ITEMS = 64  # maximum number of items in a recipe's list, such as fan-outs


def nearest_key(key: str, known: Collection[str]) -> str | None:
    """Return the setting in ``known`` that ``key`` most likely means, or None if none is similar. Pure."""
    wanted = key.replace("_", "-").lower()
    if _SYNONYMS.get(wanted) in known:
        return _SYNONYMS[wanted]
    matches = get_close_matches(wanted, known, n=1, cutoff=0.5)
    return matches[0] if matches else None


def load_recipe(path: Path, known: Collection[str]) -> dict[str, str]:
    """Return a recipe's settings: each flag's hyphenated name, and its value as text of the command line.

    Parameters
    ----------
    path : a YAML file with one mapping, keys hyphenated or underscored, or a run folder's config.yaml
    known : hyphenated names of the flags

    Raises
    ------
    ConfigError
        The file is missing, is no YAML mapping, or has a key or value that no flag accepts.
    """
    settings: dict[str, str] = {}
    content = read_yaml_mapping(
        path, what="recipe", holds="settings; write lines such as 'epochs: 10'", error=ConfigError
    )
    for raw_key, value in flatten(content):
        key = raw_key.replace("_", "-")
        if key not in known:
            raise ConfigError(f"recipe {path}: unknown key {shown(raw_key)}; {_advice(raw_key, known)}")
        if key in settings:
            raise ConfigError(f"recipe {path}: key {raw_key!r} is given twice; keep one spelling of it")
        if value is not None:  # an empty value leaves the default
            where = f"recipe {path}: key {raw_key!r}"
            if key in _BY_NAME and isinstance(value, Mapping):
                settings[key] = _by_name(value, where, between=_BY_NAME[key])
            else:
                settings[key] = _flag_text(value, where)
    return settings


def flatten(content: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield pairs of a flag name and a value from a recipe, or from a run folder's ``config.yaml``. Pure.

    The settings in the sections of ``config.yaml`` get the names of their flags. Names may still have underscores.
    """
    for key, value in content.items():
        if not isinstance(value, Mapping) or key not in _SECTIONS:
            yield key, value
            continue
        for inner, setting in value.items():
            name = _SECTIONS[key].get(inner, str(inner))
            if name is not None:
                yield name, setting


def _advice(key: str, known: Collection[str]) -> str:
    """Return advice on an unknown key: the nearest known one, or the list of all."""
    nearest = nearest_key(key, known)
    return f"did you mean {nearest!r}?" if nearest else f"keys are: {', '.join(sorted(known))}"


def _flag_text(value: object, where: str) -> str:
    """Return a recipe's value as a flag's text. ``where`` names the recipe and the key, for errors."""
    if isinstance(value, bool):
        return "true" if value else "false"
    items = value if isinstance(value, list) else [value]
    if len(items) <= _MAX_ITEMS and all(isinstance(item, int | float | str) for item in items):
        # Python refuses to print a number with thousands of digits.
        with suppress(ValueError):
            return ",".join(str(item) for item in items)
    raise ConfigError(
        f"{where} holds a {type(value).__name__}; write a number, a text, true/false or a short list"
    )


# The flags whose values may be a mapping, with the character between its entries in the flag's form.
_BY_NAME: Final = {"fanout": ";", "embed": ","}


def _by_name(value: Mapping[object, object], where: str, *, between: str) -> str:
    """Return a mapping in the flag's form: ``author:writes:paper=25,20;*=10,5``, or ``author=64,field=32``."""
    return between.join(
        f"{_flag_text(name, where)}={_flag_text(each, where)}" for name, each in value.items()
    )


# These flags belong to one call, not to a recorded run.
_NOT_IN_A_RECIPE = frozenset({"config", "json", "debug", "resume", "explain", "trace"})


def apply_recipe(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill the flags missing on the command line from the recipe in ``--config``.

    cyclopts calls this function between parsing the command line and running the command, and sets its signature.

    Parameters
    ----------
    app, commands : the command line's app, and the names of the command
    arguments : the command's arguments; those with tokens were given on the command line, the others are filled
    """
    given = next(
        (argument for argument in arguments if "--config" in argument.names and argument.tokens), None
    )
    if given is None:
        return
    path = Path(given.tokens[-1].value)
    flags = {name[2:] for argument in arguments for name in argument.names if name.startswith("--")}
    known = {flag for flag in flags - _NOT_IN_A_RECIPE if not flag.startswith("no-")}
    recipe = Dict(data=dict(load_recipe(path, known)), use_commands_as_keys=False, source=f"recipe {path}")
    recipe(app, commands, arguments)


def recipe_of(settings: TrainSettings, dataset: "Dataset", *, spec: str, remarks: Sequence[str]) -> str:
    """Return a run's recipe, without default settings.

    Parameters
    ----------
    settings : the run's settings
    dataset : the training data
    spec : the dataset's path, URL or source
    remarks : comment lines at the recipe's start, for the user
    """
    import yaml

    defaults = _flags_of(TrainSettings(), dataset)
    flags = _flags_of(settings, dataset)
    values = {name: value for name, value in flags.items() if value != defaults.get(name)}
    head = "".join(f"# {line}\n" for remark in remarks for line in remark.splitlines())
    return head + yaml.safe_dump({"dataset": spec, **values}, sort_keys=False, allow_unicode=True)


def _flags_of(settings: TrainSettings, dataset: "Dataset") -> dict[str, Any]:
    """Return all flags of a run, hyphenated, with their values."""
    # This imports torch, so the command does it as late as possible.
    from gloader.training.train import run_config

    return {
        name.replace("_", "-"): list(value) if isinstance(value, tuple) else value
        for name, value in flatten(run_config(settings, dataset))
        if name != "dataset"
    }
