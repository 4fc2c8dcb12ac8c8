from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml

from gloader.config import ModelConfig
from gloader.errors import CheckpointError, StoreExistsError, StoreLockedError, StoreWriteError
from gloader.ssd_store.spill.claim import SpillClaim, SpillOwner
from gloader.testing.faults import FaultyOS
from gloader.training.checkpoint.save import Checkpoint, save_sharded_checkpoint
from gloader.training.group import RankGroup
from gloader.training.inference.placement import SCRATCH_PREFIX
from gloader.training.model_spec import ModelSpec
from gloader.training.run_folder import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

ALONE = RankGroup.alone()
SPEC = ModelSpec(
    config=ModelConfig(name="gcn", hidden=8), in_dim=5, out_dim=3, num_layers=2, add_self_loops=False
)


def test_the_config_is_plain_yaml(tmp_path) -> None:
    RunFolder(tmp_path / "a" / "b").write_config({"loader": {"fanouts": (15, 10), "cache": None}, "runs": 1})
    text = (tmp_path / "a" / "b" / "config.yaml").read_text()
    assert yaml.safe_load(text) == {"loader": {"fanouts": [15, 10], "cache": None}, "runs": 1}


def test_metrics_start_with_what_is_behind_and_gain_a_line_per_epoch(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    folder.start_metrics([{"epoch": 0}])
    folder.append_metrics({"epoch": 1})
    folder.append_metrics({"epoch": 2})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]
    folder.start_metrics([])
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_one_run_uses_the_folder_itself_and_several_get_their_own(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.of_run(0, num_runs=1).root == tmp_path
    assert folder.of_run(1, num_runs=2).root == tmp_path / "run-1"
    assert (tmp_path / "run-1").is_dir()


def test_a_run_without_checkpoint_has_none(tmp_path) -> None:
    assert RunFolder(tmp_path).load_checkpoint() is None


def test_the_result_is_json(tmp_path) -> None:
    RunFolder(tmp_path).write_result({"test_acc": 0.5, "epoch_seconds": (1.0, 2.0)})
    assert json.loads((tmp_path / "result.json").read_text()) == {
        "test_acc": 0.5,
        "epoch_seconds": [1.0, 2.0],
    }


def _killed_inference(folder: Path) -> Path:
    """Leave what a killed inference leaves."""
    claim = SpillClaim(folder, prefix=SCRATCH_PREFIX)
    owner = replace(SpillOwner.this_process(), pid=2**22 + 1)
    (claim.path / "owner.json").write_text(owner.to_json())
    (claim.path / "layer-0").mkdir()
    claim.release()
    return claim.path


@pytest.mark.reliability("J12")
@pytest.mark.reliability("J17")
def test_what_killed_runs_left_goes_and_what_others_wrote_stays(tmp_path: Path) -> None:
    theirs = _others(tmp_path)
    assert _killed_inference(tmp_path).is_dir()
    RunFolder(tmp_path).remove_residue()
    assert _snapshot(tmp_path) == theirs


def _others(folder: Path) -> dict[str, bytes | None]:
    """Fill ``folder`` with what other programs keep in theirs; return all of it."""
    for name in (
        "checkpoint-500",
        "checkpoint-00001-0000002",
        "checkpoint-1-2",
        "gloader-infer-thesis",
        "runs",
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "model.bin").write_bytes(b"years of work")
    (folder / "gloader-infer-abcdefgh").mkdir()
    for name in (".important.tmp", ".config.yaml.tmp", ".checkpoint.pt.1.tmp", "optimizer.pt", ".env"):
        (folder / name).write_bytes(b"theirs")
    (folder / "checkpoint-00009-0000001").symlink_to("runs")
    return _snapshot(folder)


def _snapshot(folder: Path) -> dict[str, bytes | None]:
    paths = folder.rglob("*")
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


CONFIG = {"run": {"id": "new"}, "dataset": {}, "model": {}, "optim": {}, "loader": {}}


def _run(folder: RunFolder, config: dict[str, object], *, is_fresh: bool = True, epoch: int = 1) -> None:
    """Do what a run does to its folder."""
    folder.begin(config, is_fresh=is_fresh)
    folder.start_metrics([])
    folder.append_metrics({"epoch": 0})
    folder.save_checkpoint(checkpoint(epoch), group=ALONE)
    folder.write_scores({"kind": "classes"})
    folder.write_result({"test_acc": 0.5})


def checkpoint(epoch: int) -> Checkpoint:
    return Checkpoint(
        run_id="new",
        settings={},
        spec=SPEC,
        fingerprint="abc",
        weights={},
        progress={"loader": {"next": [epoch, 0]}},
    )


@pytest.mark.reliability("J17")
def test_a_whole_run_replaces_and_removes_nothing_of_others(tmp_path: Path) -> None:
    theirs = _others(tmp_path)
    for _ in range(2):
        folder = RunFolder(tmp_path)
        folder.enter(resume=False, overwrite=True)
        folder.remove_residue()
        _run(folder, CONFIG)
        folder.release()
    ours = {"config.yaml", "metrics.jsonl", "result.json", "scores.json", "checkpoint.pt"}
    after = _snapshot(tmp_path)
    assert after.keys() - theirs.keys() == ours
    assert {name: after[name] for name in theirs} == theirs


@pytest.mark.reliability("J17")
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("config.yaml", StoreExistsError),
        ("metrics.jsonl", StoreExistsError),
        ("run-3/result.json", StoreExistsError),
        ("scores.json", StoreExistsError),
        ("trace.json", StoreExistsError),
        ("checkpoint.pt", CheckpointError),
        ("run-0/checkpoint.pt", CheckpointError),
        ("checkpoint-00001-0000002/.metadata", CheckpointError),
    ],
)
def test_files_of_other_programs_that_a_run_would_replace_are_refused(
    tmp_path: Path, name: str, error
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("optimizer: theirs\n")
    before = _snapshot(tmp_path)
    for resume in (False, True):
        folder = RunFolder(tmp_path)
        with pytest.raises(error, match=r"not written by .*gloader train.*choose another --out") as raised:
            folder.enter(resume=resume)
        assert name.removesuffix("/.metadata") in str(raised.value)
        folder.release()
    assert _snapshot(tmp_path) == before


@pytest.mark.reliability("J10", "J17", "J19")
@pytest.mark.parametrize("text", ['a: !!int ""', 'a: !!timestamp "x"', "a: !!bool x", "[" * 2**20])
def test_settings_that_no_run_wrote_are_refused_whatever_they_hold(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(StoreExistsError, match=r"not written by gloader train"):
        RunFolder(tmp_path).enter(resume=False)


@pytest.mark.reliability("J15")
def test_a_fresh_run_leaves_nothing_of_an_older_one_and_a_resumed_run_all_of_it(tmp_path: Path) -> None:
    root = RunFolder(tmp_path)
    for run in range(2):
        _run(root.of_run(run, num_runs=2), CONFIG)
    save_sharded_checkpoint(tmp_path, checkpoint(7), ALONE)
    root.write_config(CONFIG)
    assert root.enter(resume=True) == "new"
    before = _snapshot(tmp_path)
    root.begin(CONFIG, is_fresh=False)
    assert _snapshot(tmp_path) == before
    root.release()
    with pytest.raises(
        StoreExistsError, match="holds a run already; resume=True goes on with it, overwrite="
    ):
        root.enter(resume=False)
    other = root.enter(resume=False, overwrite=True)
    assert other != "new"
    assert len(other) == 16
    assert _snapshot(tmp_path) == before  # nothing goes before the new run is sure to begin
    root.begin({**CONFIG, "run": {"id": other}}, is_fresh=True)
    assert {name for name, content in _snapshot(tmp_path).items() if content is not None} == {
        "config.yaml",
        "run-0/config.yaml",
        "run-1/config.yaml",
    }
    root.release()
    assert root.enter(resume=True) == other
    root.release()


@pytest.mark.reliability("J15")
def test_a_second_run_in_a_folder_is_refused_at_once_with_the_process_of_the_first(tmp_path: Path) -> None:
    first = RunFolder(tmp_path)
    first.enter(resume=False)
    second = RunFolder(tmp_path)
    for _ in range(2):
        with pytest.raises(
            StoreLockedError,
            match=rf"process {os.getpid()} is training into this folder; wait for it, or choose",
        ):
            second.enter(resume=True)
    first.release()
    first.release()
    second.enter(resume=True)
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_said_and_used(tmp_path: Path, caplog) -> None:
    folder = RunFolder(tmp_path, os_io=FaultyOS(fail_at=1, error=errno.EBADF, calls={"flock"}))
    folder.enter(resume=False)
    folder.release()
    assert "cannot be locked" in caplog.text


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreWriteError, match="creating the folder failed: Not a directory"):
        RunFolder(tmp_path / "file" / "run")
    faulty = FaultyOS(fail_at=1, error=errno.ENOSPC, calls={"mkdir"})
    with pytest.raises(StoreWriteError, match=r"No space left on device.*bytes are free"):
        RunFolder(tmp_path / "run", os_io=faulty)


def test_whoever_asked_hears_of_each_checkpoint_when_it_is_complete(tmp_path) -> None:
    heard = []

    def hear(told: Checkpoint) -> None:
        stored = RunFolder(tmp_path / "run-1").load_checkpoint()
        assert stored is not None
        heard.append((told.position, stored.position))

    folder = RunFolder(tmp_path, on_checkpoint=hear).of_run(1, num_runs=2)
    for epoch in (1, 2):
        folder.save_checkpoint(checkpoint(epoch), group=ALONE)
    assert heard == [((1, 0), (1, 0)), ((2, 0), (2, 0))]
