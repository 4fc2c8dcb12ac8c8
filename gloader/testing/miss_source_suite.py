"""The conformance suite of miss sources: a test class inherits it and says how one is made."""

# ruff: noqa: S101 - tests that are shipped, for sources elsewhere to inherit

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.errors import PlanError, ShapeError
from gloader.ssd_store import FeatureStore
from gloader.testing.feature_arrays import make_features, same_bits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.ssd_store import MissSource
    from gloader.types import IdArray

NUM_ROWS = 700
DIM = 100  # rows of 400 bytes, some of which straddle pages
_OUT_ROWS = NUM_ROWS + 3


def make_misses(*, seed: int = 0) -> list[IdArray]:
    """Return the missing rows of 6 batches: sparse, none, dense, the same again, a range, both ends. Pure."""
    random = np.random.default_rng(seed)
    dense = np.flatnonzero(random.random(NUM_ROWS) < 0.4)
    sparse = np.flatnonzero(random.random(NUM_ROWS) < 0.02)
    ends = np.array([0, NUM_ROWS - 1])
    return [sparse, np.zeros(0, np.int64), dense, dense.copy(), np.arange(90, 160), ends]


class MissSourceSuite:
    """Checks of every `MissSource`. A test class inherits them and gives `open_source`."""

    is_prepared = True  # False for a source that reads whatever rows a batch asks for

    def open_source(
        self, store: FeatureStore, misses: Sequence[IdArray], tmp_path: Path
    ) -> AbstractContextManager[MissSource]:
        """Open a source; leaving the context releases whatever it was made of.

        Parameters
        ----------
        store : holds the rows
        misses : the missing rows of each batch of the superbatch, ascending
        tmp_path : a folder for files
        """
        raise NotImplementedError

    @pytest.fixture
    def misses(self) -> list[IdArray]:
        """Give the missing rows of each batch."""
        return make_misses()

    @pytest.fixture(params=["float32", "float16"])
    def features(self, request: pytest.FixtureRequest) -> NDArray[Any]:
        """Give the stored rows."""
        return make_features(NUM_ROWS, DIM, request.param)

    @pytest.fixture
    def store(self, features: NDArray[Any], tmp_path: Path) -> Iterator[FeatureStore]:
        """Give a store of ``features``."""
        FeatureStore.create(tmp_path / "store", features).close()
        with FeatureStore.open(tmp_path / "store") as store:
            yield store

    @pytest.fixture
    def source(self, store: FeatureStore, misses: list[IdArray], tmp_path: Path) -> Iterator[MissSource]:
        """Give a source of ``misses``."""
        folder = tmp_path / "source"
        folder.mkdir()
        with self.open_source(store, misses, folder) as source:
            yield source

    def test_every_batch_gets_its_rows(
        self, source: MissSource, misses: list[IdArray], features: NDArray[Any]
    ) -> None:
        """Row i goes to ``out[at[i]]``, as stored or as float32; nothing else of ``out`` changes."""
        random = np.random.default_rng(1)
        for expected in (features, features.astype(np.float32)):
            # In any order, and each twice: reading must not consume a batch, only `release` does.
            for batch in random.permutation(len(misses)).tolist():
                rows = misses[batch]
                at = random.permutation(_OUT_ROWS)[: len(rows)]
                right = np.full((_OUT_ROWS, DIM), 7, expected.dtype)
                right[at] = expected[rows]
                out = np.full_like(right, 7)
                stats = source.read_into(batch, rows, out, at=at)
                assert same_bits(out, right)
                assert stats.rows == len(rows)

    def test_says_how_it_works_and_what_that_took(self, source: MissSource) -> None:
        """`explain` and the epoch's statistics name the strategy and count its reads and writes."""
        assert source.strategy in ("direct", "staged", "packed")
        cost = source.cost
        assert min(cost.read.rows, cost.read.requests, cost.read.bytes_read) >= 0
        assert (cost.writes == 0) == (cost.bytes_written == 0)

    def test_a_released_batch_takes_no_other_with_it(
        self, source: MissSource, misses: list[IdArray], features: NDArray[Any]
    ) -> None:
        """Batches are released one by one, and more than once, while later ones are still read."""
        expected = features.astype(np.float32)
        for batch, rows in enumerate(misses):
            out = np.empty((len(rows), DIM), np.float32)
            source.read_into(batch, rows, out, at=np.arange(len(rows)))
            assert same_bits(out, expected[rows])
            source.release(batch)
            source.release(batch)

    def test_closing_twice_is_closing_once(self, source: MissSource) -> None:
        """`close` is idempotent, before and after batches were released."""
        source.release(0)
        source.close()
        source.close()
        source.release(1)

    def test_what_does_not_fit_is_refused(self, source: MissSource, misses: list[IdArray]) -> None:
        """Wrong shapes and positions are found before a byte is written."""
        rows = misses[4]
        at = np.arange(len(rows))
        for out in (np.zeros((len(rows), DIM + 1), np.float32), np.zeros((len(rows), DIM), np.int32)):
            with pytest.raises(ShapeError):
                source.read_into(4, rows, out, at=at)
        out = np.zeros((len(rows), DIM), np.float32)
        for wrong in (at[1:], at + 1):
            with pytest.raises(ShapeError):
                source.read_into(4, rows, out, at=wrong)
        assert not out.any()

    def test_rows_that_do_not_exist_are_refused(self, source: MissSource) -> None:
        """A row beyond the store's end is named, and nothing is written."""
        out = np.zeros((2, DIM), np.float32)
        with pytest.raises(ShapeError, match="out of range"):
            source.read_into(5, np.array([0, NUM_ROWS]), out, at=np.arange(2))
        assert not out.any()

    def test_rows_of_another_plan_are_refused(self, source: MissSource, misses: list[IdArray]) -> None:
        """A prepared source serves the rows it was made from; others are an error, never wrong bytes."""
        if not self.is_prepared:
            return
        absent = np.setdiff1d(np.arange(NUM_ROWS), np.concatenate(misses))[:2]
        out = np.zeros((2, DIM), np.float32)
        with pytest.raises(
            PlanError, match=f"batch 5 asks for other rows than those that were {source.strategy}"
        ):
            source.read_into(5, absent, out, at=np.arange(2))
        for batch in (-1, len(misses)):
            with pytest.raises(ShapeError, match=f"batch {batch} is not one of the superbatch's 6"):
                source.read_into(batch, misses[5], out, at=np.arange(2))
        with pytest.raises(ShapeError, match="missing rows must ascend"):
            source.read_into(5, misses[5][::-1], out, at=np.arange(2))
        assert not out.any()
