"""Checks for id arrays, and the row ranges of tables on a machine's disk.

An id array is one-dimensional and holds integers in a range. The caller names the ids for the error's message.

If a dataset is divided over machines, each machine stores one part: for each table (a feature matrix), a range of
consecutive rows. Such a division has a fixed number of parts. `RangePart` is a part's number, `RowRanges` has all
tables' ranges, and `HeldRows` one table's ranges. The functions after them check the machines of a *run*, which is one
training job, and say which machine serves which rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.malformed import shown
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from gloader.errors import GloaderError
    from gloader.types import IdArray


_LARGEST = np.iinfo(np.int64).max  # the largest id
_MOST_SHORT_IDS = 2**31  # number of ids 0, 1, ... that fit int32


def as_ids(values: ArrayLike, *, noun: str, error: type[GloaderError], masked: int | None = None) -> IdArray:
    """Return ``values`` as contiguous int64 ids, without rounding or wrapping. Pure.

    Parameters
    ----------
    values : (n,) integers of any width and byte order; any dtype if empty
    noun : the ids' name in messages, in the plural: "seeds"
    error : the error's class
    masked : the length that a mask must have: a boolean array, which stands for the ids at which it is True. None means
        that no mask is accepted.

    Returns
    -------
    (n,) int64, C-contiguous; not a copy if ``values`` already is such an array

    Raises
    ------
    error
        The dimensions, dtype or range are wrong, or a mask has another length.
    """
    try:
        ids = np.asarray(values)
    except ValueError:  # lists within a list
        raise error(f"{noun} are {shown(values)}; they must be one list, or array, of ids") from None
    if ids.dtype == np.bool_ and masked is not None:
        if ids.shape != (masked,):
            raise error(f"{noun} are a mask of shape {ids.shape}; its shape must be ({masked},), or pass ids")
        return np.flatnonzero(ids)
    if ids.ndim != 1:
        raise error(f"{noun} have shape {ids.shape}; they must have one dimension")
    if ids.size and ids.dtype.kind not in "iu":
        raise error(f"{noun} have dtype {ids.dtype}; they must be integers")
    if ids.size and ids.dtype.kind == "u" and ids.dtype.itemsize == 8 and ids.max() > _LARGEST:
        raise error(f"{noun} must be below 2**63; these are not: {ids[ids > _LARGEST][:5].tolist()}")
    return np.ascontiguousarray(ids, dtype=np.int64)


def id_dtype(count: int) -> np.dtype[Any]:
    """Return the dtype for node or row ids 0..count-1: int32 if they fit, otherwise int64. Pure."""
    return np.dtype(np.int32 if count <= _MOST_SHORT_IDS else np.int64)


def outside(ids: NDArray[Any], limit: int) -> NDArray[Any]:
    """Return the entries in ``ids`` (n,) outside 0..limit-1, in order; usually none. Pure."""
    # Two passes need no temporary array, which matters because each batch calls this.
    if ids.size == 0 or (ids.min() >= 0 and ids.max() < limit):
        return ids[:0]
    return ids[(ids < 0) | (ids >= limit)]


def node_at_id(original_ids: IdArray | None) -> IdArray | None:
    """Return the node (N,) with each original id; None if nodes kept their ids. Pure."""
    if original_ids is None:
        return None
    order = np.empty_like(original_ids)
    order[original_ids] = np.arange(len(original_ids))
    return order


MAX_PARTS: Final = 4096  # largest number of parts of a division, far more than a run has machines
# A part's text, such as "0/4": its number and the number of parts.
_PART = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePart:
    """The number of a part: part ``part`` of ``of`` parts."""

    part: int  # 0..of-1
    of: int  # number of parts

    @classmethod
    def parse(cls, value: str | Sequence[int]) -> RangePart:
        """Return the part for a value such as "0/4" or (0, 4). Pure.

        Raises
        ------
        ConfigError
            The value names no part.
        """
        text = value if isinstance(value, str) else "/".join(map(str, value))
        numbers = _PART.fullmatch(text.strip())
        if numbers is not None:
            part, of = map(int, numbers.groups())
            if 1 <= of <= MAX_PARTS and part < of:
                return cls(part=part, of=of)
        raise ConfigError(
            f"ranges={text[:100]!r} names no part of the rows; write the part's number, counted from 0, and the number "
            f"of parts, at most {MAX_PARTS}: 0/4 is the first of four"
        )

    def __str__(self) -> str:
        return f"{self.part}/{self.of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRows:
    """The row ranges of all parts of one table. A local row is stored on this machine."""

    part: int  # this machine's part
    of: int  # number of parts
    bounds: tuple[int, ...]  # (of + 1,) from 0 to N: part p holds the rows bounds[p] to bounds[p + 1] - 1

    @property
    def first(self) -> int:
        """The first local row."""
        return self.bounds[self.part]

    @property
    def past(self) -> int:
        """The row after the last local row."""
        return self.bounds[self.part + 1]

    def part_of(self, row: int) -> int:
        """Return the part with ``row``, 0..N-1. Pure."""
        # The search skips empty parts, which begin at the same row.
        return int(np.searchsorted(self.bounds, row, side="right")) - 1

    def span(self, row_bytes: int, page_bytes: int) -> tuple[int, int]:
        """Return the first page with a local row, and the page after the last such page. Pure.

        Both are 0 without local rows.

        Parameters
        ----------
        row_bytes : R, the bytes of a row in the table's file
        page_bytes : bytes per page; a page with rows of two parts is in both spans
        """
        if self.first == self.past:
            return 0, 0
        return self.first * row_bytes // page_bytes, -(-self.past * row_bytes // page_bytes)

    def __str__(self) -> str:
        if self.first == self.past:
            rows = f"none of {self.bounds[-1]:,} rows"
        else:
            # The end is exclusive: "rows 0 to 300" are the rows 0..299.
            rows = f"rows {self.first:,} to {self.past:,} of {self.bounds[-1]:,}"
        return f"{rows} (part {self.part} of {self.of})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRanges:
    """The row ranges of all parts of each table."""

    part: int  # this machine's part
    of: int  # number of parts
    tables: Mapping[str, tuple[int, ...]]  # bounds by table name: (of + 1,) ascending from 0 to N

    def rows(self, table: str) -> HeldRows:
        """Return ``table``'s ranges. Raise KeyError for an unknown table."""
        return HeldRows(part=self.part, of=self.of, bounds=self.tables[table])

    def bounds(self, table: str) -> IdArray:
        """Return the bounds between ``table``'s parts, (of + 1,) int64. Raise KeyError for an unknown table."""
        return np.array(self.tables[table], np.int64)

    def held(self, table: str) -> tuple[int, int]:
        """Return the first local row in ``table`` and the row after the last local row."""
        rows = self.rows(table)
        return rows.first, rows.past


