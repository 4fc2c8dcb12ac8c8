"""The size of superbatches."""

from __future__ import annotations

from itertools import islice

import pytest

from gloader.errors import ConfigError
from gloader.ssd_store.cost.strategy import ramp, superbatch_sizes


@pytest.mark.parametrize(
    ("total", "sizes"),
    [(None, [2, 4, 8, 16, 32, 64, 128, 256, 512]), (0, [2]), (2, [2]), (5, [2, 4, 8]), (8, [2, 4, 8])],
)
def test_sizes_are_powers_of_two_up_to_the_whole_run(total: int | None, sizes: list[int]) -> None:
    assert list(superbatch_sizes(total)) == sizes


@pytest.mark.parametrize(
    ("size", "sizes"),
    [
        (1, [1, 1, 1]),
        (2, [1, 2, 2]),
        (16, [1, 2, 4, 8, 16, 16]),
        (12, [1, 2, 4, 8, 12, 12]),
        (3, [1, 2, 3, 3]),
    ],
)
def test_the_first_superbatches_are_small(size: int, sizes: list[int]) -> None:
    assert list(islice(ramp(size), len(sizes))) == sizes


def test_the_sizes_double_from_the_first_one() -> None:
    assert list(islice(ramp(12, 3), 4)) == [3, 6, 12, 12]


def test_an_empty_superbatch_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="a superbatch cannot have 0 batches"):
        ramp(0)
