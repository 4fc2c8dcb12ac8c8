"""Conformance suites for feature sources and miss sources, with feature arrays of any bit pattern for their tests.

A feature source reads any rows of a feature matrix. A miss source reads the rows that the batches of one superbatch
miss in the host cache; a superbatch is a number of batches that are planned together. A test class inherits a suite
and makes the tested source. `make_features` and `widen` give the features and the expected float32 rows.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.core.dtypes import FEATURE_DTYPES, STORED_DTYPES
from gloader.errors import PlanError, ShapeError
from gloader.ssd_store import FeatureStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.ssd_store import MissSource
    from gloader.types import FeatureSource, IdArray


def make_features(num_rows: int, dim: int, dtype: str, *, seed: int = 0) -> NDArray[Any]:
    """Return features with any bit pattern, including NaNs with payloads. Pure.

    Parameters
    ----------
    num_rows : N
    dim : F
    dtype : a numpy dtype's name, or "bfloat16", which is stored as uint16
    seed : equal arguments give equal features

    Returns
    -------
    (N, F), C-contiguous.
    """
    stored = STORED_DTYPES[dtype].stored
    bits = np.random.default_rng(seed).integers(0, 256, num_rows * dim * stored.itemsize, dtype=np.uint8)
    return bits.view(stored).reshape(num_rows, dim)


def widen(array: NDArray[Any], dtype: str, scale: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Return stored rows as float32. A source must convert its rows to exactly the same values. Pure.

    Parameters
    ----------
    array : (N, F), as stored
    dtype : dtype of the elements, "bfloat16" if they are stored as uint16
    scale : (N,) factor of each int8 row, or None
    """
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):  # float16 signalling NaNs
        wide = array.astype(np.float32)
    return wide if scale is None else wide * scale[:, None]


