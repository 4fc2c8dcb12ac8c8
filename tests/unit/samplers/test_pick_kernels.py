"""Paths of the picking kernels that a small graph does not reach by itself."""

from __future__ import annotations

import numpy as np
import pytest
from unit.samplers import oracle

from gloader.samplers import pick_kernels, rng


def picked(degree: int, count: int, *, start: int, node: int, words: int = 64) -> list[int]:
    bits = np.zeros(words, dtype=np.uint64)
    indptr = np.array([0, count], dtype=np.int32)
    edge_ids = np.empty(count + pick_kernels.SLACK, dtype=np.int64)
    with np.errstate(over="ignore"):
        pick_kernels.pick_uniform(
            np.array([node]),
            np.array([start]),
            np.array([degree]),
            0,
            1,
            rng.layer_key(1, 0, 0, 0),
            indptr,
            edge_ids,
            bits,
        )
    assert not bits.any()
    return edge_ids[:count].tolist()


def expected(degree: int, count: int, *, start: int, node: int) -> list[int]:
    key = oracle.node_key(oracle.layer_key(1, 0, 0, 0), node)
    return [start + at for at in oracle.uniform(key, degree, count)]


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 60])
@pytest.mark.parametrize("degree", [61, 64, 65, 128, 5000, 2**31 - 1, 2**31, 2**32 + 7, 2**40])
def test_every_path_follows_floyd(degree: int, count: int) -> None:
    for node in range(20):
        for start in (0, 2**33 + 1):  # edge positions beyond 32 bits
            arguments = {"start": start, "node": node}
            assert picked(degree, count, **arguments) == expected(degree, count, **arguments)


def test_a_second_draw_that_repeats_the_first_takes_the_last_edge() -> None:
    # A repeat of so few draws is rare beyond 64 edges: one node in 65.
    repeats = 0
    for node in range(300):
        found = picked(65, 2, start=0, node=node)
        assert found == expected(65, 2, start=0, node=node)
        repeats += found[1] == 64
    assert repeats > 4


def test_a_folded_bit_set_is_checked_against_the_list() -> None:
    # One word for 3000 positions: most set bits belong to another position.
    for node in range(30):
        assert picked(3000, 40, start=5, node=node, words=1) == expected(3000, 40, start=5, node=node)


def test_draws_that_32_bits_cannot_decide() -> None:
    # Just above 2**30 * 3 values a quarter of the draws is rejected and takes the scalar path.
    for node in range(40):
        arguments = {"start": 0, "node": node}
        assert picked(3 * 2**29 + 5, 10, **arguments) == expected(3 * 2**29 + 5, 10, **arguments)


def test_slack_is_only_behind_the_last_edge() -> None:
    nodes, degrees = np.arange(3), np.array([100, 3, 100])
    starts = np.array([0, 100, 103])
    indptr = np.array([0, 2, 5, 7], dtype=np.int32)
    edge_ids = np.full(7 + pick_kernels.SLACK, -1, dtype=np.int64)
    key, bits = rng.layer_key(0, 0, 0, 0), np.zeros(64, dtype=np.uint64)
    with np.errstate(over="ignore"):
        pick_kernels.pick_uniform(nodes, starts, degrees, 0, 3, key, indptr, edge_ids, bits)
    assert edge_ids[2:5].tolist() == [100, 101, 102]
    assert (edge_ids[:2] < 100).all()
    assert (edge_ids[5:7] >= 103).all()
