"""An embedding's rows in a run: what a call may do, what it refuses, and what it counts."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from embedding_runs import Oracle, first_weights, gradient, opened, ordered, run

from gloader.core.signals import Cancellation
from gloader.errors import BudgetError, ChannelClosedError, PlanError, ShapeError, StateError
from gloader.pipeline.embedding_optimizers import Adagrad, RowwiseAdagrad, SparseAdam
from gloader.pipeline.embedding_rows import _entries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gloader.pipeline.embedding_rows import BatchSlots, EmbeddingRows

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")

N, DIM = 100, 4
SETTINGS: dict[str, Any] = {"num_rows": N, "dim": DIM, "capacity": 10}


def batches_of(*rows: Sequence[int]) -> list[np.ndarray]:
    return [np.array(each, np.int64) for each in rows]


def loaded(rows: EmbeddingRows, *batches: Sequence[int]) -> list[BatchSlots]:
    """Load batches that need no wait, as one superbatch."""
    ids = batches_of(*batches)
    staged = rows.stage(rows.planner.plan([np.unique(each) for each in ids]))
    return [rows.load(staged, index, ordered(each)) for index, each in enumerate(ids)]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def random_batches(count: int, size: int = 10) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, N, size) for _ in range(count)]


def test_a_leaf_is_a_copy_of_the_rows_in_batch_order(tmp_path: Path) -> None:
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:
        (slots,) = loaded(rows, [7, 3, 7, 50])
        leaf = rows.leaf(slots)
        assert torch.equal(leaf, first_weights(N, DIM)[[7, 3, 7, 50]])
        assert leaf.is_leaf
        assert leaf.requires_grad
        with torch.no_grad():
            leaf.zero_()
        np.testing.assert_array_equal(rows.read(np.array([3])), first_weights(N, DIM)[[3]])


def test_a_batch_without_a_gradient_makes_no_step(tmp_path: Path) -> None:
    with opened(tmp_path / "t", SparseAdam(), **SETTINGS) as rows:
        first, second = loaded(rows, [1, 2], [2, 3])
        rows.leaf(first)
        rows.step(first, None)
        assert rows.num_steps == 0
        rows.step(second, torch.ones(2, DIM))
        assert rows.num_steps == 1
        oracle = Oracle(first_weights(N, DIM), SparseAdam())
        oracle.optimizer.apply(
            oracle.weights, torch.zeros(N, 2 * DIM), torch.tensor([2, 3]), torch.ones(2, DIM), 1
        )
        np.testing.assert_array_equal(rows.read(np.arange(N)), oracle.weights)


def test_an_empty_batch_makes_a_step_as_in_torch(tmp_path: Path) -> None:
    batches = batches_of([], [4, 5], [], [5])
    oracle = Oracle(first_weights(N, DIM), SparseAdam())
    with opened(tmp_path / "t", SparseAdam(), **SETTINGS) as rows:
        run(rows, batches, superbatch=2, between=lambda batch: oracle.step(batch, batches[batch]))
        assert rows.num_steps == 4
        np.testing.assert_array_equal(rows.read(np.arange(N)), oracle.result)


def test_the_next_batch_waits_for_the_step_of_this_one(tmp_path: Path) -> None:
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:
        first, second = loaded(rows, [1, 2], [2, 3])
        text = r"batch 0 of the embedding has made no step: call step\(batch\) after backward\(\), or skip\(batch\)"
        with pytest.raises(StateError, match=text):
            rows.leaf(second)
        with pytest.raises(StateError, match=text):
            rows.step(second, torch.zeros(2, DIM))
        rows.step(first, torch.zeros(2, DIM))
        rows.leaf(second)
        with pytest.raises(StateError, match="batch 0 of the embedding has already made its step"):
            rows.step(first, torch.zeros(2, DIM))
        assert rows.num_steps == 1


@pytest.mark.parametrize(
    "grad", [torch.zeros(3, DIM), torch.zeros(2, DIM, dtype=torch.float64), torch.zeros(2, DIM).to_sparse()]
)
def test_a_gradient_of_another_form_is_refused_and_the_batch_can_still_step(
    tmp_path: Path, grad: torch.Tensor
) -> None:
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:
        (slots,) = loaded(rows, [1, 2])
        with pytest.raises(ShapeError, match=r"must be a dense torch.float32 of shape \(2, 4\)"):
            rows.step(slots, grad)
        rows.step(slots, torch.zeros(2, DIM))


def test_the_gradients_of_a_repeated_row_are_added_first(tmp_path: Path) -> None:
    batch = np.random.default_rng(0).integers(0, 4, 1000)  # torch adds them in the order of its sort
    oracle = Oracle(first_weights(N, DIM), SparseAdam())
    with opened(tmp_path / "t", SparseAdam(), **SETTINGS) as rows:
        run(rows, [batch], superbatch=1, between=lambda number: oracle.step(number, batch))
        np.testing.assert_array_equal(rows.read(np.arange(N)), oracle.result)


def test_reads_write_nothing_and_leave_rows_dirty(tmp_path: Path) -> None:
    batches = random_batches(12)
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:
        seen = []

        def between(batch: int) -> None:
            if batch == 8:
                with rows._moving:  # no row moves while the files are compared
                    before, counts, written = digests(tmp_path), vars_of(rows), rows.bytes_written
                    dirty = rows._is_dirty.copy()
                    for _ in range(2):
                        rows.read(np.array([5, 1, 5]))
                        list(rows.pieces(33))
                    assert digests(tmp_path) == before
                    assert (vars_of(rows), rows.bytes_written) == (counts, written)
                    np.testing.assert_array_equal(rows._is_dirty, dirty)
                seen.append(dirty.any())

        run(rows, batches, superbatch=4, between=between)
        assert seen == [True]


def vars_of(rows: EmbeddingRows) -> tuple[Any, ...]:
    return rows.counts.evicted_table, rows.counts.evicted_forward, rows.counts.loaded_table, rows.num_steps


def test_rows_are_read_in_any_order_and_outside_ids_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:
        ids = np.array([99, 0, 3, 99])
        np.testing.assert_array_equal(rows.read(ids), first_weights(N, DIM)[ids])
        assert rows.read(np.empty(0, np.int64)).shape == (0, DIM)
        assert [(first, piece.shape) for first, piece in rows.pieces(60)] == [(0, (60, DIM)), (60, (40, DIM))]
        with pytest.raises(ShapeError, match=r"ids of the embedding are in 0..99, got -1..7"):
            rows.read(np.array([7, -1]))


def test_clean_rows_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "t", Adagrad(), num_rows=N, dim=DIM, capacity=2, depth=1) as rows:
        run(rows, batches_of([1, 2]), superbatch=1)
        rows.checkpoint("last", {})
        rows.restart()
        written: list[int] = []
        monkeypatch.setattr(rows.table, "append", lambda ids, _: written.extend(ids.tolist()))
        run(rows, batches_of([3, 4], [5]), superbatch=2)
        assert (rows.counts.evicted_clean, rows.counts.evicted_table) == (2, 1)
        assert written in ([3], [4])


@pytest.mark.parametrize("steps", [1, 2])
def test_a_checkpoint_has_rows_that_wait_and_rows_that_came_back(tmp_path: Path, steps: int) -> None:
    """Row 1 is changed by batch 0, waits while batch 1 is trained, and comes back for batch 2."""
    settings: dict[str, Any] = {"num_rows": N, "dim": DIM, "capacity": 2, "depth": 1}
    ids = batches_of([1, 2], [3, 4], [1, 5])
    oracle = Oracle(first_weights(N, DIM), Adagrad())
    with opened(tmp_path / "t", Adagrad(), **settings) as rows:
        staged = rows.stage(rows.planner.plan(ids))
        for index in range(steps):
            slots = rows.load(staged, index, ordered(ids[index]))
            rows.step(slots, gradient(index, rows.leaf(slots)))
            oracle.step(index, ids[index])
        rows.load(staged, steps, ordered(ids[steps]))
        assert rows.counts.evicted_forward == 1
        assert rows.counts.loaded_forward == steps - 1
        rows.checkpoint("last", {})
    with opened(tmp_path / "t", Adagrad(), **settings) as rows:
        np.testing.assert_array_equal(rows.read(np.arange(N)), oracle.result)


def test_a_checkpoint_leaves_the_rows_in_their_slots(tmp_path: Path) -> None:
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:
        first, second = loaded(rows, [1, 2], [2, 3])
        rows.step(first, gradient(0, rows.leaf(first)))
        rows.checkpoint("last", {"batch": 1})
        kept = rows.read(np.arange(N))
        rows.step(second, gradient(1, rows.leaf(second)))
        assert not np.array_equal(rows.read(np.arange(N)), kept)
        assert rows.counts.loaded_table == 3
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:
        assert rows.num_steps == 1
        assert rows.table.facts["batch"] == 1
        assert rows.table.facts["optimizer"] == Adagrad().facts()
        np.testing.assert_array_equal(rows.read(np.arange(N)), kept)


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:
        rows.checkpoint("last", {})
    with (
        pytest.raises(StateError, match=r"now its optimizer has eps=0.1 instead of 1e-10"),
        opened(tmp_path / "t", Adagrad(lr=0.5, eps=0.1), **SETTINGS),
    ):
        pass
    with (
        pytest.raises(
            StateError, match=r"have 8 values, and 4 weights with the state of rowwise-adagrad have 5"
        ),
        opened(tmp_path / "t", RowwiseAdagrad(), **SETTINGS),
    ):
        pass


def test_the_counts_name_sources_and_targets(tmp_path: Path) -> None:
    with opened(tmp_path / "t", RowwiseAdagrad(), num_rows=N, dim=DIM, capacity=2, depth=1) as rows:
        run(rows, batches_of([1, 2], [3, 4], [1, 5]), superbatch=3)
        assert rows.counts.loaded_table == 5
        assert rows.counts.loaded_forward == 1
        assert rows.counts.evicted_forward == 1
        assert rows.counts.evicted_table == 3
        assert rows.counts.waited_s > 0
        assert rows.num_bytes == 2 * (5 * 4 + 8 + 1)


def test_a_waiting_load_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    with opened(tmp_path / "t", Adagrad(), num_rows=N, dim=DIM, capacity=2, depth=1) as rows:
        ids = batches_of([1, 2], [3, 4])
        staged = rows.stage(rows.planner.plan(ids))
        (first, after) = map(ordered, ids)
        slots = rows.load(staged, 0, first)
        ended: list[BaseException] = []

        def load() -> None:
            try:
                rows.load(staged, 1, after)
            except ChannelClosedError as error:
                ended.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        rows.cancel()
        thread.join(20)
        assert [str(error) for error in ended] == ["a load of an embedding was cancelled"]
        with pytest.raises(ChannelClosedError, match="the staging of an embedding was cancelled"):
            rows.stage(rows.planner.plan(ids))
        rows.step(slots, torch.ones(2, DIM))
        rows.restart()
        run(rows, batches_of([1, 2], [3, 4]), superbatch=2)


def test_a_cancelled_staging_ends_before_the_next_rows(tmp_path: Path) -> None:
    cancellation = Cancellation()
    cancellation.set()
    with (
        opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows,
        pytest.raises(ChannelClosedError, match="the staging of an embedding was cancelled"),
    ):
        rows.stage(rows.planner.plan(batches_of([1, 2])), cancellation=cancellation)


def test_a_batch_that_is_not_the_planned_one_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:
        staged = rows.stage(rows.planner.plan(batches_of([1, 2], [1, 3])))
        rows.load(staged, 0, ordered(np.array([1, 2])))
        with pytest.raises(PlanError, match="batch 1 has row 2 in slot 0, which holds row 1"):
            rows.load(staged, 1, ordered(np.array([2, 3])))
        rows.restart()
        np.testing.assert_array_equal(rows.read(np.arange(N)), first_weights(N, DIM))


def test_a_full_cache_that_is_too_small_for_a_batch_is_refused(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "t", Adagrad(), num_rows=N, dim=DIM, capacity=2) as rows,
        pytest.raises(BudgetError),
    ):
        rows.stage(rows.planner.plan(batches_of([1, 2, 3])))


def test_nothing_can_be_done_after_close(tmp_path: Path) -> None:
    with opened(tmp_path / "t", Adagrad(), **SETTINGS) as rows:
        rows.close()
        rows.close()
        with pytest.raises(StateError, match=r"cannot be used after close\(\)"):
            rows.read(np.array([1]))
        assert not list(tmp_path.rglob("*.spill"))


def test_each_row_has_the_next_entry_of_its_batch() -> None:
    batches, seen = np.array([2, 0, 2, 2, 1, 0]), np.array([10, 20, 30])
    assert _entries(batches, seen).tolist() == [30, 10, 31, 32, 20, 11]
    assert seen.tolist() == [12, 21, 33]
