"""One way to walk the batches of a trace, whether they are arrays or coded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache.trace import Trace
from gloader.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray

NO_ROWS: Final = np.empty(0, dtype=np.int64)


class BatchReader:
    """Contiguous ids of one batch after another. Not thread-safe.

    What `read` returns of a `Trace` lives in one buffer: it is good until the next call.

    Parameters
    ----------
    batches : S arrays of node ids, or a trace
    name : what messages call them

    Raises
    ------
    PlanError
        An array is not one-dimensional int32 or int64; ids themselves are for the kernels to check.
    """

    def __init__(self, batches: Sequence[NDArray[np.integer]], name: str) -> None:
        self.batches = kept(batches, name)
        self.lengths = lengths_of(self.batches)
        longest = int(self.lengths.max(initial=0)) if isinstance(self.batches, Trace) else 0
        self._scratch = np.empty(longest, dtype=np.int64)

    def __len__(self) -> int:
        """Return S."""
        return len(self.lengths)

    @property
    def num_accesses(self) -> int:
        """A, of all batches together."""
        return int(self.lengths.sum())

    def read(self, batch: int) -> NDArray[np.integer]:
        """Return the ids (U,) of ``batch``."""
        if isinstance(self.batches, Trace):
            return self.batches.read(batch, self._scratch)
        return self.batches[batch]

    def highest(self) -> int:
        """Return the largest id, or -1 where there is none."""
        return max((int(self.read(batch).max(initial=-1)) for batch in range(len(self))), default=-1)


def kept(
    batches: Sequence[NDArray[np.integer]], name: str = "accesses"
) -> Trace | tuple[NDArray[np.integer], ...]:
    """Return ``batches`` as something that does not change when they grow. Copies no codes and few arrays. Pure.

    Raises
    ------
    PlanError
        An array is not one-dimensional int32 or int64.
    """
    if isinstance(batches, Trace):
        return batches[:]
    return tuple(_checked(given, f"{name}[{batch}]") for batch, given in enumerate(batches))


def lengths_of(batches: Sequence[NDArray[np.integer]]) -> IdArray:
    """Return the accesses of each batch as (S,) int64. Pure."""
    if isinstance(batches, Trace):
        return batches.lengths
    return np.array([len(nodes) for nodes in batches], dtype=np.int64)


def _checked(given: NDArray[np.integer], name: str) -> NDArray[np.integer]:
    nodes = np.asarray(given)
    if nodes.size == 0:
        return NO_ROWS
    if nodes.ndim != 1 or nodes.dtype not in (np.int32, np.int64):
        raise PlanError(
            f"{name} has shape {nodes.shape} and dtype {nodes.dtype}; node ids are one-dimensional, "
            "int32 or int64"
        )
    return np.ascontiguousarray(nodes)
