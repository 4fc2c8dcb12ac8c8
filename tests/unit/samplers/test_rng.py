"""The hash: against its plain twin, against published values, and at the edges of a bounded draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from unit.samplers import oracle

from gloader.samplers import rng

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = [0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF]


@pytest.fixture(autouse=True)
def wrapping_hashes() -> Iterator[None]:
    with np.errstate(over="ignore"):  # interpreted kernels multiply numpy scalars
        yield


def test_splitmix64_gives_its_published_stream() -> None:
    # splitmix64 seeded with 1234567 (the test vector of Rosetta Code's pseudo-random page)
    stream = [int(rng.word(np.uint64(1234567), np.uint64(i))) for i in range(5)]
    assert stream == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("key", KEYS)
def test_words_keys_and_units_equal_their_twin(key: int) -> None:
    for index in (0, 1, 7, 2**40, 2**40 + 3):
        assert int(rng.word(np.uint64(key), np.uint64(index))) == oracle.word(key, index)
        assert rng.unit(np.uint64(key), index) == oracle.unit(key, index)
        assert int(rng.node_key(np.uint64(key), index)) == oracle.node_key(key, index)


@pytest.mark.parametrize("fields", [(0, 0, 0, 0), (7, 1, 2, 3), (2**64 - 1, 5, 2**40, 1), (3, -1, 0, 2)])
def test_layer_keys_equal_their_twin(fields: tuple[int, ...]) -> None:
    assert int(rng.layer_key(*fields)) == oracle.layer_key(*fields)


def test_layer_keys_take_numpy_integers_and_differ_in_every_field() -> None:
    assert rng.layer_key(*(np.int64(field) for field in (1, 2, 3, 4))) == rng.layer_key(1, 2, 3, 4)
    addresses = {(s, e, b, h) for s in range(4) for e in range(4) for b in range(4) for h in range(4)}
    assert len({int(rng.layer_key(*address)) for address in addresses}) == len(addresses)


BOUNDS = [1, 2, 3, 10, 64, 2**16 + 1, 2**31 - 1, 3 * 2**30, 2**32 - 1, 2**32, 2**33 + 5, 2**62 - 1]


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounded_draws_equal_their_twin_and_stay_below_the_bound(bound: int) -> None:
    for key in KEYS:
        for draw in range(12):
            value = int(rng.bounded(np.uint64(key), draw, bound))
            assert value == oracle.bounded(key, draw, bound)
            assert 0 <= value < bound


def test_a_draw_is_rejected_when_its_bits_would_bias_it() -> None:
    # With 3 * 2**30 possible values a quarter of the 32-bit patterns is refused; the twin says which.
    bound = 3 * 2**30
    bits = [oracle.word(5, draw // 2) >> (32 * (draw % 2)) & (2**32 - 1) for draw in range(400)]
    rejected = [draw for draw, b in enumerate(bits) if b * bound % 2**32 < 2**32 % bound]
    assert 60 < len(rejected) < 140
    for draw in rejected:
        assert int(rng.bounded(np.uint64(5), draw, bound)) == oracle.bounded(5, draw, bound)
        assert int(rng.bounded(np.uint64(5), draw, bound)) != bits[draw] * bound >> 32


def test_large_products_are_exact() -> None:
    for bits in (1, 2**32 - 1, 2**63 + 12345, 2**64 - 1):
        for bound in (1, 2**32 - 1, 2**40 + 7, 2**62 - 1):
            assert int(rng.bounded_64(np.uint64(bits), np.uint64(bound))) == bits * bound >> 64


def test_units_are_in_the_half_open_interval() -> None:
    values = [rng.unit(np.uint64(key), draw) for key in KEYS for draw in range(50)]
    assert min(values) > 0
    assert max(values) <= 1
