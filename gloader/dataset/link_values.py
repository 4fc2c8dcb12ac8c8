"""What the values of a link table may be: ids within their types, positions within their relations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

from gloader.core.value_kernels import first_outside
from gloader.dataset.link_record import LABELS, NEGATIVES, PAIR_WIDTH, PAIRS, POSITION
from gloader.types import NO_EDGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

_NOUNS: Final = ("source", "destination", "position", "reverse position")
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """What bounds the values of the arrays of a link table."""

    num_sources: int  # nodes of the source type
    num_destinations: int
    num_edges: int  # of the relation
    num_reverses: int  # edges of the reverse relation; 0 where there is none
    num_negatives: int = 0  # k: given for each row

    @property
    def most(self) -> tuple[int, int, int, int]:
        """The largest values of the columns of the pairs."""
        return (
            self.num_sources - 1,
            self.num_destinations - 1,
            self.num_edges - 1,
            self.num_reverses - 1,
        )

    def first_wrong(self, name: str, values: NDArray[Any]) -> int:
        """Return the first position in ``values``, whole rows of array ``name``, of one that cannot be; -1: none. Pure.

        Parameters
        ----------
        name : of the array
        values : (m,) elements, those of a row one behind the other
        """
        # Read-only, as loaded arrays are: to numba another type, to be compiled for again.
        view = values.reshape(-1).view()
        view.flags.writeable = False
        if name == PAIRS:
            return int(_first_wrong_pair(view, np.array(self.most)))
        if name == NEGATIVES:
            return int(first_outside(view, 0, self.num_destinations - 1))
        return _first_not_finite(view) if name == LABELS and view.dtype.kind == "f" else -1

    def describe(self, name: str, position: int, value: object) -> str:
        """Return what is wrong with ``value``, element ``position`` of array ``name``, which names its row. Pure."""
        if name == PAIRS:
            row, column = divmod(position, PAIR_WIDTH)
            noun, most = _NOUNS[column], self.most[column]
            if column >= POSITION:
                edges = f"of an edge, in 0..{most}, or " if most >= 0 else ""
                return f"{name}, row {row}: {noun} {value} must be {edges}{NO_EDGE}, which says that there is none"
            return f"{name}, row {row}: {noun} {value} is not a node: {_allowed(most)}"
        if name == NEGATIVES:
            row = position // self.num_negatives
            most = self.num_destinations - 1
            return f"{name}, row {row}: destination {value} is not a node: {_allowed(most)}"
        return f"{name}, row {position}: {value} is not a finite number"


class LinkCheck:
    """The check of all values of one array of a link table, which comes in order, in pieces of whole rows.

    Parameters
    ----------
    name : of the array
    limits : what its values may be
    in_graph : rows that have a position, as the commit record says
    """

    def __init__(self, name: str, limits: LinkLimits, *, in_graph: int) -> None:
        self._name = name
        self._limits = limits
        self._in_graph = in_graph
        self._count = 0
        self._found = 0

    def wrong(self, values: NDArray[Any]) -> str | None:
        """Take the next ``values`` (m,); return what is wrong with the first that cannot be, or None."""
        first, self._count = self._count, self._count + values.size
        at = self._limits.first_wrong(self._name, values)
        if at >= 0:
            return self._limits.describe(self._name, first + at, values.reshape(-1)[at])
        if self._name == PAIRS:
            self._found += count_in_graph(values.reshape(-1, PAIR_WIDTH))
        return None

    def wrong_end(self) -> str | None:
        """Return what is wrong with the whole of the array, or None; called behind the last piece."""
        if self._name == PAIRS and self._found != self._in_graph:
            return f"{PAIRS}: {self._found} rows have a position; the commit record says {self._in_graph}"
        return None


def count_in_graph(pairs: NDArray[np.int64]) -> int:
    """Return how many of ``pairs`` (n, 4) have a position. Pure."""
    return int(np.count_nonzero(pairs[:, POSITION] != NO_EDGE))


def _allowed(most: int) -> str:
    return f"it must be in 0..{most}" if most >= 0 else "there is none"


def _first_not_finite(values: NDArray[Any]) -> int:
    for start in range(0, len(values), _BLOCK):
        wrong = np.flatnonzero(~np.isfinite(values[start : start + _BLOCK]))
        if len(wrong):
            return start + int(wrong[0])
    return -1


@njit(cache=True, nogil=True)
def _first_wrong_pair(pairs: IdArray, most: IdArray) -> int:
    """Return the first element of ``pairs`` (n * 4,) that is above its column's ``most``, or below 0 or -1; or -1."""
    for row in range(0, pairs.shape[0], 4):
        # Compared, not subtracted: a difference may be too large for its sign.
        is_wrong = (
            (pairs[row] < 0) | (pairs[row] > most[0]) | (pairs[row + 1] < 0) | (pairs[row + 1] > most[1])
        )
        is_wrong |= (pairs[row + 2] < -1) | (pairs[row + 2] > most[2])
        is_wrong |= (pairs[row + 3] < -1) | (pairs[row + 3] > most[3])
        if is_wrong:
            for column in range(4):
                least = 0 if column < 2 else -1
                if not least <= pairs[row + column] <= most[column]:
                    return row + column
    return -1
