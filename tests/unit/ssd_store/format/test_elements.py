"""Some elements of an array: the right ones, verified, with page checksums or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from version_1 import as_version_1

from gloader.errors import ChecksumError, ShapeError, TruncatedStoreError
from gloader.ssd_store.format import array_reader
from gloader.ssd_store.format.array_reader import load_elements
from gloader.ssd_store.format.format import DATA_OFFSET, ArrayRecord
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

COUNT = 1_500_000  # of 512 a page: 2,930 pages, three steps of a scan


def write(root: Path, array: NDArray[Any], *, pages: bool) -> ArrayRecord:
    with NewDirectory(root, manifest_name="dataset.json") as directory:
        with directory.array("labels", dtype=array.dtype.name, shape=array.shape) as writer:
            writer.append(array)
        arrays = directory.commit("dataset", {}).arrays
    return (arrays if pages else as_version_1(root))["labels"]


@pytest.fixture(scope="module")
def values() -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(-1, 1000, COUNT)


@pytest.mark.parametrize("pages", [False, True])
@pytest.mark.parametrize("count", [0, 1, 7, 3000, 200_000])
def test_any_positions_in_any_order(
    tmp_path: Path, values: NDArray[np.int64], count: int, pages: bool
) -> None:
    record = write(tmp_path / "s", values, pages=pages)
    positions = np.random.default_rng(count).integers(0, COUNT, count)
    positions[:3] = [COUNT - 1, 0, COUNT - 1][: len(positions[:3])]
    found = load_elements(tmp_path / "s", record, positions)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, values[positions])
    short = load_elements(tmp_path / "s", record, positions, os_io=FaultyOS(short=100_001))
    np.testing.assert_array_equal(short, found)


@pytest.mark.parametrize("pages", [False, True])
def test_edges_of_pages_and_an_array_of_one_element(tmp_path: Path, pages: bool) -> None:
    array = np.arange(1025, dtype=np.int64) * 3
    record = write(tmp_path / "s", array, pages=pages)
    positions = np.array([511, 512, 1023, 1024, 0, 512])
    assert load_elements(tmp_path / "s", record, positions).tolist() == (positions * 3).tolist()
    one = write(tmp_path / "one", np.array([5]), pages=pages)
    assert load_elements(tmp_path / "one", one, np.zeros(4, np.int64)).tolist() == [5] * 4


def test_with_page_checksums_only_pages_around_the_wanted_are_read(
    tmp_path: Path, values: NDArray[np.int64]
) -> None:
    record = write(tmp_path / "s", values, pages=True)
    os_io = FaultyOS(calls={"pread_into"})
    load_elements(tmp_path / "s", record, np.array([5, 600, COUNT - 1]), os_io=os_io)
    assert os_io.num_calls == 3  # the checksums, the start and the end
    overwrite(tmp_path / "s" / record.file, 1_000 * 4096)
    overwrite(tmp_path / "s" / record.file, 4096 * 3)  # read through, not wanted
    found = load_elements(tmp_path / "s", record, np.array([5, 5 * 512, COUNT - 1]))
    np.testing.assert_array_equal(found, values[[5, 5 * 512, COUNT - 1]])


def overwrite(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(DATA_OFFSET + offset)
        byte = file.read(1)
        file.seek(DATA_OFFSET + offset)
        file.write(bytes([byte[0] ^ 1]))


def test_damage_is_found_and_named(tmp_path: Path, values: NDArray[np.int64]) -> None:
    for pages, message in (
        (True, "page 1000 at byte 4100096, with rows 512000 to 512511"),
        (False, "digest"),
    ):
        record = write(tmp_path / str(pages), values, pages=pages)
        overwrite(tmp_path / str(pages) / record.file, 1000 * 4096 + 17)
        with pytest.raises(ChecksumError, match=message):
            load_elements(tmp_path / str(pages), record, np.array([512_000]))
        with (tmp_path / str(pages) / record.file).open("r+b") as file:
            file.truncate(DATA_OFFSET + 500 * 4096)
        with pytest.raises(TruncatedStoreError):
            load_elements(tmp_path / str(pages), record, np.array([512_000]))


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([-1], r"these are not: \[-1\]"),
        ([COUNT], "must be in 0..1499999"),
        ([0.5], "integers"),
        ([[1]], "one dimension"),
    ],
)
def test_what_is_no_position_is_refused(
    tmp_path: Path, values: NDArray[np.int64], positions: list[Any], message: str
) -> None:
    record = write(tmp_path / "s", values, pages=False)
    with pytest.raises(ShapeError, match=message):
        load_elements(tmp_path / "s", record, np.array(positions))


def test_runs_cover_the_pages_and_read_through_small_gaps() -> None:
    assert array_reader._runs(np.array([3, 3, 4, 68])) == [(3, 69)]
    assert array_reader._runs(np.array([3, 68])) == [(3, 4), (68, 69)]
    assert array_reader._runs(np.arange(0, 2100, 10)) == [(0, 1024), (1024, 2048), (2048, 2091)]
