"""The door for rows that another machine has: they are refused here, before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.errors import RowNotHereError

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.core.row_ranges import HeldRows
    from gloader.ssd_store.read.stored_rows import StoredRows
    from gloader.ssd_store.sweep.wanted_rows import WantedRows


def require_here(path: Path, held: HeldRows | None, first: int, last: int) -> None:
    """Require that the rows from ``first`` to ``last`` are here. Pure.

    Parameters
    ----------
    path : of the file, for messages
    held : which rows are here; None: all
    first, last : the least row that is asked for, and the greatest

    Raises
    ------
    RowNotHereError
        One of the two is not.
    """
    if held is None or (held.first <= first and last < held.past):
        return
    row = last if held.first <= first < held.past else first
    raise RowNotHereError(
        f"{path}: row {row} is not on this machine, which has {held}; part {held.part_of(row)} has it: start the run "
        "with torchrun on the machines of all parts, which exchange rows, or prepare a copy with all rows: gloader "
        "prepare without --ranges"
    )


def require_wanted_here(stored: StoredRows, wanted: WantedRows) -> None:
    """Require that the rows that a sweep is to bring are here; asked before it begins. Pure.

    Raises
    ------
    RowNotHereError
        A row is not.
    """
    if stored.held is None:
        return
    begins, ends = wanted.bounds[:-1], wanted.bounds[1:]
    some = begins < ends
    if some.any():
        # The rows of each batch ascend.
        first, last = int(wanted.ids[begins[some]].min()), int(wanted.ids[ends[some] - 1].max())
        require_here(stored.path, stored.held, first, last)
