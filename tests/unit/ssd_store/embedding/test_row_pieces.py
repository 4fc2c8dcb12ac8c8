"""Rows that wait for their batches: what leaves the memory, where it goes, and that no row is lost or doubled."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.errors import BudgetError, ChecksumError, PlanError, SpillError
from gloader.ssd_store.embedding.row_pieces import RowPieces, least_staging_bytes
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.testing.faults import Corruption, FaultyOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import IdArray

WIDTH = 3
FEW = least_staging_bytes(WIDTH)  # memory for 16 rows, of which 4 are added at once


class Table:
    """What was appended, by row."""

    def __init__(self) -> None:
        self.rows: dict[int, float] = {}

    def append(self, ids: IdArray, rows: NDArray[np.float32]) -> None:
        self.rows.update(zip(ids.tolist(), rows[:, 0].tolist(), strict=True))


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[SpillFolder]:
    with SpillFolder(tmp_path, budget_bytes=1 << 24) as folder:
        yield folder


def filled(values: NDArray[np.float32]) -> Callable[[NDArray[np.float32], IdArray], IdArray]:
    """Return a ``fill`` that writes each value to all columns of its row."""

    def fill(rows: NDArray[np.float32], places: IdArray) -> IdArray:
        rows[places] = values[:, None]
        return np.empty(0, np.int64)

    return fill


def add(pieces: RowPieces, batch: int, ids: list[int], *, is_dirty: bool = True, scale: float = 1) -> None:
    """Let rows wait whose values are ``scale`` times their ids."""
    for start in range(0, len(ids), pieces.chunk_rows):
        part = np.array(ids[start : start + pieces.chunk_rows])
        flags = np.full(len(part), is_dirty)
        pieces.add(part, np.full(len(part), batch), flags, filled((part * scale).astype(np.float32)))


def take(pieces: RowPieces, batch: int, wanted: list[int]) -> dict[int, float]:
    """Return the first value of each row that was found."""
    rows, is_dirty = np.zeros((len(wanted), WIDTH), np.float32), np.zeros(len(wanted), np.bool_)
    found = pieces.take(batch, np.array(wanted, np.int64), rows, np.arange(len(wanted)), is_dirty)
    assert (rows == rows[:, :1]).all()
    return {row: value for row, value, here in zip(wanted, rows[:, 0].tolist(), found, strict=True) if here}


def test_rows_that_fit_in_memory_are_not_written(table: Table, spill: SpillFolder) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=spill)
    add(pieces, 0, [5, 2, 9])
    add(pieces, 7, [1, 8])
    assert take(pieces, 0, [2, 5, 9]) == {2: 2, 5: 5, 9: 9}
    assert take(pieces, 7, [1, 8]) == {1: 1, 8: 8}
    assert (pieces.bytes_written, spill.used_bytes, table.rows) == (0, 0, {})


def test_the_rows_of_the_farthest_of_the_largest_batches_leave_first(
    table: Table, spill: SpillFolder
) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=spill)
    add(pieces, 1, list(range(8)))
    add(pieces, 3, list(range(20, 28)))
    assert pieces.bytes_written == 0
    add(pieces, 2, [50])
    assert pieces.bytes_written == 4096
    assert take(pieces, 1, list(range(8))) == {row: row for row in range(8)}
    assert pieces.bytes_read == 0
    assert take(pieces, 2, [50]) == {50: 50}
    assert take(pieces, 3, list(range(20, 28))) == {row: row for row in range(20, 28)}
    assert pieces.bytes_read == 8 * 4 * WIDTH
    assert spill.used_bytes == 0  # the file is free for another writer
    assert table.rows == {}


def test_a_large_piece_is_written_and_read_in_parts(table: Table, spill: SpillFolder) -> None:
    width = 1000  # 262 rows are 1 MiB
    pieces = RowPieces(
        width, num_bytes=1400 * least_staging_bytes(width) // 16, append=table.append, spill=spill
    )
    ids = np.arange(1300)
    for start in range(0, 1300, pieces.chunk_rows):
        part = ids[start : start + pieces.chunk_rows]
        pieces.add(part, np.full(len(part), 4), np.ones(len(part), np.bool_), filled(part.astype(np.float32)))
    part = np.arange(5000, 5200)
    pieces.add(part, np.full(200, 5), np.ones(200, np.bool_), filled(part.astype(np.float32)))
    part = np.arange(6000, 6200)
    pieces.add(part, np.full(200, 0), np.ones(200, np.bool_), filled(part.astype(np.float32)))
    assert pieces.bytes_written >= 1300 * 4 * width
    rows, is_dirty = np.zeros((1300, width), np.float32), np.zeros(1300, np.bool_)
    assert pieces.take(4, ids, rows, ids, is_dirty).all()
    assert (rows == ids[:, None]).all()
    assert is_dirty.all()


@pytest.mark.parametrize("budget_bytes", [None, 4096])
def test_without_room_in_the_folder_dirty_rows_go_to_the_table(
    table: Table, tmp_path: Path, budget_bytes: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    spill = None if budget_bytes is None else SpillFolder(tmp_path, budget_bytes=budget_bytes)
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=spill)
    dirty, clean = list(range(30, 35)), list(range(40, 45))
    add(pieces, 9, dirty)
    add(pieces, 8, clean, is_dirty=False)
    add(pieces, 1, list(range(4)))
    add(pieces, 0, [60, 61])
    add(pieces, 20, list(range(70, 73)))
    assert table.rows == {row: row for row in dirty}
    add(pieces, 21, list(range(80, 83)))
    add(pieces, 22, [90])
    assert table.rows == {row: row for row in dirty}  # the table has the clean rows already
    assert take(pieces, 8, clean) == {}
    assert take(pieces, 9, dirty) == {}
    assert pieces.bytes_written == 0
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "rows of an embedding that wait for later batches do not fit in memory or in the spill folder"
    ]
    if spill is not None:
        spill.close()


def test_the_largest_pieces_leave_first_so_that_few_parts_are_written(
    table: Table, spill: SpillFolder
) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=spill)
    add(pieces, 3, list(range(8)))
    for batch in range(10, 18):
        add(pieces, batch, [100 + batch])
    add(pieces, 20, [200])
    assert pieces.bytes_written == 4096  # one part, of batch 3
    assert take(pieces, 3, list(range(8))) == {row: row for row in range(8)}


def test_dirty_rows_in_a_file_are_saved_together(table: Table, spill: SpillFolder) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=spill)
    for batch in range(1, 9):
        add(pieces, batch, [2 * batch, 2 * batch + 1], is_dirty=batch != 5)
    add(pieces, 0, [100])  # some leave to a file
    assert pieces.bytes_written >= 2 * 4096
    assert pieces.save() == 15
    assert table.rows == {row: row for row in (*range(2, 10), *range(12, 18), 100)}
    assert pieces.save() == 0
    assert take(pieces, 0, [100]) == {100: 100}
    for batch in range(1, 9):
        assert take(pieces, batch, [2 * batch, 2 * batch + 1]) == {
            2 * batch: 2 * batch,
            2 * batch + 1: 2 * batch + 1,
        }


def test_files_have_no_more_rows_than_allowed(table: Table, spill: SpillFolder) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, most_spilled=100, append=table.append, spill=spill)
    for batch in range(40):
        add(pieces, batch, list(range(8 * batch, 8 * batch + 8)))
    assert len(table.rows) >= 320 - 100 - 16
    assert pieces.bytes_written >= 8 * 16 // 16 * 4096
    for batch in range(40):
        rows = list(range(8 * batch, 8 * batch + 8))
        found = take(pieces, batch, rows)
        assert found == {row: row for row in rows if row not in table.rows}


def test_rows_that_fill_leaves_out_are_not_added(table: Table) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=None)

    def fill(rows: NDArray[np.float32], places: IdArray) -> IdArray:
        rows[places[[0, 2]]] = 1
        return np.array([1])

    dropped = pieces.add(np.array([3, 4, 5]), np.array([6, 6, 6]), np.zeros(3, np.bool_), fill)
    assert dropped.tolist() == [1]
    assert take(pieces, 6, [3, 5]) == {3: 1, 5: 1}


def test_saved_rows_go_to_the_table_once_and_keep_waiting(table: Table, spill: SpillFolder) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=spill)
    add(pieces, 5, list(range(8)))
    add(pieces, 3, list(range(20, 28)))
    add(pieces, 1, [50])
    add(pieces, 1, [51], is_dirty=False)
    assert pieces.save() == 17
    assert table.rows == {row: row for row in [*range(8), *range(20, 28), 50]}
    assert pieces.save() == 0
    rows, is_dirty = np.zeros((8, WIDTH), np.float32), np.ones(8, np.bool_)
    assert pieces.take(5, np.arange(8), rows, np.arange(8), is_dirty).all()
    assert not is_dirty.any()


def test_held_rows_are_copied_from_memory_and_files(table: Table, spill: SpillFolder) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=spill)
    add(pieces, 5, list(range(8)))
    add(pieces, 3, list(range(20, 29)))
    assert pieces.bytes_written > 0
    used = spill.used_bytes
    wanted = np.array([1, 10, 22, 40])
    rows, found = np.zeros((4, WIDTH), np.float32), np.zeros(4, np.bool_)
    for _ in range(2):
        pieces.copy_held(wanted, rows, found)
    assert rows[:, 2].tolist() == [1, 0, 22, 0]
    assert found.tolist() == [True, False, True, False]
    assert spill.used_bytes == used


def test_cleared_rows_leave_no_file_and_batches_begin_again(table: Table, spill: SpillFolder) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=spill)
    add(pieces, 5, list(range(8)))
    add(pieces, 3000, list(range(20, 32)))
    pieces.clear()
    assert spill.used_bytes == 0
    add(pieces, 0, [7])
    assert take(pieces, 0, [7]) == {7: 7}
    pieces.close()
    pieces.close()


def test_batches_far_ahead_have_lists_of_their_own(table: Table) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=None)
    add(pieces, 10, [1])
    add(pieces, 10 + 1024, [2])
    add(pieces, 10 + 5 * 1024, [3])
    assert take(pieces, 10, [1]) == {1: 1}
    add(pieces, 11 + 5 * 1024, [4])
    assert take(pieces, 10 + 1024, [2]) == {2: 2}
    assert take(pieces, 10 + 5 * 1024, [3]) == {3: 3}
    assert take(pieces, 11 + 5 * 1024, [4]) == {4: 4}


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ([1, 2], "row 3 waits for batch 4, which does not load it"),
        ([1, 2, 3, 4], "batch 4 loads 4 rows, and 3 wait for it, 3 of them distinct; 0 are in the table"),
    ],
)
def test_other_rows_than_planned_are_refused(table: Table, wanted: list[int], text: str) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=None)
    add(pieces, 4, [1, 2, 3])
    with pytest.raises(PlanError, match=text):
        take(pieces, 4, wanted)


def test_a_row_that_waits_twice_is_refused(table: Table) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=None)
    add(pieces, 4, [1, 2])
    add(pieces, 4, [2])
    with pytest.raises(PlanError, match="batch 4 loads 3 rows, and 3 wait for it, 2 of them distinct"):
        take(pieces, 4, [1, 2, 3])


def test_rows_for_batches_that_are_over_are_refused(table: Table) -> None:
    pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=None)
    take(pieces, 9, [])
    add(pieces, 4, list(range(16)))
    with pytest.raises(
        PlanError, match="rows wait for batches before batch 10, which were loaded without them"
    ):
        add(pieces, 11, [50])


def test_too_little_memory_is_refused_with_the_needed_bytes(table: Table) -> None:
    with pytest.raises(
        BudgetError, match=rf"at least {FEW} bytes of memory .*have {FEW - 1}; raise memory_budget"
    ):
        RowPieces(WIDTH, num_bytes=FEW - 1, append=table.append, spill=None)


def test_a_full_disk_leaves_the_rows_in_memory_and_no_file(table: Table, tmp_path: Path) -> None:
    os_io = FaultyOS(calls={"pwrite"}, fail_at=1, error=errno.ENOSPC)
    with SpillFolder(tmp_path, budget_bytes=1 << 20, os_io=os_io) as spill:
        pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=spill)
        add(pieces, 5, list(range(16)))
        with pytest.raises(SpillError, match="writing the rows that wait for later batches"):
            add(pieces, 1, [50])
        assert spill.used_bytes == 0
        assert not list(spill.path.glob("*.spill"))
        assert pieces.save() == 16
        assert sorted(table.rows) == list(range(16))
        pieces.close()


def test_a_changed_bit_in_a_file_is_noticed(table: Table, tmp_path: Path) -> None:
    os_io = FaultyOS(corrupt=Corruption(offset=70, mask=4, file=".spill"))
    with SpillFolder(tmp_path, budget_bytes=1 << 20, os_io=os_io) as spill:
        pieces = RowPieces(WIDTH, num_bytes=FEW, append=table.append, spill=spill)
        add(pieces, 5, list(range(16)))
        add(pieces, 1, [50])
        with pytest.raises(
            ChecksumError, match=r"the rows that wait for later batches, owner 0 .* is damaged"
        ):
            take(pieces, 5, list(range(16)))
        pieces.close()
