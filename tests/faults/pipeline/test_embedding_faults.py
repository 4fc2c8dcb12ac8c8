"""Faults of an embedding's rows: each ends the run with its error, and the last record opens with its bits."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import embedding_kill_driver as driven
import numpy as np
import pytest
from embedding_runs import Oracle, first_weights, opened, run

import gloader
from gloader.errors import ChecksumError, SpillError, StateError, StoreReadError, StoreWriteError
from gloader.pipeline.embedding_optimizers import Adagrad
from gloader.testing.faults import Corruption, FaultyOS

if TYPE_CHECKING:
    from gloader.pipeline.embedding_rows import EmbeddingRows

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")

N, DIM = 200, 8
SETTINGS: dict[str, Any] = {"num_rows": N, "dim": DIM, "capacity": 30}


def random_batches(count: int = 30) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, N, 25) for _ in range(count)]


def train(rows: EmbeddingRows, oracle: Oracle | None = None, **settings: Any) -> None:
    batches = random_batches()

    def between(batch: int) -> None:
        if oracle is not None:
            oracle.step(batch, batches[batch])

    run(rows, batches, **{"superbatch": 6, "between": between, **settings})


def checkpointed(folder: Path) -> np.ndarray:
    """Train ten batches and commit them; return all weights."""
    with opened(folder, Adagrad(), **SETTINGS) as rows:
        train(rows, stop=10)
        rows.checkpoint("last", {})
        return rows.read(np.arange(N))


def assert_record(folder: Path, weights: np.ndarray) -> None:
    """Assert that the record opens with its bits, that training goes on from it, and that no spilled file is left."""
    assert not list(folder.parent.rglob("*.spill"))
    with opened(folder, Adagrad(), **SETTINGS) as rows:
        np.testing.assert_array_equal(rows.read(np.arange(N)), weights)
        train(rows, start=10)
        oracle = Oracle(first_weights(N, DIM), Adagrad())
        for batch, ids in enumerate(random_batches()):
            oracle.step(batch, ids)
        np.testing.assert_array_equal(rows.read(np.arange(N)), oracle.result)


@pytest.mark.parametrize("failing", ["read_stored", "append"])
def test_an_error_of_the_table_ends_the_run(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage thread reads the table, and the read thread writes to it."""
    weights = checkpointed(tmp_path / "t")
    with opened(tmp_path / "t", Adagrad(), spill_bytes=None, **SETTINGS) as rows:
        calls = 0
        inner = getattr(rows.table, failing)

        def fail(*args: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 8:
                raise StoreReadError(errno.EIO, "injected", "file")
            return inner(*args, **keywords)

        monkeypatch.setattr(rows.table, failing, fail)
        monkeypatch.setattr(rows._pieces, "_append", rows.table.append)
        with pytest.raises(StoreReadError, match="injected"):
            train(rows, start=10)
    assert_record(tmp_path / "t", weights)


def test_an_error_of_the_training_ends_the_run_and_the_rows_stay_whole(tmp_path: Path) -> None:
    batches = random_batches()
    oracle = Oracle(first_weights(N, DIM), Adagrad())
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:

        def between(batch: int) -> None:
            if batch == 13:
                raise ZeroDivisionError("the model")
            oracle.step(batch, batches[batch])

        with pytest.raises(ZeroDivisionError):
            run(rows, batches, superbatch=6, between=between)
        rows.restart()
        np.testing.assert_array_equal(rows.read(np.arange(N)), oracle.result)
        train(rows, oracle, start=13)
        np.testing.assert_array_equal(rows.read(np.arange(N)), oracle.result)


def test_an_optimizer_that_fails_leaves_rows_that_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = checkpointed(tmp_path / "t")
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:

        def fail(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(Adagrad, "apply", fail)
        with pytest.raises(MemoryError):
            train(rows, start=10)
        with pytest.raises(StateError, match="cannot be used after the step of batch 0 failed"):
            rows.checkpoint("last", {})
    monkeypatch.undo()
    assert_record(tmp_path / "t", weights)


@pytest.mark.parametrize("fail_at", [1, 2, 5, 9])
def test_a_disk_that_is_full_while_rows_are_spilled_ends_the_run(tmp_path: Path, fail_at: int) -> None:
    weights = checkpointed(tmp_path / "t")
    spill_io = FaultyOS(calls={"pwrite"}, fail_at=fail_at, error=errno.ENOSPC, repeat=10**6)
    with (
        opened(tmp_path / "t", Adagrad(), spill_io=spill_io, **SETTINGS) as rows,
        pytest.raises(SpillError, match="writing the rows that wait for later batches"),
    ):
        train(rows, start=10)
    assert spill_io.was_hit
    assert_record(tmp_path / "t", weights)


@pytest.mark.parametrize("fail_at", range(1, 22, 4))
def test_a_disk_that_fails_in_the_table_leaves_the_last_record(tmp_path: Path, fail_at: int) -> None:
    weights = checkpointed(tmp_path / "t")
    os_io = FaultyOS(calls={"pwrite", "fsync", "replace"}, fail_at=fail_at, error=errno.ENOSPC, repeat=10**6)
    with (
        pytest.raises(StoreWriteError),
        opened(tmp_path / "t", Adagrad(), os_io=os_io, **SETTINGS) as rows,
    ):
        train(rows, start=10)
        rows.checkpoint("last", {})
    assert os_io.was_hit
    assert_record(tmp_path / "t", weights)


@pytest.mark.parametrize("fail_at", [1, 3, 6])
def test_a_checkpoint_on_a_full_disk_can_be_tried_again(tmp_path: Path, fail_at: int) -> None:
    weights = checkpointed(tmp_path / "t")
    oracle = Oracle(first_weights(N, DIM), Adagrad())
    for batch, ids in enumerate(random_batches()[:10]):
        oracle.step(batch, ids)
    np.testing.assert_array_equal(weights, oracle.result)
    os_io = FaultyOS(calls={"pwrite", "fsync", "replace"}, error=errno.ENOSPC)
    with opened(tmp_path / "t", Adagrad(), os_io=os_io, **SETTINGS) as rows:
        train(rows, oracle, start=10, stop=20)
        os_io._fail_from = os_io.num_calls + fail_at
        os_io._fail_until = os_io._fail_from + 1
        with pytest.raises(StoreWriteError):
            rows.checkpoint("last", {})
        np.testing.assert_array_equal(rows.read(np.arange(N)), oracle.result)
        rows.checkpoint("last", {})
        rows.restart()
        train(rows, oracle, start=20, stop=22)
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:
        assert rows.num_steps == 20


@pytest.mark.parametrize("failing", ["append", "read_into"])
def test_a_run_can_go_on_from_memory_after_the_table_failed_once(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is lost if an eviction or a load fails: all versions are in slots, waiting or in the table."""
    batches = random_batches()
    oracle = Oracle(first_weights(N, DIM), Adagrad())
    with opened(tmp_path / "t", Adagrad(), spill_bytes=None, **SETTINGS) as rows:
        inner, calls = getattr(rows.table, failing), 0

        def fail(*args: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 9:
                raise StoreReadError(errno.EIO, "injected", "file")
            return inner(*args, **keywords)

        monkeypatch.setattr(rows.table, failing, fail)
        monkeypatch.setattr(rows._pieces, "_append", rows.table.append)
        with pytest.raises(StoreReadError, match="injected"):
            train(rows, oracle)
        done = oracle.num_steps
        assert 0 < done < len(batches)
        rows.restart()
        np.testing.assert_array_equal(rows.read(np.arange(N)), oracle.result)
        train(rows, oracle, start=done)
        np.testing.assert_array_equal(rows.read(np.arange(N)), oracle.result)


def test_a_changed_bit_in_a_spilled_row_ends_the_run(tmp_path: Path) -> None:
    weights = checkpointed(tmp_path / "t")
    spill_io = FaultyOS(corrupt=Corruption(offset=100, mask=1, file=".spill"))
    with opened(tmp_path / "t", Adagrad(), spill_io=spill_io, **SETTINGS) as rows:
        with pytest.raises(
            ChecksumError, match=r"the rows that wait for later batches, owner \d+ .* is damaged"
        ):
            train(rows, start=10)
        for call in (rows.restart, lambda: rows.checkpoint("last", {}), lambda: rows.read(np.array([1]))):
            with pytest.raises(
                StateError, match=r"cannot be used after the load of batch \d+ failed; open the"
            ):
                call()
    assert_record(tmp_path / "t", weights)


def test_kill_leaves_the_last_checkpoint_from_which_training_has_the_same_bits(tmp_path: Path) -> None:
    kills = [1, 2, 9, 16]
    paths = [str(Path(gloader.__path__[0]).parent), str(Path(__file__).parents[2])]
    done = subprocess.run(
        [sys.executable, driven.__file__, str(tmp_path), *map(str, kills)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split() == [str(-signal.SIGKILL)] * len(kills), done.stderr
    for kill_at in kills:
        folder = tmp_path / str(kill_at) / "t"
        oracle = Oracle(first_weights(driven.NUM_ROWS, driven.DIM), driven.OPTIMIZER)
        saved = (kill_at + 1) // 3 * 3 - 1  # batches before the last checkpoint
        for batch, ids in enumerate(driven.batches()[: max(saved, 0)]):
            oracle.step(batch, ids)
        if saved > 0:
            with opened(folder, driven.OPTIMIZER, **driven.SETTINGS) as rows:
                assert rows.table.facts["batch"] == rows.num_steps == saved
                np.testing.assert_array_equal(rows.read(np.arange(driven.NUM_ROWS)), oracle.result)
        for batch, ids in enumerate(driven.batches()[max(saved, 0) :], start=max(saved, 0)):
            oracle.step(batch, ids)
        np.testing.assert_array_equal(driven.train(folder, None), oracle.result)
        assert not list(folder.parent.rglob("*.spill"))