def copy_bounds(num_rows: int, parts: int) -> IdArray:
    """Return the bounds that cut N = ``num_rows`` rows into equal parts, (parts + 1,) int64 from 0 to N. Pure.

    These parts are a division's ranges. They are also the rows that each machine serves if every machine has a copy of
    all rows. Sizes differ by at most one. With fewer rows than parts, some parts are empty.
    """
    # Python integers are needed, because the product of rows and parts may exceed int64.
    return np.array([num_rows * part // parts for part in range(parts + 1)], np.int64)


def require_all_rows(parts: Sequence[RowRanges | None], names: Sequence[str] = ()) -> None:
    """Check that a run's machines together hold all rows. Pure.

    Parameters
    ----------
    parts : each machine's ranges. None means that the machine has a copy of all rows.
    names : machine names for the message; by default their numbers

    Raises
    ------
    ConfigError
        Some rows are on no machine, the parts come from different divisions, or parts and full copies are mixed.
    """
    ranges = [each for each in parts if each is not None]
    if not ranges:
        return
    first = ranges[0]
    _require_one_division(parts, first, names or [str(number) for number in range(len(parts))])
    present = sorted({each.part for each in ranges})
    missing = sorted(set(range(first.of)) - set(present))
    for table, bounds in first.tables.items():
        for part in missing:
            # A missing part without rows is no error. In the message, the end of the rows is exclusive.
            if bounds[part] < bounds[part + 1]:
                raise ConfigError(
                    f"rows {bounds[part]:,} to {bounds[part + 1]:,} of {table!r} are on no machine of this run: there "
                    f"{_are(present, first.of)}, and not {_listed(missing)}; start it with torchrun on the machines of "
                    "all parts, or prepare a copy with all rows: gloader prepare without --ranges"
                )


def hosts_by_part(parts: Sequence[RowRanges]) -> tuple[int, ...]:
    """Return the numbers of the run's machines ("hosts"), sorted by part. Pure.

    Machines with the same part keep their order.

    Parameters
    ----------
    parts : each machine's ranges, as `require_all_rows` accepts them
    """
    return tuple(sorted(range(len(parts)), key=lambda machine: (parts[machine].part, machine)))


def host_bounds(parts: Sequence[RowRanges], table: str) -> IdArray:
    """Return the bounds between the rows that each of W machines ("hosts") serves, (W + 1,) int64. Pure.

    If several machines have the same part, the first of them serves its rows.

    Parameters
    ----------
    parts : W machines' ranges, in the order from `hosts_by_part`
    table : the table's name
    """
    return np.array([0, *(each.held(table)[1] for each in parts)], np.int64)


def _require_one_division(parts: Sequence[RowRanges | None], first: RowRanges, names: Sequence[str]) -> None:
    """Raise ConfigError if a machine has no part, or a part of another division than ``first``."""
    has_first = names[parts.index(first)]
    for name, other in zip(names, parts, strict=True):
        if other is None:
            raise ConfigError(
                f"machine {name} has a copy of all rows and machine {has_first} part {first.part} of {first.of}; all "
                "machines need a part, or all need a copy: prepare the same kind everywhere"
            )
        if (other.of, other.tables) != (first.of, first.tables):
            raise ConfigError(
                f"machine {name} has part {other.part} of {other.of} and machine {has_first} part {first.part} of "
                f"{first.of}, which divide the rows differently; prepare --ranges 0/N, 1/N and so on, with the same N "
                "on all machines"
            )


def _are(parts: Sequence[int], of: int) -> str:
    """Return text such as "are parts 0 and 2 of 4"."""
    return f"{'is' if len(parts) == 1 else 'are'} {_listed(parts)} of {of}"


def _listed(parts: Sequence[int]) -> str:
    """Return text such as "part 1" or "parts 0, 1 and 3"."""
    *others, last = map(str, parts[:8])
    more = f" and {len(parts) - 8} more" if len(parts) > 8 else ""
    if not others:
        return f"part {last}"
    return f"parts {', '.join([*others, last])}{more}" if more else f"parts {', '.join(others)} and {last}"
