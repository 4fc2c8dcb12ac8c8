"""Loaders that say nothing about ranks, where a framework starts two of them: real processes."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gloader.errors import ConfigError, NotPicklableError
from gloader.loader import Loader

_SCRIPT = Path(__file__).parents[2] / "framework_ranks.py"
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(dataset, folder, framework, *launcher):
    """Return what each of the ranks trained on, and every refusal."""
    done = subprocess.run(
        [sys.executable, *launcher, _SCRIPT, framework, dataset.root, folder],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in (0, 1)]
    return seen, [json.loads(path.read_text()) for path in sorted(folder.glob("refused*.json"))]


def require_parts(dataset, seen):
    assert [len(part) for part in seen] == [50, 50]
    assert sorted(seen[0] + seen[1]) == sorted(dataset.train.tolist())


@pytest.mark.reliability("S8")
def test_lightning_ddp_trains_each_rank_on_its_part_or_refuses(dataset, tmp_path):
    seen, refused = run(dataset, tmp_path, "ddp")
    require_parts(dataset, seen)
    assert [text.split(":")[0] for text in refused] == [
        "rank 0 of 2 would take all seeds, and so would every other rank",
        "rank 1 of 2 would take all seeds, and so would every other rank",
    ]
    assert (
        "Build it afterwards (with Lightning in train_dataloader()), or give rank=0, world_size=1"
        in refused[0]
    )


@pytest.mark.long
@pytest.mark.reliability("S8")
def test_lightning_ddp_spawn_does_so_too(dataset, tmp_path):
    seen, (refused,) = run(dataset, tmp_path, "ddp_spawn")
    require_parts(dataset, seen)
    assert "neither copied nor sent to another process: build it there" in refused


@pytest.mark.long
@pytest.mark.skipif(find_spec("accelerate") is None, reason="Accelerate is not installed")
def test_accelerate_does_so_too(dataset, tmp_path):
    seen, refused = run(dataset, tmp_path, "accelerate", *_TORCHRUN)
    require_parts(dataset, seen)
    assert [text.split(",")[0] for text in refused] == [
        "the environment says rank 0 of 2",
        "the environment says rank 1 of 2",
    ]


_ONE = {"fanouts": [2], "batch_size": 10, "memory_budget": "64MB", "features": "ram"}


@pytest.mark.reliability("S8")
def test_a_rank_of_torchrun_without_a_process_group_is_refused(dataset, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ConfigError, match=r"rank 1 of 2, and there is no process group.* rank=1, world_size=2 for"
    ):
        Loader(dataset, **_ONE)
    with Loader(dataset, **_ONE, rank=1, world_size=2) as loader:
        assert sum(batch.num_seeds for batch in loader) == 50
    with Loader(dataset, **_ONE, rank=0, world_size=1) as loader:
        assert sum(batch.num_seeds for batch in loader) == 100


@pytest.mark.parametrize(
    "variables",
    [{"RANK": "0", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "4"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}],
)
def test_a_process_that_is_alone_takes_all_seeds(dataset, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with Loader(dataset, **_ONE) as loader:
        assert sum(batch.num_seeds for batch in loader) == 100


@pytest.mark.reliability("S8")
def test_a_loader_is_not_sent_to_a_process_that_a_framework_starts(dataset):
    import copy
    import pickle

    with Loader(dataset, **_ONE) as loader:
        for send in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(
                NotPicklableError, match=r"build it there \(with Lightning in train_dataloader"
            ):
                send(loader)
