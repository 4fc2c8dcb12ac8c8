from __future__ import annotations

import errno
import gc
import hashlib
import os
import pickle
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from gloader.config import ModelConfig
from gloader.errors import CheckpointError, StoreWriteError
from gloader.ssd_store.os_io import REAL_OS
from gloader.testing.faults import FaultyOS
from gloader.training.checkpoint.files import find_checkpoint, newest_checkpoint, write_sums
from gloader.training.checkpoint.save import (
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
    save_sharded_checkpoint,
)
from gloader.training.checkpoint.sharded import _NewFiles, load_shards, save_shards
from gloader.training.group import RankGroup
from gloader.training.model_spec import ModelSpec
from gloader.training.run_folder import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

ALONE = RankGroup.alone()
SPEC = ModelSpec(
    config=ModelConfig(name="gcn", hidden=8), in_dim=5, out_dim=3, num_layers=2, add_self_loops=False
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def _checkpoint(epoch: int = 1) -> Checkpoint:
    return Checkpoint(
        run_id="0123",
        settings={"lr": 0.1},
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
        assert (loaded.spec, loaded.fingerprint, loaded.run_id) == (SPEC, "abc", "0123")
        assert loaded.progress == saved.progress
        assert all(torch.equal(loaded.weights[name], value) for name, value in saved.weights.items())


def _seal(folder: Path) -> None:
    """Give a folder the digests of what is in it now."""
    (folder / "SHA256SUMS").unlink(missing_ok=True)
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    write_sums(folder, files)


@pytest.mark.reliability("H3")
def test_code_in_the_record_is_never_executed(tmp_path) -> None:
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    folder = save_sharded_checkpoint(tmp_path, _checkpoint(), ALONE)
    (folder / ".metadata").write_bytes(pickle.dumps(Payload()))
    _seal(folder)
    with pytest.raises(CheckpointError, match=r"its record names posix\.mkdir, which is no part of one"):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.reliability("H3")
def test_entries_that_torch_would_unpickle_are_refused(tmp_path) -> None:
    save({"document": "a string"}, storage_writer=FileSystemWriter(tmp_path / "shards"), no_dist=True)
    _seal(tmp_path / "shards")
    with pytest.raises(CheckpointError, match=r"names .*BytesStorageMetadata"):
        load_shards(tmp_path / "shards")


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("length", [0, 10, 1000])
def test_a_truncated_file_is_refused(tmp_path, name: str, length: int) -> None:
    folder = save_sharded_checkpoint(tmp_path, _checkpoint(), ALONE)
    (folder / name).write_bytes((folder / name).read_bytes()[:length])
    with pytest.raises(CheckpointError, match=rf"the bytes of {name} do not match their digest"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "gloader-run"])
def test_a_missing_file_is_refused(tmp_path, name: str) -> None:
    folder = save_sharded_checkpoint(tmp_path, _checkpoint(), ALONE)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint: FileNotFoundError"):
        load_shards(folder)


@pytest.mark.reliability("J14")
def test_one_flipped_bit_in_any_file_is_refused(tmp_path) -> None:
    folder = save_sharded_checkpoint(tmp_path, _checkpoint(), ALONE)
    draw = random.Random(0)  # noqa: S311 - positions, not secrets
    names = {path.name for path in folder.iterdir()}
    assert names == {"SHA256SUMS", ".metadata", "__0_0.distcp", "gloader-run"}
    for name in names:
        content = (folder / name).read_bytes()
        num_bits = 8 * len(content)
        for bit in (
            range(num_bits) if name == "gloader-run" else (draw.randrange(num_bits) for _ in range(50))
        ):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            (folder / name).write_bytes(damaged)
            with pytest.raises(CheckpointError, match=r"is malformed|do not match|cannot be read"):
                load_checkpoint(tmp_path)
        (folder / name).write_bytes(content)
    assert load_checkpoint(tmp_path).run_id == "0123"


def test_a_full_disk_is_said_with_the_file_and_leaves_no_checkpoint(tmp_path) -> None:
    faulty = FaultyOS(fail_at=2, error=errno.ENOSPC, calls={"write"})  # the first is that of the mark
    with pytest.raises(
        StoreWriteError,
        match=r"No space left on device.*needed [1-9]\d+ bytes, \d+ bytes are free.*0_0\.distcp",
    ):
        save_sharded_checkpoint(tmp_path, _checkpoint(), ALONE, os_io=faulty)
    assert newest_checkpoint(tmp_path) is None
    RunFolder(tmp_path).remove_residue()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_an_earlier_version_says_what_to_do(tmp_path) -> None:
    folder = save_sharded_checkpoint(tmp_path, _checkpoint(), ALONE)
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match="has no SHA256SUMS: it was never completed, or not written by"):
        find_checkpoint(folder)


