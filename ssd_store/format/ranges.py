"""What a commit record says of matrices of which a part of the rows is here: their files have all bytes' places.

Offsets, page checksums and digests are those of a copy; of the pages, those that hold rows of the part are written, and
the rest of the file is a hole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import shown
from gloader.core.row_ranges import MAX_PARTS, RowRanges
from gloader.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RANGES_FEATURE: Final = "row-ranges"  # a build that does not know it would take the holes for damage
_KEYS: Final = frozenset({"part", "of", "bounds"})


def ranges_to_json(ranges: RowRanges) -> dict[str, Any]:
    """Return the ranges as they stand in a commit record. Pure."""
    return {
        "part": ranges.part,
        "of": ranges.of,
        "bounds": {name: list(bounds) for name, bounds in ranges.tables.items()},
    }


def parse_ranges(body: object, num_rows: Mapping[str, int], path: Path | str) -> RowRanges:
    """Return the ranges of a commit record. Pure.

    Parameters
    ----------
    body : what the record says, anything
    num_rows : N of each array that may be here in part: a matrix with page checksums
    path : of the record, for messages

    Raises
    ------
    FormatError
        They are malformed, or contradict the arrays.
    """
    where = f"{path}: 'ranges'"
    if not isinstance(body, dict) or body.keys() != _KEYS:
        raise FormatError(f"{where} must be an object of part, of and bounds, not {shown(body)}")
    part, of = body["part"], body["of"]
    if type(of) is not int or not 1 <= of <= MAX_PARTS:
        raise FormatError(f"{where}: 'of' is {shown(of)}; it must be a whole number in 1..{MAX_PARTS}")
    if type(part) is not int or not 0 <= part < of:
        raise FormatError(f"{where}: 'part' is {shown(part)}; it must be a whole number in 0..{of - 1}")
    bounds = body["bounds"]
    if not isinstance(bounds, dict) or not bounds:
        raise FormatError(f"{where}: 'bounds' must be an object with an entry for each matrix of features")
    tables = {name: _bounds(name, found, of, num_rows, where) for name, found in bounds.items()}
    return RowRanges(part=part, of=of, tables=tables)


def _bounds(name: str, found: Any, of: int, num_rows: Mapping[str, int], where: str) -> tuple[int, ...]:
    if name not in num_rows:
        raise FormatError(f"{where}: {name[:100]!r} is no matrix with page checksums of this record")
    count = num_rows[name]
    is_list = isinstance(found, list) and all(type(row) is int for row in found)
    if not is_list or len(found) != of + 1 or found != sorted(found) or (found[0], found[-1]) != (0, count):
        raise FormatError(
            f"{where}: the bounds of {name!r} are {shown(found)}; they must be {of + 1} rows that ascend from 0 to "
            f"{count}"
        )
    return tuple(found)
