"""The epoch order: addressed, complete, and the same union for any world size."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from gloader.core.order import Draws, EpochOrder, epoch_permutation
from gloader.errors import ConfigError, SeedError
from gloader.types import BatchId


def _order(num_seeds: int = 100, batch_size: int = 16, **settings: object) -> EpochOrder:
    seeds = np.arange(num_seeds, dtype=np.int64) * 3
    return EpochOrder(seeds=seeds, num_nodes=1000, batch_size=batch_size, seed=7, **settings)  # type: ignore[arg-type]


def test_permutation_is_a_permutation_and_depends_on_seed_and_epoch_alone() -> None:
    first = epoch_permutation(1000, seed=1, epoch=2)
    np.testing.assert_array_equal(np.sort(first), np.arange(1000))
    np.testing.assert_array_equal(first, epoch_permutation(1000, seed=1, epoch=2))
    assert not np.array_equal(first, epoch_permutation(1000, seed=1, epoch=3))
    assert not np.array_equal(first, epoch_permutation(1000, seed=2, epoch=2))
    assert not np.array_equal(first, epoch_permutation(1000, seed=2, epoch=1))


def test_permutation_is_golden() -> None:
    assert (
        epoch_permutation(10, seed=0, epoch=0).tolist() == epoch_permutation(10, seed=2**64, epoch=0).tolist()
    )
    assert epoch_permutation(8, seed=0, epoch=0).tolist() == GOLDEN


GOLDEN = [2, 4, 6, 5, 1, 7, 0, 3]


@pytest.mark.parametrize("num_items", [8191, 8192, 8193, 20_000])
def test_a_permutation_longer_than_a_piece_sorts_the_same_hashes(num_items: int) -> None:
    def mix(x: np.ndarray) -> np.ndarray:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    golden = np.uint64(0x9E3779B97F4A7C15)
    key = mix(mix(np.array([5], np.uint64)) + np.array([3], np.uint64) * golden)
    expected = np.argsort(mix(np.arange(1, num_items + 1, dtype=np.uint64) * golden + key))
    np.testing.assert_array_equal(epoch_permutation(num_items, seed=5, epoch=3), expected)


def test_the_positions_of_the_last_epochs_are_worked_out_once_and_read_only() -> None:
    order = _order(300)
    with ThreadPoolExecutor(8) as pool:
        asked = list(pool.map(lambda _: order.epoch_positions(1), range(32)))
    first = asked[0]
    assert all(positions is first for positions in asked)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    order.epoch_positions(2)
    order.epoch_positions(0)
    assert order.epoch_positions(1) is first, "asked for again, it stays"
    order.epoch_positions(3)
    order.epoch_positions(4)
    assert order.epoch_positions(1) is first
    for epoch in (5, 6, 7):
        order.epoch_positions(epoch)
    again = order.epoch_positions(1)
    assert again is not first, "three epochs are held"
    np.testing.assert_array_equal(again, first)


def test_an_order_with_another_seed_holds_other_positions() -> None:
    order = _order()
    order.epoch_positions(0)
    other = replace(order, seed=8)
    np.testing.assert_array_equal(other.epoch_positions(0), epoch_permutation(100, seed=8, epoch=0))


def test_permutation_places_every_item_everywhere() -> None:
    counts = np.zeros((8, 8), dtype=np.int64)
    for epoch in range(4000):
        counts[np.arange(8), epoch_permutation(8, seed=5, epoch=epoch)] += 1
    chi_square = ((counts - 500.0) ** 2 / 500.0).sum()
    assert chi_square < 93.2  # 49 degrees of freedom, p = 1e-4 is 93.2


@pytest.mark.reliability("C10")
@pytest.mark.parametrize(("drop_last", "batches", "last"), [(False, 7, 4), (True, 6, 16)])
def test_batches_partition_the_seeds(drop_last: bool, batches: int, last: int) -> None:
    order = _order(drop_last=drop_last)
    ordered = order.epoch_seeds(3)
    parts = [order.batch_seeds(ordered, i) for i in range(order.num_batches)]
    assert order.num_batches == batches
    assert len(parts[-1]) == last
    np.testing.assert_array_equal(np.concatenate(parts), ordered[: sum(map(len, parts))])
    np.testing.assert_array_equal(np.sort(ordered), order.seeds)


@pytest.mark.reliability("C10")
@pytest.mark.parametrize("batch_size", [0, -1, 101])
def test_impossible_batch_sizes_are_refused(batch_size: int) -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        _order(batch_size=batch_size)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_every_step_of_one_stream(world_size: int) -> None:
    single = _order(batch_size=16)
    ranks = [_order(batch_size=16 // world_size, rank=r, world_size=world_size) for r in range(world_size)]
    assert {rank.num_batches for rank in ranks} == {single.num_batches}
    ordered = single.epoch_seeds(1)
    for index in range(single.num_batches):
        union = np.concatenate([rank.batch_seeds(rank.epoch_seeds(1), index) for rank in ranks])
        np.testing.assert_array_equal(union, single.batch_seeds(ordered, index))


@pytest.mark.reliability("C7")
def test_no_seeds_means_no_batches_and_is_refused_for_several_ranks() -> None:
    assert _order(num_seeds=0).num_batches == 0
    with pytest.raises(SeedError, match="wait forever"):
        _order(num_seeds=0, world_size=2)


@pytest.mark.reliability("C1")
@pytest.mark.parametrize("bad", [-1, 1000, 2**31, -(2**31), 2**40])
def test_seeds_out_of_range_are_listed(bad: int) -> None:
    with pytest.raises(SeedError, match=str(bad)):
        EpochOrder(seeds=np.array([1, bad], dtype=np.int64), num_nodes=1000, batch_size=1, seed=0)


@pytest.mark.reliability("C8")
def test_repeated_seeds_are_listed() -> None:
    with pytest.raises(SeedError, match=r"repeat.*\[5\]"):
        EpochOrder(seeds=np.array([5, 3, 5], dtype=np.int64), num_nodes=1000, batch_size=1, seed=0)


def test_positions_address_what_is_held_per_seed() -> None:
    for settings in ({}, {"shuffle": False}, {"seed_blocks": 4}):
        order = _order(**settings)
        positions, ordered = order.epoch_positions(2), order.epoch_seeds(2)
        assert positions.dtype == np.int64
        np.testing.assert_array_equal(order.seeds[positions], ordered)
        for index in range(order.num_batches):
            np.testing.assert_array_equal(
                order.seeds[order.batch_seeds(positions, index)], order.batch_seeds(ordered, index)
            )


def test_an_epoch_of_single_seeds_is_golden() -> None:
    assert _order(8, 4).epoch_seeds(3).tolist() == GOLDEN_SEEDS
    assert _order(8, 4, seed_blocks=1).epoch_seeds(3).tolist() == GOLDEN_SEEDS
    assert _order(8, 4, seed_blocks=3).epoch_seeds(3).tolist() == GOLDEN_BLOCKS


GOLDEN_SEEDS = [9, 3, 6, 0, 15, 21, 18, 12]
GOLDEN_WINDOWS = [21, 6, 18, 24, 0, 3, 30, 12, 27, 15, 9, 33]
GOLDEN_BLOCKS = [12, 15, 18, 3, 6, 9, 21, 0]


@pytest.mark.parametrize("bad", [0, -3, 65])
def test_impossible_seed_blocks_are_refused(bad: int) -> None:
    with pytest.raises(ConfigError, match=rf"seed_blocks is {bad}; it must be in 1\.\.64"):
        _order(batch_size=16, world_size=4, seed_blocks=bad)


def test_a_block_may_be_as_large_as_a_window() -> None:
    assert _order(batch_size=16, world_size=4, seed_blocks=128, seed_window=2).seed_blocks == 128
    with pytest.raises(
        ConfigError, match=r"seed_blocks is 129; it must be in 1\.\.128, .* in the 2 steps of a window"
    ):
        _order(batch_size=16, world_size=4, seed_blocks=129, seed_window=2)
    with pytest.raises(ConfigError, match="seed_window is 0; it must be at least 1"):
        _order(batch_size=16, seed_window=0)


def test_a_window_of_blocks_keeps_its_order() -> None:
    """Streams are addressed by (seed, epoch): a change here would break saved states."""
    assert _order(12, 2, seed_blocks=3, seed_window=3).epoch_seeds(3).tolist() == GOLDEN_WINDOWS


def test_without_shuffle_seed_blocks_change_nothing() -> None:
    order = _order(shuffle=False, seed_blocks=8)
    np.testing.assert_array_equal(order.epoch_seeds(1), order.seeds)


def test_batches_are_whole_blocks_where_blocks_divide_the_batch() -> None:
    random = np.random.default_rng(4)
    order = EpochOrder(
        seeds=random.permutation(5000)[:1003], num_nodes=5000, batch_size=32, seed=1, seed_blocks=8
    )
    rank = {seed: place for place, seed in enumerate(np.sort(order.seeds).tolist())}
    for epoch in range(3):
        ordered = order.epoch_seeds(epoch)
        for index in range(order.num_batches - 1):
            places = np.array([rank[seed] for seed in order.batch_seeds(ordered, index).tolist()]).reshape(
                -1, 8
            )
            assert (np.diff(places, axis=1) % 1003 == 1).all()


def test_every_seed_is_equally_likely_to_come_last() -> None:
    order = _order(21, 8, seed_blocks=4, drop_last=True)  # two batches; 4 + 1 seeds are dropped
    dropped = np.zeros(21, dtype=np.int64)
    for epoch in range(4000):
        dropped[order.epoch_positions(epoch)[16:]] += 1
    expected = 4000 * 5 / 21
    assert ((dropped - expected) ** 2 / expected).sum() < 52.4  # 20 degrees of freedom, p = 1e-4


# --- draws of groups --------------------------------------------------------------------------------------------

GROUPS = np.repeat([0, 2, 5], [70, 27, 3])  # of 100 items


@pytest.mark.parametrize("num_draws", [3, 102, 300])
def test_every_group_is_drawn_equally_often_and_its_items_too(num_draws: int) -> None:
    draws = Draws(num_draws=num_draws, groups=GROUPS)
    for epoch in range(3):
        drawn = draws.positions(100, seed=7, epoch=epoch)
        assert np.bincount(GROUPS[drawn])[[0, 2, 5]].tolist() == [num_draws // 3] * 3
        for group in (0, 2, 5):
            counts = np.bincount(drawn, minlength=100)[group == GROUPS]
            assert counts.max() - counts.min() <= 1
        np.testing.assert_array_equal(drawn, draws.positions(100, seed=7, epoch=epoch))
        assert not np.array_equal(drawn, draws.positions(100, seed=7, epoch=epoch + 1))
        assert num_draws == 3 or not np.array_equal(drawn, draws.positions(100, seed=8, epoch=epoch))


def test_groups_are_mixed_in_an_epoch_and_all_items_are_drawn_in_some() -> None:
    draws = Draws(num_draws=102, groups=GROUPS)
    drawn = [draws.positions(100, seed=7, epoch=epoch) for epoch in range(12)]
    assert len(np.unique(np.concatenate(drawn))) == 100
    # The first and the last third of an epoch have some of each group.
    for part in (drawn[0][:34], drawn[0][68:]):
        assert len(np.unique(GROUPS[part])) == 3


def test_ranks_share_the_draws_of_groups() -> None:
    """The steps of two ranks are those of one with twice the batch."""
    draws = Draws(num_draws=102, groups=GROUPS)
    whole = _order(batch_size=16, draws=draws, may_repeat=True)
    for index in range(whole.num_batches):
        batch = BatchId(epoch=1, index=index)
        parts = [
            _order(batch_size=8, draws=draws, may_repeat=True, rank=rank, world_size=2).drawn_positions(batch)
            for rank in (0, 1)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole.drawn_positions(batch))


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (Draws(num_draws=6, groups=GROUPS[:9]), "9 groups for 100 seeds; give one for each seed"),
        (Draws(num_draws=100, groups=GROUPS), "100 draws from 3 groups; give a multiple"),
        (Draws(num_draws=6, groups=GROUPS, replace=False), "neither weights nor replace=False"),
        (Draws(num_draws=6, groups=GROUPS, weights=np.ones(100)), "neither weights nor replace=False"),
    ],
)
def test_groups_that_do_not_fit_are_refused(draws: Draws, message: str) -> None:
    with pytest.raises(SeedError, match=message):
        _order(batch_size=6, draws=draws, may_repeat=True)


def test_draws_of_groups_are_facts_of_their_own() -> None:
    assert Draws(num_draws=6, groups=GROUPS).facts()["is_grouped"]
    assert "is_grouped" not in Draws(num_draws=6).facts()