def test_a_folder_that_cannot_be_written_is_named(tmp_path) -> None:
    (tmp_path / "shards").write_text("a file")
    with pytest.raises(StoreWriteError, match=r"making the folder failed: File exists.*shards'"):
        save_shards(tmp_path / "shards", {"a": torch.zeros(2)}, ALONE, run_id="0123")


@pytest.mark.reliability("J8")
@pytest.mark.parametrize("newest", ["of ranks", "of one process"])
def test_of_two_checkpoints_the_one_further_in_training_is_taken(tmp_path, newest: str) -> None:
    """As where a run was killed between writing and deleting, whatever the clock said then."""
    position = {"of ranks": 2, "of one process": 2, newest: 3}
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(
        replace(_checkpoint(position["of one process"]), fingerprint="of one process"), group=ALONE
    )
    for epoch in (1, position["of ranks"]):
        shards = replace(_checkpoint(epoch), fingerprint="of ranks")
        written = save_sharded_checkpoint(tmp_path, shards, ALONE)
    taken = written if newest == "of ranks" else tmp_path / "checkpoint.pt"
    for path in (taken, *taken.glob("*")):
        os.utime(path, ns=(1, 1))
    assert newest_checkpoint(tmp_path) == taken
    assert folder.load_checkpoint().fingerprint == newest
    # The next one that is written is the only one that stays.
    folder.save_checkpoint(_checkpoint(4), group=ALONE)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.reliability("J14")
def test_a_damaged_file_is_refused_rather_than_passed_over_for_an_older_one(tmp_path) -> None:
    save_sharded_checkpoint(tmp_path, _checkpoint(1), ALONE)
    save_checkpoint(tmp_path / "checkpoint.pt", _checkpoint(3))
    content = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(content.replace(b"00003-0000002", b"00000-0000002"))
    with pytest.raises(CheckpointError, match="do not match its digest"):
        load_checkpoint(tmp_path)


def test_an_unfinished_checkpoint_is_none_and_is_removed(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    shards = save_sharded_checkpoint(tmp_path, _checkpoint(), ALONE)
    (shards / "SHA256SUMS").unlink()
    (tmp_path / "checkpoint-00001-0000004").mkdir()  # killed before it was marked
    (tmp_path / ".checkpoint-00000-0000004.removed").mkdir()  # killed while it was deleted
    assert folder.load_checkpoint() is None
    folder.remove_residue()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("J17")
def test_what_a_failed_write_left_in_its_buffer_reaches_no_other_file(tmp_path: Path) -> None:
    files = _NewFiles(REAL_OS, needed_bytes=5)
    with pytest.raises(OSError, match="full"), files.create_stream(tmp_path / "part", "wb") as stream:
        stream.write(b"tail of a checkpoint")
        raise OSError(errno.ENOSPC, "full")
    # The next file that is opened gets the number of the descriptor that was closed.
    with (tmp_path / "metrics").open("wb"):
        del stream
        gc.collect()
    assert (tmp_path / "metrics").read_bytes() == b""
    assert files.sums == {}
