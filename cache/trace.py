"""The trace of a superbatch in about a byte an access, and one way to walk the batches of any trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, overload

import numpy as np
from numpy.typing import NDArray

from gloader.cache.trace_code import decode_ids, decode_into, encode_ids
from gloader.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.cache.trace_code import Code
    from gloader.types import IdArray

NO_ROWS: Final = np.empty(0, dtype=np.int64)
_BYTES_PER_BATCH: Final = 16  # a reference to the code and the length


class Trace(Sequence[NDArray[np.int64]]):
    """The sorted unique ids of the batches of a superbatch, coded; grows at its end only. Not thread-safe.

    A batch is decoded when it is asked for, in 0.5 to 2 ns an id. Slices share the codes.
    Encoding (`encode_ids`) may happen in other threads than appending (`append_code`).
    """

    __slots__ = ("_codes", "_lengths")

    def __init__(self, batches: Iterable[NDArray[np.integer]] = ()) -> None:
        self._codes: list[Code] = []
        self._lengths: list[int] = []
        for sorted_ids in batches:
            self.append(sorted_ids)

    def append(self, sorted_ids: NDArray[np.integer]) -> None:
        """Add a batch of strictly ascending ids (U,), none of them negative.

        Raises
        ------
        PlanError
            The ids are not one-dimensional integers, not ascending, not unique or negative.
        """
        self.append_code(encode_ids(sorted_ids), len(sorted_ids))

    def append_code(self, code: Code, count: int) -> None:
        """Add a batch of ``count`` ids that `encode_ids` coded."""
        self._codes.append(code)
        self._lengths.append(count)

    def __len__(self) -> int:
        """Return S."""
        return len(self._codes)

    @overload
    def __getitem__(self, batch: int) -> IdArray: ...

    @overload
    def __getitem__(self, batch: slice) -> Trace: ...

    def __getitem__(self, batch: int | slice) -> IdArray | Trace:
        """Return the ids (U,) int64 of ``batch`` as a new array, or the trace of a slice."""
        if isinstance(batch, slice):
            # Codes never change, so that a slice may share them while this trace grows.
            part = Trace()
            part._codes, part._lengths = self._codes[batch], self._lengths[batch]
            return part
        if not -len(self) <= batch < len(self):
            raise IndexError(f"batch {batch} is not one of the trace's {len(self)}")
        return decode_ids(self._codes[batch], self._lengths[batch])

    def read(self, batch: int, scratch: IdArray) -> IdArray:
        """Return the ids of ``batch`` as the first elements of ``scratch``, which has room for them."""
        ids = scratch[: self._lengths[batch]]
        decode_into(self._codes[batch], ids)
        return ids

    @property
    def lengths(self) -> IdArray:
        """(S,) accesses of each batch; a copy."""
        return np.array(self._lengths, dtype=np.int64)

    @property
    def num_accesses(self) -> int:
        """A, of all batches together."""
        return sum(self._lengths)

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return sum(len(code) for code in self._codes) + _BYTES_PER_BATCH * len(self)


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
        # Decoding needs a place for the ids of one batch at a time; arrays are handed out as they are.
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
        """Return the largest id, or -1 if there is none."""
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