def same_bits(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Return whether two arrays have the same dtype, shape and bits. NaNs with equal bits are equal. Pure."""
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


# ruff: noqa: S101 - tests that are shipped, for back ends elsewhere to inherit


DTYPES = FEATURE_DTYPES  # the tested dtypes of stored rows
DIMS = (1, 3, 100, 127, 128, 1023)  # the tested row widths


class FeatureSourceSuite:
    """Checks for every `FeatureSource`. A test class inherits them and provides `make_source`."""

    num_rows = 500

    def make_source(
        self, array: NDArray[Any], tmp_path: Path, *, dtype: str, scale: NDArray[np.float32] | None
    ) -> FeatureSource:
        """Return a source for the rows of ``array``.

        Parameters
        ----------
        array : (N, F), the stored rows
        tmp_path : an empty folder, for sources that need files
        dtype : one of `DTYPES`; bfloat16 is stored as uint16
        scale : (N,) factor of each int8 row for its conversion to float32; None for other dtypes
        """
        raise NotImplementedError

    def close_source(self, source: FeatureSource) -> None:
        """Release the source of `make_source`."""
        close = getattr(source, "close", None)
        if close is not None:
            close()

    @pytest.fixture
    def features(self) -> NDArray[np.float32]:
        """Features whose rows have 400 bytes, so that some of them straddle pages of 4 KiB."""
        return make_features(self.num_rows, 100, "float32")

    @pytest.fixture
    def source(self, features: NDArray[np.float32], tmp_path: Path) -> Any:
        """A source of ``features``."""
        source = self.make_source(features, tmp_path, dtype="float32", scale=None)
        yield source
        self.close_source(source)

    def test_describes_its_matrix(self, source: FeatureSource) -> None:
        """The shape and dtype match the matrix."""
        assert (source.num_rows, source.dim, source.dtype) == (self.num_rows, 100, np.dtype(np.float32))

    @pytest.mark.parametrize("dim", DIMS)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_gives_the_stored_bits(self, dtype: str, dim: int, tmp_path: Path) -> None:
        """Rows of any size and type come back bit for bit, the last partial page included."""
        array = make_features(61, dim, dtype)
        scale = np.linspace(0.5, 2, 61, dtype=np.float32) if STORED_DTYPES[dtype].has_scale else None
        source = self.make_source(array, tmp_path, dtype=dtype, scale=scale)
        try:
            rows = np.random.default_rng(1).integers(0, 61, 97)
            out = np.full((97, dim), 1, array.dtype)
            stats = source.read_into(rows, out)
            assert same_bits(out, array[rows])
            assert stats.rows == 97
            whole = np.empty_like(array)
            source.read_into(np.arange(61), whole)
            assert same_bits(whole, array)
        finally:
            self.close_source(source)

    @pytest.mark.parametrize("dtype", FEATURE_DTYPES[1:])
    @pytest.mark.parametrize("dim", [3, 128, 1632])
    def test_widens_to_float32(self, dtype: str, dim: int, tmp_path: Path) -> None:
        """Narrow types become float32 exactly as numpy converts them."""
        array = make_features(61, dim, dtype)
        scale = np.linspace(0.5, 2, 61, dtype=np.float32) if STORED_DTYPES[dtype].has_scale else None
        source = self.make_source(array, tmp_path, dtype=dtype, scale=scale)
        try:
            rows = np.random.default_rng(1).integers(0, 61, 97)
            out = np.empty((97, dim), np.float32)
            source.read_into(rows, out)
            assert same_bits(out, widen(array, dtype, scale)[rows])
        finally:
            self.close_source(source)

    @pytest.mark.parametrize(
        "rows",
        [[], [0], [499], [3, 3, 3], [499, 0], list(range(500)), list(range(499, -1, -1)), [7, 8, 9, 200, 9]],
        ids=["none", "first", "last", "repeated", "descending", "all", "all backwards", "mixed"],
    )
    def test_reads_rows_in_any_order(
        self, source: FeatureSource, features: NDArray[np.float32], rows: list[int]
    ) -> None:
        """Rows may be requested in any order, and several times."""
        wanted = np.array(rows, np.int64)
        out = np.full((len(rows), 100), 1, np.float32)
        assert source.read_into(wanted, out).rows == len(rows)
        assert same_bits(out, features[wanted])

    @pytest.mark.parametrize("row", [-1, 500, 2**31, 2**62, -(2**63)])
    def test_refuses_rows_out_of_range(self, source: FeatureSource, row: int) -> None:
        """The error names the wrong id, and nothing is written to ``out``."""
        out = np.zeros((2, 100), np.float32)
        with pytest.raises(ShapeError, match=rf"rows: 1 ids are out of range 0\.\.499: {row}"):
            source.read_into(np.array([0, row]), out)
        assert not out.any()

    def test_refuses_rows_that_are_not_ids(self, source: FeatureSource) -> None:
        """Floats, unsigned 64-bit integers and matrices are not accepted as ids."""
        out = np.zeros((2, 100), np.float32)
        for rows in (np.zeros(2), np.zeros(2, np.uint64), np.zeros((2, 1), np.int64)):
            with pytest.raises(ShapeError, match="one-dimensional array of int64"):
                source.read_into(rows, out)  # type: ignore[arg-type]

    def test_refuses_an_output_that_does_not_fit(self, source: FeatureSource) -> None:
        """Shape, dtype, order and writability are checked before any read."""
        rows = np.arange(2)
        locked = np.zeros((2, 100), np.float32)
        locked.flags.writeable = False
        for out in (
            np.zeros((3, 100), np.float32),
            np.zeros((2, 99), np.float32),
            np.zeros(200, np.float32),
            np.zeros((2, 100), np.float64),
            np.zeros((2, 100), np.int32),
            np.zeros((100, 2), np.float32).T,
            np.zeros((4, 100), np.float32)[::2],
            locked,
        ):
            with pytest.raises(ShapeError, match="out "):
                source.read_into(rows, out)

    def test_serves_several_threads_at_once(
        self, source: FeatureSource, features: NDArray[np.float32]
    ) -> None:
        """Concurrent callers each get their own rows."""

        def read(seed: int) -> bool:
            rows = np.random.default_rng(seed).integers(0, self.num_rows, 300)
            out = np.empty((300, 100), np.float32)
            source.read_into(rows, out)
            return same_bits(out, features[rows])

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(read, range(24)))


# ruff: noqa: S101 - tests that are shipped, for sources elsewhere to inherit


NUM_ROWS = 700
# Rows have 400 bytes as float32, and some of them straddle pages.
DIM = 100
_OUT_ROWS = NUM_ROWS + 3  # rows of the output: more than are read, to see that the others stay unchanged


def make_misses(*, seed: int = 0) -> list[IdArray]:
    """Return the missing rows of 6 batches, ascending ids. Pure.

    The batches miss few rows, none, many, the same many again, a range, and the first and last row.
    """
    random = np.random.default_rng(seed)
    dense = np.flatnonzero(random.random(NUM_ROWS) < 0.4)
    sparse = np.flatnonzero(random.random(NUM_ROWS) < 0.02)
    ends = np.array([0, NUM_ROWS - 1])
    return [sparse, np.zeros(0, np.int64), dense, dense.copy(), np.arange(90, 160), ends]


class MissSourceSuite:
    """Checks for every `MissSource`. A test class inherits them and provides `open_source`."""

    is_prepared = True  # False if the source can read any rows, not only the rows for which it was made

    def open_source(
        self, store: FeatureStore, misses: Sequence[IdArray], tmp_path: Path
    ) -> AbstractContextManager[MissSource]:
        """Open a source; leaving the context releases its resources.

        Parameters
        ----------
        store : the store with the rows
        misses : each batch's missing rows in the superbatch, ascending
        tmp_path : a folder for files
        """
        raise NotImplementedError

    @pytest.fixture
    def misses(self) -> list[IdArray]:
        """The missing rows of each batch."""
        return make_misses()

    @pytest.fixture(params=["float32", "float16"])
    def features(self, request: pytest.FixtureRequest) -> NDArray[Any]:
        """The stored rows."""
        return make_features(NUM_ROWS, DIM, request.param)

    @pytest.fixture
    def store(self, features: NDArray[Any], tmp_path: Path) -> Iterator[FeatureStore]:
        """A store of ``features``."""
        FeatureStore.create(tmp_path / "store", features).close()
        with FeatureStore.open(tmp_path / "store") as store:
            yield store

    @pytest.fixture
    def source(self, store: FeatureStore, misses: list[IdArray], tmp_path: Path) -> Iterator[MissSource]:
        """A source of ``misses``."""
        folder = tmp_path / "source"
        folder.mkdir()
        with self.open_source(store, misses, folder) as source:
            yield source

    def test_every_batch_gets_its_rows(
        self, source: MissSource, misses: list[IdArray], features: NDArray[Any]
    ) -> None:
        """The row ``rows[i]`` goes to ``out[at[i]]``, as stored or as float32. Nothing else in ``out`` changes."""
        random = np.random.default_rng(1)
        for expected in (features, features.astype(np.float32)):
            # Batches are read in any order, and each twice: only `release` consumes a batch.
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
        """A source has its strategy's name and its cost, for `explain` and the epoch's statistics."""
        assert source.strategy in ("direct", "staged", "packed")
        cost = source.cost
        assert min(cost.read.rows, cost.read.requests, cost.read.bytes_read) >= 0
        assert (cost.writes == 0) == (cost.bytes_written == 0)

    def test_a_released_batch_takes_no_other_with_it(
        self, source: MissSource, misses: list[IdArray], features: NDArray[Any]
    ) -> None:
        """Batches are released one by one, some more than once, while later batches are still read."""
        expected = features.astype(np.float32)
        for batch, rows in enumerate(misses):
            out = np.empty((len(rows), DIM), np.float32)
            source.read_into(batch, rows, out, at=np.arange(len(rows)))
            assert same_bits(out, expected[rows])
            source.release(batch)
            source.release(batch)

    def test_closing_twice_is_closing_once(self, source: MissSource) -> None:
        """`close` is idempotent, before and after the release of batches."""
        source.release(0)
        source.close()
        source.close()
        source.release(1)

    def test_what_does_not_fit_is_refused(self, source: MissSource, misses: list[IdArray]) -> None:
        """Wrong shapes and positions raise ShapeError before any byte is written."""
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
        """A row beyond the store's end raises ShapeError, and nothing is written."""
        out = np.zeros((2, DIM), np.float32)
        with pytest.raises(ShapeError, match="out of range"):
            source.read_into(5, np.array([0, NUM_ROWS]), out, at=np.arange(2))
        assert not out.any()

    def test_rows_of_another_plan_are_refused(self, source: MissSource, misses: list[IdArray]) -> None:
        """A prepared source serves only the rows for which it was made. Other rows are an error, never wrong bytes."""
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
