"""Every feature source of ours passes the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import pytest

from gloader.errors import ShapeError
from gloader.ssd_store import FeatureStore, RamFeatures
from gloader.ssd_store.read.uring import probe_uring
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.testing.faults import FaultyOS
from gloader.testing.suites import FeatureSourceSuite, make_features, same_bits

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import FeatureSource


def store_levels(path: Path, array: NDArray[Any], dtype: str, scale: NDArray[np.float32] | None) -> None:
    """Write given elements as they are, which `FeatureStore.create` would cast or quantise."""
    with NewDirectory(path, manifest_name="store.json") as directory:
        with directory.array("features", dtype=dtype, shape=array.shape) as writer:
            writer.append(array)
        if scale is not None:
            with directory.array("features.scale", dtype="float32", shape=scale.shape) as writer:
                writer.append(scale)
        directory.commit("feature_store", {})


@pytest.mark.reliability("B8")
class TestRam(FeatureSourceSuite):
    def make_source(
        self, array: NDArray[Any], tmp_path: Path, *, dtype: str, scale: NDArray[np.float32] | None
    ) -> FeatureSource:
        return RamFeatures(array, is_bfloat16=dtype == "bfloat16", scale=scale)


@pytest.mark.reliability("B8")
class StoreSuite(FeatureSourceSuite):
    settings: dict[str, Any]
    backend: str

    def make_source(
        self, array: NDArray[Any], tmp_path: Path, *, dtype: str, scale: NDArray[np.float32] | None
    ) -> FeatureSource:
        store_levels(tmp_path / "s", array, dtype, scale)
        store = FeatureStore.open(tmp_path / "s", **self.settings)
        assert store.backend == ("plain" if numba.config.DISABLE_JIT else self.backend)
        return store

    @pytest.mark.parametrize("dim", [128, 1632, 9000])
    def test_staging_smaller_than_a_request(self, dim: int, tmp_path: Path) -> None:
        array = make_features(300, dim, "float32")
        store_levels(tmp_path / "s", array, "float32", None)
        with FeatureStore.open(tmp_path / "s", ring_bytes=1, gap_bytes=0, **self.settings) as store:
            for rows in (
                np.arange(300),
                np.arange(0, 300, 7),
                np.random.default_rng(0).integers(0, 300, 999),
            ):
                out = np.empty((rows.shape[0], dim), np.float32)
                store.read_into(rows, out)
                assert same_bits(out, array[rows])


@pytest.mark.skipif(probe_uring() is not None, reason=f"no io_uring here: {probe_uring()}")
class TestUring(StoreSuite):
    settings = {"io": "uring"}  # noqa: RUF012 - a constant
    backend = "uring"


class TestThreads(StoreSuite):
    settings = {"io": "threads"}  # noqa: RUF012 - a constant
    backend = "threads"


class TestBuffered(StoreSuite):
    settings = {"io": "buffered"}  # noqa: RUF012 - a constant
    backend = "threads"


class TestFaultWrapperWithoutFault(StoreSuite):
    settings = {"os_io": FaultyOS()}  # noqa: RUF012 - a constant
    backend = "plain"


class TestFaultWrapperWithShortReads(StoreSuite):
    settings = {"os_io": FaultyOS(short=1000)}  # noqa: RUF012 - a constant
    backend = "plain"


@pytest.mark.parametrize("kind", ["ram", "ssd"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_go_to_given_places(kind: str, dtype: str, tmp_path: Path) -> None:
    array = make_features(90, 100, dtype)
    source = RamFeatures(array) if kind == "ram" else FeatureStore.create(tmp_path / "s", array)
    for rows in ([3, 5, 80], [80, 3, 5], [4, 4, 4]):
        out = np.zeros((10, 100), np.float32)
        source.read_into(np.array(rows), out, at=np.array([7, 0, 2]))
        assert same_bits(out[[7, 0, 2]], array[rows].astype(np.float32))
        assert not out[[1, 3, 4, 5, 6, 8, 9]].any()
    with pytest.raises(ShapeError, match=r"at: 1 ids are out of range 0\.\.9: 10"):
        source.read_into(np.array([1]), out, at=np.array([10]))
    with pytest.raises(ShapeError, match="at must give one position for each of 2 rows, not 1"):
        source.read_into(np.array([1, 2]), out, at=np.array([1]))
    source.close()


def test_ram_refuses_what_is_not_a_matrix() -> None:
    for array in (np.zeros(3), np.zeros((3, 0)), np.zeros((4, 4)).T[::2]):
        with pytest.raises(ShapeError, match="C-contiguous"):
            RamFeatures(array)
    with pytest.raises(ShapeError, match=r"scale must be float32 of shape \(3,\)"):
        RamFeatures(np.zeros((3, 1), np.int8), scale=np.zeros(2, np.float32))
