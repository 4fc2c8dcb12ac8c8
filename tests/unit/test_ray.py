"""`gloader.ray.train` as far as it goes without Ray: what it refuses before a cluster is touched, what it needs."""

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gloader
import gloader.ray
from gloader.config import LoaderSettings, ModelConfig, ObjectSettings, TrainSettings
from gloader.errors import ConfigError, MissingDependencyError
from gloader.ray import WorkerRun, _open, figures_of
from gloader.training import compile_processes, first_run
from gloader.training.checkpoint.save import Checkpoint
from gloader.training.model_spec import ModelSpec

QUICK: dict[str, Any] = {"dataset": "builtin:digits", "num_workers": 2}


def test_gloader_knows_its_launcher_and_imports_no_ray() -> None:
    code = (
        "import sys, gloader; gloader.ray.train; assert 'ray' not in sys.modules; print(gloader.ray.__name__)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "gloader.ray\n"


def test_the_launcher_does_not_stand_before_ray_itself() -> None:
    """A module called ray in a package would be found for `import ray` by those beside it, were it on the path."""
    assert not any((Path(folder) / "ray.py").is_file() for folder in sys.path if folder)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_workers": 0}, "num_workers is 0; allowed: 1 or more"),
        ({"num_workers": (1, 4)}, r"num_workers is \(1, 4\); allowed: 1 or more"),
        ({"num_workers": True}, "num_workers is True"),
        ({"max_failures": -2}, r"max_failures is -2; allowed: -1 \(start again always\), 0 or more"),
        (
            {"placement_strategy": "spread"},
            "placement_strategy='spread' is not one of 'SPREAD', 'STRICT_SPREAD'",
        ),
        ({"epochs": 0}, "epochs is 0; allowed: 1 or more"),
        ({"policy": "mru"}, "policy.*'mru'"),
        ({"memory_budget": "8 potatoes"}, "memory_budget"),
        ({"num_workers": 1, "grad_compress": "bf16"}, "one rank sends no gradients"),
        ({"object_requests": 0}, "object_requests is 0"),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused_before_a_cluster_is_looked_for(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        gloader.ray.train(**QUICK | settings)


def test_a_setting_that_is_unknown_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        TypeError, match=r"train\(\) got an unexpected keyword argument 'fanout'; did you mean 'fanouts'"
    ):
        gloader.ray.train(**QUICK, fanout=(5, 5))


def test_without_ray_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError) as caught:
        gloader.ray.train(**QUICK)
    assert "gloader.ray needs Ray Train" in str(caught.value)
    assert "pip install -e '.[ray]' -c constraints.txt" in str(caught.value)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        ("builtin:digits", "builtin:digits"),
        ("s3://bucket/papers", "s3://bucket/papers"),
        ("data/papers", "{here}/data/papers"),
        (Path("data/papers"), "{here}/data/papers"),
        ("npy:arrays", "npy:{here}/arrays"),
        ("npy:not-here", "npy:not-here"),
        ("/data/papers", "/data/papers"),
    ],
)
def test_workers_are_told_whole_paths(
    dataset: str | Path, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gives every worker a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arrays").mkdir()
    assert gloader.ray._for_workers(dataset) == told.format(here=tmp_path)


def test_folders_for_spills_are_told_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = gloader.ray.train_settings({"spill_dir": "spills"})
    assert gloader.ray._checked(settings, num_workers=1).loader.memory.spill_dir == tmp_path / "spills"


EPOCH = {
    "epoch": 3,
    "loss": 0.5,
    "train_acc": 0.75,
    "valid_acc": 0.5,
    "lr": 0.1,
    "bottleneck": "computing",
    "stats": {"batches": 4},
    "metric": "mrr",
}
CHECKPOINT = Checkpoint(
    run_id="",
    settings={},
    spec=ModelSpec(config=ModelConfig(), in_dim=1, out_dim=1, num_layers=1, add_self_loops=False),
    fingerprint="",
    weights={},
    progress={"progress": {"epochs": [EPOCH], "partial": None}, "loader": {"next": (4, 0)}},
)


def test_ray_is_told_the_figures_of_an_epoch_as_the_run_folder_has_them() -> None:
    told = {name: EPOCH[name] for name in ("epoch", "loss", "train_acc", "lr", "bottleneck")}
    assert figures_of(CHECKPOINT) == told | {"valid_mrr": 0.5}


def test_in_the_middle_of_an_epoch_ray_is_told_where() -> None:
    progress = {"progress": {"epochs": [EPOCH], "partial": [{}]}, "loader": {"next": (4, 20)}}
    assert figures_of(replace(CHECKPOINT, progress=progress)) == {"epoch": 4, "batch": 20}


def test_a_worker_compiles_the_kernels_in_a_process_that_gives_the_memory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it loads anything, as a rank of torchrun does."""
    started: list[list[str]] = []

    def start(command: list[str], **_: Any) -> SimpleNamespace:
        started.append(command)
        return SimpleNamespace(args=command, returncode=0, poll=lambda: 0, pid=1)

    ids = np.arange(4)
    gloader.Dataset.from_numpy(
        tmp_path / "d", features=np.ones((4, 2), np.float32), labels=ids % 2, edge_index=np.stack([ids, ids])
    )
    monkeypatch.setattr(first_run, "_is_compiled", lambda name: False)
    monkeypatch.setattr(first_run, "run_all", compile_processes.run_all)  # the session starts none elsewhere
    monkeypatch.setattr(subprocess, "Popen", start)
    told = WorkerRun(
        dataset=str(tmp_path / "d"),
        settings=TrainSettings(loader=LoaderSettings.of(fanouts=[2], spill_dir=tmp_path)),
        objects=ObjectSettings(),
        device="cpu",
    )
    with closing(_open(told)) as dataset:
        assert dataset.num_nodes == 4
    assert started
    assert all(command[:3] == [sys.executable, "-m", "gloader.training.first_run"] for command in started)
