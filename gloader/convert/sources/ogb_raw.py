"""Files in the folder ``raw`` of OGB's text layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.convert.readers.csv_table import CsvTable, read_column
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from pathlib import Path


def raw_table(path: Path) -> CsvTable:
    """Open a table; raises SourceError where it is not there."""
    if not path.is_file():
        raise SourceError(f"{path} is missing; unpack OGB's archive anew")
    return CsvTable.open(path)


def read_count(path: Path) -> int:
    """Return the number of nodes or edges in a file of one number; raises SourceError where it is none."""
    try:
        (count,) = read_column(path, "int64", max_rows=1).tolist()
    except (ShapeError, ValueError) as error:
        raise SourceError(f"{path} must hold 1 number, as a data set of one graph does: {error}") from error
    return plausible(count, path)


def plausible(count: int, path: Path) -> int:
    """Return a number of nodes or edges; raises SourceError where it cannot be one."""
    if not 1 <= count < 2**62:
        raise SourceError(f"{path} counts {count}; it must be a number of nodes or edges, at least 1")
    return count
