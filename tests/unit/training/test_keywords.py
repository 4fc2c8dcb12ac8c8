"""The settings of a run by their names alone."""

from dataclasses import asdict

import pytest

from gloader.config import LinkConfig, LoaderSettings, ModelConfig, OptimConfig, StepConfig, TrainSettings
from gloader.errors import ConfigError
from gloader.training.run_settings import train_settings


def test_no_keywords_are_the_defaults() -> None:
    assert train_settings({}) == TrainSettings()


def test_each_keyword_goes_where_the_flag_of_its_name_does() -> None:
    found = train_settings(
        {
            "model": "gat",
            "heads": 2,
            "epochs": 7,
            "lr": 0.1,
            "autocast": "bf16",
            "fanouts": (4, 3),
            "batch_size": 16,
            "memory_budget": "8GB",
            "cache": "10%",
            "sharing": "private",
            "stall_timeout_s": 30.0,
            "task": "link",
            "negatives": "uniform:2",
            "runs": 3,
        }
    )
    assert found == TrainSettings(
        model=ModelConfig(name="gat", heads=2),
        optim=OptimConfig(epochs=7, lr=0.1),
        step=StepConfig(autocast="bf16"),
        loader=LoaderSettings.of(
            fanouts=(4, 3),
            batch_size=16,
            memory_budget=8_000_000_000,
            cache=0.1,
            sharing="private",
            stall_timeout_s=30.0,
        ),
        task="link",
        links=LinkConfig(negatives="uniform:2"),
        runs=3,
    )


def test_every_setting_that_a_run_records_is_a_keyword() -> None:
    """So that whatever becomes a flag of `gloader train` can be given to Ray as well."""
    for section in (ModelConfig(), OptimConfig(), StepConfig(), LinkConfig()):
        for name, value in asdict(section).items():
            keyword = "model" if (type(section), name) == (ModelConfig, "name") else name
            assert train_settings({keyword: value}) == TrainSettings()
    flags = {
        "memory_budget_bytes": "memory_budget",
        "cache_bytes": "cache",
        "spill_budget_bytes": "spill_budget",
    }
    others = {"max_gap_bytes": "max_gap", "loader": "sharing"}
    for recorded, value in LoaderSettings().recorded().items():
        keyword = (flags | others).get(recorded, recorded)
        assert train_settings({keyword: value}).loader == LoaderSettings()


@pytest.mark.parametrize("name", ["rank", "world_size", "trace", "device", "shuffle", "name"])
def test_what_is_no_flag_is_no_keyword(name: str) -> None:
    with pytest.raises(TypeError, match=f"a run has no setting '{name}'"):
        train_settings({name: 1})


def test_a_size_that_cannot_be_read_names_its_keyword() -> None:
    with pytest.raises(ConfigError, match="spill_budget"):
        train_settings({"spill_budget": "much"})
