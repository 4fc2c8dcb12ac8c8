"""The settings of a run, read back from the ``config.yaml`` of its folder."""

from __future__ import annotations

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
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONFIG = "config.yaml"
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


def _links(values: Mapping[str, Any]) -> LinkConfig:
    edges = values.get("eval_edges")
    return LinkConfig(**{**values, "eval_edges": None if edges is None else tuple(edges)})
