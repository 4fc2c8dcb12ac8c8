"""The conformance suite of feature sources: a test class inherits it and says how one is made."""

# ruff: noqa: S101 - tests that are shipped, for back ends elsewhere to inherit

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.errors import ShapeError
from gloader.testing.feature_arrays import make_features, same_bits, widen

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import FeatureSource

DTYPES = ("float32", "float16", "bfloat16", "int8")
DIMS = (1, 3, 100, 127, 128, 1023)


class FeatureSourceSuite:
    """Checks of every `FeatureSource`. A test class inherits them and gives `make_source`."""

    num_rows = 500

    def make_source(
        self, array: NDArray[Any], tmp_path: Path, *, dtype: str, scale: NDArray[np.float32] | None
    ) -> FeatureSource:
        """Return a source of the rows of ``array``.

        Parameters
        ----------
        array : (N, F), the rows as they are stored
        tmp_path : an empty folder, for sources that need files
        dtype : one of `DTYPES`; bfloat16 is stored as uint16
        scale : (N,) what each int8 row is multiplied by where it becomes float32; None with other dtypes
        """
        raise NotImplementedError

    def close_source(self, source: FeatureSource) -> None:
        """Release what `make_source` made."""
        close = getattr(source, "close", None)
        if close is not None:
            close()

    @pytest.fixture
    def features(self) -> NDArray[np.float32]:
        """Some features whose rows straddle pages."""
        return make_features(self.num_rows, 100, "float32")

    @pytest.fixture
    def source(self, features: NDArray[np.float32], tmp_path: Path) -> Any:
        """Give a source of ``features``."""
        source = self.make_source(features, tmp_path, dtype="float32", scale=None)
        yield source
        self.close_source(source)

    def test_describes_its_matrix(self, source: FeatureSource) -> None:
        """The shape and dtype are those of the matrix."""
        assert (source.num_rows, source.dim, source.dtype) == (self.num_rows, 100, np.dtype(np.float32))

    @pytest.mark.parametrize("dim", DIMS)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_gives_the_stored_bits(self, dtype: str, dim: int, tmp_path: Path) -> None:
        """Rows of any size and type come back bit for bit, the last partial page included."""
        array = make_features(61, dim, dtype)
        scale = np.linspace(0.5, 2, 61, dtype=np.float32) if dtype == "int8" else None
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

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
    @pytest.mark.parametrize("dim", [3, 128, 1632])
    def test_widens_to_float32(self, dtype: str, dim: int, tmp_path: Path) -> None:
        """Narrow types become float32 exactly as numpy converts them."""
        array = make_features(61, dim, dtype)
        scale = np.linspace(0.5, 2, 61, dtype=np.float32) if dtype == "int8" else None
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
        """Order and repeats are the caller's business."""
        wanted = np.array(rows, np.int64)
        out = np.full((len(rows), 100), 1, np.float32)
        assert source.read_into(wanted, out).rows == len(rows)
        assert same_bits(out, features[wanted])

    @pytest.mark.parametrize("row", [-1, 500, 2**31, 2**62, -(2**63)])
    def test_refuses_rows_out_of_range(self, source: FeatureSource, row: int) -> None:
        """A wrong id is named and nothing is written."""
        out = np.zeros((2, 100), np.float32)
        with pytest.raises(ShapeError, match=rf"rows: 1 ids are out of range 0\.\.499: {row}"):
            source.read_into(np.array([0, row]), out)
        assert not out.any()

    def test_refuses_rows_that_are_not_ids(self, source: FeatureSource) -> None:
        """Floats, unsigned 64-bit and matrices are no ids."""
        out = np.zeros((2, 100), np.float32)
        for rows in (np.zeros(2), np.zeros(2, np.uint64), np.zeros((2, 1), np.int64)):
            with pytest.raises(ShapeError, match="one-dimensional array of int64"):
                source.read_into(rows, out)  # type: ignore[arg-type]

    def test_refuses_an_output_that_does_not_fit(self, source: FeatureSource) -> None:
        """Shape, dtype, order and writability are checked before anything is read."""
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
