"""Every epoch takes every seed once, for any number of seeds, batch size, blocks and ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from gloader.core.order import EpochOrder, block_permutation, epoch_permutation


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
    drop_last=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_every_seed_is_taken_once(
    num_seeds: int, batch_size: int, world_size: int, seed_blocks: int, drop_last: bool, epoch: int
) -> None:
    assume(batch_size <= num_seeds and seed_blocks <= batch_size * world_size)
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
