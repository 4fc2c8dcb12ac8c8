"""Every epoch takes every seed once, for any number of seeds, batch size, blocks and ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from gloader.core.order import EpochOrder, block_permutation, epoch_permutation, shuffled_windows


@given(
    num_items=st.integers(0, 300),
    block=st.integers(1, 40),
    seed=st.integers(-5, 2**64),
    epoch=st.integers(0, 9),
)
def test_blocks_of_neighbours_are_permuted(num_items: int, block: int, seed: int, epoch: int) -> None:
    found = block_permutation(num_items, block, seed=seed, epoch=epoch)
    np.testing.assert_array_equal(np.sort(found), np.arange(num_items))
    for start in range(0, num_items, block):
        part = found[start : start + block].tolist()
        assert part == [(part[0] + i) % num_items for i in range(len(part))]


@given(
    num_items=st.integers(0, 300),
    block=st.integers(1, 40),
    window=st.integers(1, 90),
    seed=st.integers(-5, 2**64),
    epoch=st.integers(0, 9),
)
def test_windows_keep_their_blocks_and_shuffle_their_rows(
    num_items: int, block: int, window: int, seed: int, epoch: int
) -> None:
    blocks = block_permutation(num_items, block, seed=seed, epoch=epoch)
    found = shuffled_windows(blocks, window, seed=seed, epoch=epoch)
    for start in range(0, num_items, window):
        part, whole = found[start : start + window], blocks[start : start + window]
        np.testing.assert_array_equal(np.sort(part), np.sort(whole))
        # So a window is read in one range for each block that it has a part of, and one more where ids begin anew.
        ranges = 1 + np.count_nonzero(np.diff(np.sort(part)) != 1)
        assert ranges <= (len(part) - 1) // block + 3


@given(seed=st.integers(0, 2**64), epoch=st.integers(0, 9))
def test_windows_differ_by_window_epoch_and_seed(seed: int, epoch: int) -> None:
    rows = np.arange(80)
    first, second = np.split(shuffled_windows(rows, 40, seed=seed, epoch=epoch), 2)
    assert first.tolist() != (second - 40).tolist()
    assert first.tolist() != rows[:40].tolist()
    for other in ({"seed": seed + 1, "epoch": epoch}, {"seed": seed, "epoch": epoch + 1}):
        assert shuffled_windows(rows, 40, **other)[:40].tolist() != first.tolist()


@given(num_items=st.integers(0, 300), seed=st.integers(0, 2**64), epoch=st.integers(0, 9))
def test_a_permutation_is_what_a_stable_sort_of_its_keys_gives(num_items: int, seed: int, epoch: int) -> None:
    found = epoch_permutation(num_items, seed=seed, epoch=epoch).tolist()
    assert found == sorted(range(num_items), key=lambda i: _mix((i + 1) * _GOLDEN + _key(seed, epoch)))


_GOLDEN, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def _mix(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _key(seed: int, epoch: int) -> int:
    return _mix(_mix(seed) + epoch * _GOLDEN)


@given(
    num_seeds=st.integers(1, 200),
    batch_size=st.integers(1, 50),
    world_size=st.integers(1, 4),
    seed_blocks=st.integers(1, 60),
    seed_window=st.integers(1, 5),
    drop_last=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_every_seed_is_taken_once(
    num_seeds: int,
    batch_size: int,
    world_size: int,
    seed_blocks: int,
    seed_window: int,
    drop_last: bool,
    epoch: int,
) -> None:
    assume(batch_size <= num_seeds and seed_blocks <= batch_size * world_size * seed_window)
    assume(num_seeds >= batch_size * world_size)
    seeds = np.random.default_rng(num_seeds).permutation(1000)[:num_seeds]
    ranks = [
        EpochOrder(
            seeds=seeds,
            num_nodes=1000,
            batch_size=batch_size,
            seed=3,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            seed_blocks=seed_blocks,
            seed_window=seed_window,
        )
        for rank in range(world_size)
    ]
    ordered = ranks[0].epoch_seeds(epoch)
    np.testing.assert_array_equal(np.sort(ordered), np.sort(seeds))
    taken = [rank.batch_seeds(ordered, i) for i in range(ranks[0].num_batches) for rank in ranks]
    together = np.concatenate(taken)
    step = batch_size * world_size
    left = num_seeds % step
    expected = num_seeds - (left if drop_last or left < world_size else 0)
    assert len(together) == expected
    np.testing.assert_array_equal(together, ordered[:expected])
