"""Ids are one-dimensional integers within a range, and nothing else becomes an id."""

import numpy as np
import pytest

from gloader.core.ids import as_ids, outside
from gloader.errors import GloaderError, SeedError, ShapeError


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64, ">i8", np.int64])
def test_integers_of_any_width_become_int64(dtype: str) -> None:
    ids = as_ids(np.array([3, 0, 7], dtype), noun="ids", error=SeedError)
    assert ids.dtype == np.int64
    assert ids.tolist() == [3, 0, 7]


def test_int64_is_not_copied_and_strides_are_closed() -> None:
    given = np.arange(6)
    assert as_ids(given, noun="ids", error=SeedError) is given
    assert as_ids(given[::2], noun="ids", error=SeedError).flags.c_contiguous


def test_no_ids_may_have_any_dtype() -> None:
    assert as_ids([], noun="ids", error=SeedError).dtype == np.int64


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.zeros((1, 2), np.int64), r"seeds have shape \(1, 2\); they must have one dimension"),
        (np.int64(3), r"seeds have shape \(\); they must have one dimension"),
        (np.array([1.0]), "seeds have dtype float64; they must be integers"),
        (np.array([True]), "seeds have dtype bool; they must be integers"),
        (np.array(["1"]), "seeds have dtype <U1; they must be integers"),
        (np.array([1, 2**63], np.uint64), r"below 2\*\*63; these are not: \[9223372036854775808\]"),
    ],
)
@pytest.mark.parametrize("error", [SeedError, ShapeError])
def test_anything_else_is_refused_in_the_class_and_the_noun_of_the_caller(
    values: np.ndarray, text: str, error: type[GloaderError]
) -> None:
    with pytest.raises(error, match=text):
        as_ids(values, noun="seeds", error=error)


@pytest.mark.parametrize(
    ("ids", "wrong"), [([], []), ([0, 9], []), ([-1, 0], [-1]), ([9, 10, -3], [10, -3]), ([10], [10])]
)
def test_what_lies_outside_is_returned_in_order(ids: list[int], wrong: list[int]) -> None:
    assert outside(np.array(ids, np.int64), 10).tolist() == wrong


def test_nothing_is_inside_an_empty_range() -> None:
    assert outside(np.array([0]), 0).tolist() == [0]
