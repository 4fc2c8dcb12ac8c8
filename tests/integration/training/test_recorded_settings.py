"""The settings of a run, read back from its folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from gloader.config import (
    LinkConfig,
    LoaderSettings,
    ModelConfig,
    OptimConfig,
    StepConfig,
    TrainSettings,
)
from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.training.run_folder import RunFolder
from gloader.training.run_settings import read_train_settings
from gloader.training.train import RunFiles, fit


def test_a_run_is_read_back_as_it_was_started(communities: Dataset, tmp_path: Path) -> None:
    settings = TrainSettings(
        model=ModelConfig(name="gat", hidden=8, heads=2, batch_norm=True),
        optim=OptimConfig(epochs=1, lr=0.02, optimizer="adamw", weight_decay=0.1),
        step=StepConfig(autocast="bf16"),
        loader=LoaderSettings.of(
            fanouts=(4, 3),
            batch_size=48,
            seed=5,
            threads=1,
            memory_budget="400MB",
            features="ssd",
            cache="2KB",
            spill_dir=tmp_path / "spill",
            max_gap=0,
            stall_timeout_s=100.0,
        ),
        runs=2,
    )
    fit(communities, settings, device="cpu", files=RunFiles(out=tmp_path / "run"))
    assert read_train_settings(tmp_path / "run") == settings


def test_fanouts_by_relation_and_links_are_read_back(tmp_path: Path) -> None:
    settings = TrainSettings(
        loader=LoaderSettings.of(fanouts={"paper:cites:paper": (2, 1), "*": (3, 3)}, batch_size=7),
        task="link",
        links=LinkConfig(edges="train", negatives="uniform:5", eval_edges=("valid", "test")),
    )
    content: dict[str, Any] = {
        "run": {"id": "a"},
        "dataset": {"path": "nowhere", "name": "x", "fingerprint": "y"},
        "model": asdict(settings.model),
        "optim": asdict(settings.optim),
        **asdict(settings.step),
        "loader": settings.loader.recorded(),
        "task": "link",
        "links": asdict(settings.links),
        "runs": 1,
    }
    RunFolder(tmp_path).write_config(content)
    assert read_train_settings(tmp_path) == settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "is not what gloader train wrote: TypeError"),
        ({"loader": {"batch_size": 7, "fanout": [1]}}, "is not what gloader train wrote: TypeError"),
        ({"loader": {"fanouts": [1], "cache_bytes": "big"}}, "is not what gloader train wrote: ConfigError"),
    ],
)
def test_a_config_of_another_kind_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    defaults = TrainSettings(loader=LoaderSettings.of(fanouts=(1,), batch_size=7))
    content = {
        "model": asdict(defaults.model),
        "optim": asdict(defaults.optim),
        **asdict(defaults.step),
        "loader": defaults.loader.recorded(),
        "runs": 1,
    }
    RunFolder(tmp_path).write_config(content)
    assert read_train_settings(tmp_path) == defaults
    RunFolder(tmp_path).write_config(content | change)
    with pytest.raises(ConfigError, match=message):
        read_train_settings(tmp_path)


def test_a_folder_without_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the settings of a run .*config\.yaml cannot be read"):
        read_train_settings(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"epochs": 3}))
    with pytest.raises(ConfigError, match="is not what gloader train wrote: KeyError"):
        read_train_settings(tmp_path)
