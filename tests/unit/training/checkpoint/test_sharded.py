from __future__ import annotations

import os
import pickle
from dataclasses import replace

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from gloader.config import ModelConfig
from gloader.errors import CheckpointError, StoreWriteError
from gloader.training.checkpoint.save import Checkpoint, ModelSpec, load_checkpoint, save_sharded_checkpoint
from gloader.training.checkpoint.sharded import load_shards, save_shards
from gloader.training.group import RankGroup
from gloader.training.run_folder import RunFolder

ALONE = RankGroup.alone()
SPEC = ModelSpec(
    config=ModelConfig(name="gcn", hidden=8), in_dim=5, num_classes=3, num_layers=2, add_self_loops=False
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def _checkpoint(epoch: int = 1) -> Checkpoint:
    return Checkpoint(
        spec=SPEC,
        fingerprint="abc",
        weights=SPEC.build().state_dict(),
        progress={
            "loader": {"next": [epoch, 2]},
            "optimizer": {"steps": [torch.tensor(3.0)], "means": []},
            "progress": {"partial": None, "loss": 0.1},
        },
    )


def test_everything_comes_back(tmp_path) -> None:
    saved = _checkpoint()
    folder = save_sharded_checkpoint(tmp_path, saved, ALONE)
    assert folder == tmp_path / "checkpoint-00001-0000002"
    for path in (folder, tmp_path):
        loaded = load_checkpoint(path)
        assert (loaded.spec, loaded.fingerprint) == (SPEC, "abc")
        assert loaded.progress == saved.progress
        assert all(torch.equal(loaded.weights[name], value) for name, value in saved.weights.items())


@pytest.mark.reliability("H3")
def test_code_in_the_record_is_never_executed(tmp_path) -> None:
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    folder = save_sharded_checkpoint(tmp_path, _checkpoint(), ALONE)
    (folder / ".metadata").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(CheckpointError, match=r"its record names posix\.mkdir, which is no part of one"):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.reliability("H3")
def test_entries_that_torch_would_unpickle_are_refused(tmp_path) -> None:
    save({"document": "a string"}, storage_writer=FileSystemWriter(tmp_path / "shards"), no_dist=True)
    with pytest.raises(CheckpointError, match=r"names .*BytesStorageMetadata"):
        load_shards(tmp_path / "shards")


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("length", [0, 10, 1000])
def test_a_truncated_file_is_refused(tmp_path, name: str, length: int) -> None:
    folder = save_sharded_checkpoint(tmp_path, _checkpoint(), ALONE)
    (folder / name).write_bytes((folder / name).read_bytes()[:length])
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        load_checkpoint(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path) -> None:
    (tmp_path / "shards").write_text("a file")
    with pytest.raises(StoreWriteError, match=r"shards could not be written: rank 0"):
        save_shards(tmp_path / "shards", {"a": torch.zeros(2)}, ALONE)


def test_the_newest_checkpoint_counts_whoever_wrote_it(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    shards = save_sharded_checkpoint(tmp_path, replace(_checkpoint(), fingerprint="of ranks"), ALONE)
    os.utime(shards / ".metadata", ns=(1, 1))
    assert folder.load_checkpoint().fingerprint == "of ranks"
    folder.save_checkpoint(_checkpoint(), group=ALONE)
    assert folder.load_checkpoint().fingerprint == "abc"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_an_unfinished_checkpoint_is_none_and_is_removed(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    shards = save_sharded_checkpoint(tmp_path, _checkpoint(), ALONE)
    (shards / ".metadata").unlink()
    assert folder.load_checkpoint() is None
    folder.remove_residue()
    assert list(tmp_path.iterdir()) == []


def test_a_new_run_discards_what_another_one_left(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(_checkpoint(), group=ALONE)
    save_sharded_checkpoint(tmp_path, _checkpoint(), ALONE)
    folder.discard_checkpoints()
    assert list(tmp_path.iterdir()) == []
