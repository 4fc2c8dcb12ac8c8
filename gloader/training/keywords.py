"""The settings of a run by their names alone: what `gloader train` has flags for, as keywords."""

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
    loader_defaults,
)
from gloader.core.near_names import near_advice

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECTIONS = {"model": ModelConfig, "optim": OptimConfig, "step": StepConfig, "links": LinkConfig}
_OF_THE_RUN = ("task", "runs")


def train_settings(keywords: Mapping[str, Any]) -> TrainSettings:
    """Return the settings of a run whose parts are named without their sections. Pure.

    A keyword is what the flag of `gloader train` is called, with underscores (``batch_size``, ``checkpoint_every``);
    those of the loader are called as `Loader` calls them (``fanouts``, ``sharing``, ``stall_timeout_s``).

    Parameters
    ----------
    keywords : values by name; what is not there has its default

    Raises
    ------
    TypeError
        There is no such keyword.
    ConfigError
        A size cannot be read.
    """
    homes = setting_homes()
    parts: dict[str, dict[str, Any]] = {section: {} for section in (*_SECTIONS, "loader", "run")}
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
        loader=LoaderSettings.of(**parts["loader"]),
        **parts["run"],
    )


def setting_homes() -> dict[str, tuple[str, str]]:
    """Return, for each keyword, the section that it belongs to and what it is called there."""
    # Settings that are no flags belong to a loader that somebody else drives: its epochs, its rank.
    recorded = LoaderSettings().recorded()
    homes = {name: ("loader", name) for name in loader_defaults() if RECORDED_AS.get(name, name) in recorded}
    for section, kind in _SECTIONS.items():
        homes |= {field.name: (section, field.name) for field in fields(kind)}
    homes["model"] = homes.pop("name")
    return homes | {name: ("run", name) for name in _OF_THE_RUN}
