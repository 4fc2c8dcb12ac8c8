"""The order of the rows of a table: a permutation that is computed, cut into batches."""

from collections import Counter

import numpy as np
import pytest

from gloader.core.order import EpochOrder, RowOrder, epoch_permutation, permuted_range
from gloader.errors import ConfigError, SeedError
from gloader.types import BatchId

MANY = 70_001  # more than are held, and no power of two


def _rows(order: RowOrder, epoch: int) -> np.ndarray:
    return np.concatenate(
        [
            order.batch_items(BatchId(epoch=epoch, index=index), rank=rank)
            for index in range(order.num_batches)
            for rank in range(order.world_size)
        ]
    )


@pytest.mark.parametrize("num_rows", [1, 2, 5, 1000, 65_536, 65_537, MANY])
@pytest.mark.parametrize("epoch", [0, 3])
def test_every_row_comes_once_in_an_epoch(num_rows: int, epoch: int) -> None:
    order = RowOrder(num_items=num_rows, batch_size=min(num_rows, 512), seed=7)
    found = _rows(order, epoch)
    assert np.array_equal(np.sort(found), np.arange(num_rows))
    if num_rows > 1000:
        assert not np.array_equal(found, np.arange(num_rows))


@pytest.mark.parametrize("num_items", [1, 2, 3, 4, 5, 17, 255, 256, 257, 4097])
def test_the_computed_permutation_is_one_of_any_number_of_items(num_items: int) -> None:
    found = permuted_range(0, num_items, num_items, seed=1, epoch=2)
    assert np.array_equal(np.sort(found), np.arange(num_items))
    parts = [permuted_range(at, at + 1, num_items, seed=1, epoch=2) for at in range(num_items)]
    assert np.array_equal(np.concatenate(parts), found)


def test_orders_differ_by_seed_and_epoch_and_repeat_for_equal_ones() -> None:
    def order(seed: int, epoch: int) -> bytes:
        return permuted_range(0, MANY, MANY, seed=seed, epoch=epoch).tobytes()

    assert len({order(seed, epoch) for seed in (0, 1, -1) for epoch in (0, 1)}) == 6
    assert order(5, 4) == order(5, 4)


def test_places_and_neighbours_are_evenly_spread() -> None:
    num_items = 1 << 18
    found = permuted_range(0, num_items, num_items, seed=3, epoch=1)
    # Rows of the first sixteenth over the sixteenths of the epoch: 1,024 expected in each.
    places = np.empty(num_items, np.int64)
    places[found] = np.arange(num_items)
    counts = np.bincount(places[: num_items // 16] // (num_items // 16), minlength=16)
    chi = float(((counts - 1024) ** 2 / 1024).sum())
    assert chi < 40  # of 15 degrees of freedom: 1 in 2,000
    # Who follows row i is not near it.
    assert np.mean(np.abs(np.diff(found)) < num_items // 100) < 0.03


def test_the_permutation_cannot_change() -> None:
    # States that are saved point into it.
    assert permuted_range(0, 5, 1_000_003, seed=11, epoch=2).tolist() == GOLDEN


GOLDEN = [263719, 838539, 187011, 155094, 407510]


def test_few_rows_come_in_the_order_of_node_seeds() -> None:
    order = RowOrder(num_items=100, batch_size=10, seed=4)
    assert np.array_equal(_rows(order, 2), epoch_permutation(100, seed=4, epoch=2))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 3])
def test_batches_and_ranks_are_cut_as_those_of_nodes(world_size: int, drop_last: bool) -> None:
    common = {"batch_size": 7, "seed": 4, "drop_last": drop_last, "world_size": world_size}
    rows = RowOrder(num_items=100, **common)  # type: ignore[arg-type]
    nodes = EpochOrder(seeds=np.arange(100), num_nodes=100, **common)  # type: ignore[arg-type]
    assert rows.num_batches == nodes.num_batches
    for index in range(rows.num_batches):
        batch = BatchId(epoch=1, index=index)
        for rank in range(world_size):
            assert np.array_equal(rows.batch_items(batch, rank=rank), nodes.seeds_of(batch, rank=rank))


def test_without_shuffle_rows_come_as_they_are() -> None:
    order = RowOrder(num_items=MANY, batch_size=512, seed=4, shuffle=False)
    assert np.array_equal(_rows(order, 3), np.arange(MANY))


def test_rows_become_what_they_are_expanded_to() -> None:
    calls: Counter[BatchId] = Counter()

    def expand(batch: BatchId, rows: np.ndarray) -> np.ndarray:
        calls[batch] += 1
        return rows + 1000

    order = RowOrder(num_items=10, batch_size=5, seed=0, expand=expand)
    batch = BatchId(epoch=0, index=1)
    assert np.array_equal(order.seeds_of(batch), order.batch_items(batch) + 1000)
    assert calls == {batch: 1}


def test_what_gives_no_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"batch_size 11 is larger than the 10 edges; lower batch_size"):
        RowOrder(num_items=10, batch_size=11, seed=0)
    with pytest.raises(
        ConfigError, match=r"seed_blocks is 2; rows of a table have no neighbours: it must be 1"
    ):
        RowOrder(num_items=10, batch_size=5, seed=0, seed_blocks=2)
    with pytest.raises(
        ConfigError, match="seed_window is 2; rows of a table have no neighbours: it must be 1"
    ):
        RowOrder(num_items=10, batch_size=5, seed=0, seed_window=2)
    with pytest.raises(SeedError, match=r"1 edges give 2 ranks no batch; they would wait forever"):
        RowOrder(num_items=1, batch_size=1, seed=0, world_size=2)
    assert RowOrder(num_items=0, batch_size=5, seed=0).num_batches == 0
