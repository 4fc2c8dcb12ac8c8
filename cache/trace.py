"""A superbatch's trace in about one byte per access, and a reader for the batches of any trace.

A trace is the unique node ids of each batch of a superbatch, in batch order. An access is one id in one batch. The ids
of a batch ascend, and its code stores the gaps between them, in one or two bytes each. A gap is the number of skipped
ids. A gap of 255 or more in one byte, or of 65,535 or more in two, is wide: its bytes hold this largest value, and its
rest, the gap minus this value, follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, overload

import numpy as np
from numpy.typing import NDArray

from gloader.core.kernels import njit
from gloader.core.numba_ops import to_int
from gloader.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.types import IdArray

    Code = NDArray[np.uint8]


# A batch's code is its width (1 or 2), and then for each id the gap before it, in that many bytes. The largest value of
# this width means that a rest follows, seven bits per byte and the lowest first (LEB128). All gaps of a batch have the
# same width. With LEB128 for whole gaps, decoding would have to test whether each byte is its gap's last. For gaps of
# about 128, it would be four times slower.
_WIDE_ONE: Final = 255  # the largest value in one byte
_WIDE_TWO: Final = 65535  # the largest value in two bytes
# A batch has width 1 if at most one of this many gaps is wide: it then takes less time and space than with width 2.
_GAPS_PER_WIDE: Final = 8
_MORE: Final = 128  # the bit that is set in every byte of a rest except the last
_TOP_SHIFT: Final = 56  # bits before a rest's ninth byte, its last one; ids have 63 bits


def encode_ids(sorted_ids: NDArray[np.integer]) -> Code:
    """Return the code for strictly ascending ids (U,) as (num_bytes,) uint8. Pure.

    The code takes about 1 byte per id if the batch has more than a hundredth of all nodes. It takes about 2 bytes with
    more than about one node in 20,000.

    Raises
    ------
    PlanError
        The ids are not one-dimensional integers, not ascending, not unique or negative.
    """
    ids = np.asarray(sorted_ids)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise PlanError(
            f"a batch of a trace has shape {ids.shape} and dtype {ids.dtype}; pass its ids as one array of integers"
        )
    if ids.dtype not in (np.int32, np.int64):
        ids = ids.astype(np.int64)
    ids = np.ascontiguousarray(ids)
    width, size, bad = _measure(ids)
    if bad >= 0:
        raise PlanError(_disorder(ids, bad))
    code = np.empty(size, dtype=np.uint8)
    _encode(ids, width, code)
    return code


def decode_ids(code: Code, count: int) -> IdArray:
    """Return a code's ``count`` ids as (count,) int64. Pure.

    Raises
    ------
    PlanError
        The code does not hold that many ids.
    """
    ids = np.empty(count, dtype=np.int64)
    decode_into(code, ids)
    return ids


def decode_into(code: Code, out: IdArray) -> None:
    """Decode a code for ``len(out)`` ids into ``out``.

    Raises
    ------
    PlanError
        The code does not hold that many ids.
    """
    if _decode(code, out) != len(code):
        raise PlanError(f"a trace is damaged: {len(code)} bytes are not the code of {len(out)} ids")


def _disorder(ids: NDArray[np.integer], bad: int) -> str:
    """Return the message for ``ids[bad]``, which is negative or not above the id before it."""
    if ids[bad] < 0:
        return (
            f"the ids of a batch of a trace must not be negative; it holds {int(ids[bad])} at position {bad}"
        )
    return (
        f"the ids of a batch of a trace must be unique and ascending; {int(ids[bad])} at position {bad} follows "
        f"{int(ids[bad - 1])}. Pass numpy.sort(nodes)"
    )


@njit(cache=True, nogil=True)
def _rest_size(rest: int) -> int:
    """Return the number of bytes for a wide gap's rest."""
    size = 1
    while rest >= _MORE:
        rest >>= 7
        size += 1
    return size


@njit(cache=True, nogil=True)
def _measure(ids: NDArray[np.integer]) -> tuple[int, int, int]:
    """Return the code's width and size in bytes, and the first position out of order, or -1."""
    # The number of wide gaps at width 1, and the bytes of all rests at width 1 and at width 2.
    wide_ones, rests_one, rests_two = 0, 0, 0
    last = -1
    for position in range(ids.shape[0]):
        node = to_int(ids[position])
        if node <= last:
            return 0, 0, position
        gap = node - (last + 1)
        if gap >= _WIDE_ONE:
            wide_ones += 1
            rests_one += _rest_size(gap - _WIDE_ONE)
            if gap >= _WIDE_TWO:
                rests_two += _rest_size(gap - _WIDE_TWO)
        last = node
    if wide_ones * _GAPS_PER_WIDE > ids.shape[0]:
        return 2, 1 + 2 * ids.shape[0] + rests_two, -1
    return 1, 1 + ids.shape[0] + rests_one, -1


@njit(cache=True, nogil=True)
def _encode(ids: NDArray[np.integer], width: int, code: Code) -> None:
    """Write the code of ``ids``; ``code`` has the size that `_measure` returned."""
    code[0] = width
    widest = _WIDE_ONE if width == 1 else _WIDE_TWO
    byte_index = 1
    last = -1
    for position in range(ids.shape[0]):
        node = to_int(ids[position])
        gap = node - (last + 1)
        narrow = min(gap, widest)
        code[byte_index] = narrow & 255
        byte_index += 1
        if width == 2:
            code[byte_index] = narrow >> 8
            byte_index += 1
        if narrow == widest:
            byte_index = _encode_rest(gap - widest, code, byte_index)
        last = node


@njit(cache=True, nogil=True, inline="always")
def _encode_rest(rest: int, code: Code, byte_index: int) -> int:
    """Write a wide gap's rest from ``byte_index`` on; return the index after it."""
    while rest >= _MORE:
        code[byte_index] = (rest & 127) | _MORE
        rest >>= 7
        byte_index += 1
    code[byte_index] = rest
    return byte_index + 1


@njit(cache=True, nogil=True)
def _decode(code: Code, out: IdArray) -> int:
    """Fill ``out``. Return the used code bytes, or -1 if the code ends too early."""
    size = code.shape[0]
    if size == 0 or not 1 <= code[0] <= 2:
        return -1
    if code[0] == 1:
        return _decode_ones(code, out)
    return _decode_twos(code, out)


@njit(cache=True, nogil=True, inline="always")
def _decode_ones(code: Code, out: IdArray) -> int:
    """Fill ``out`` from a code of width 1; the result is as in `_decode`."""
    # Indices are unsigned here and below, because numba compares a signed index with zero at every access.
    byte_index, one, size = np.uint64(1), np.uint64(1), np.uint64(code.shape[0])
    last = np.int64(-1)
    for position in range(np.uint64(out.shape[0])):
        if byte_index >= size:
            return -1
        gap = to_int(code[byte_index])
        byte_index += one
        if gap == _WIDE_ONE:
            rest, used = _decode_rest(code, byte_index)
            if used == 0:
                return -1
            gap += rest
            byte_index += np.uint64(used)
        last = (last + 1) + gap  # in this order, because ``gap + 1`` could overflow int64
        out[position] = last
    return to_int(byte_index)


@njit(cache=True, nogil=True, inline="always")
def _decode_twos(code: Code, out: IdArray) -> int:
    """Fill ``out`` from a code of width 2; the result is as in `_decode`."""
    byte_index, one, two, size = np.uint64(1), np.uint64(1), np.uint64(2), np.uint64(code.shape[0])
    last = np.int64(-1)
    for position in range(np.uint64(out.shape[0])):
        if byte_index + one >= size:
            return -1
        gap = to_int(code[byte_index]) | (to_int(code[byte_index + one]) << 8)
        byte_index += two
        if gap == _WIDE_TWO:
            rest, used = _decode_rest(code, byte_index)
            if used == 0:
                return -1
            gap += rest
            byte_index += np.uint64(used)
        last = (last + 1) + gap  # in this order, because ``gap + 1`` could overflow int64
        out[position] = last
    return to_int(byte_index)


@njit(cache=True, nogil=True)
def _decode_rest(code: Code, start: int) -> tuple[int, int]:
    """Return a wide gap's rest and its length in bytes. The length is 0 if the bytes are no valid rest."""
    byte_index = to_int(start)
    rest, shift = 0, 0
    while byte_index < code.shape[0] and shift <= _TOP_SHIFT:
        byte = to_int(code[byte_index])
        byte_index += 1
        rest |= (byte & 127) << shift
        shift += 7
        if byte < _MORE:
            return rest, byte_index - to_int(start)
    return 0, 0


NO_ROWS: Final = np.empty(0, dtype=np.int64)  # no row ids, for example as a default of parameters
_BYTES_PER_BATCH: Final = 16  # bytes of a batch's two entries, in the lists of codes and of lengths


class Trace(Sequence[NDArray[np.int64]]):
    """Sorted unique ids of each batch of a superbatch, stored as codes. It grows only at its end. Not thread-safe.

    A batch is decoded on access, in 0.5 to 2 ns per id. Slices share the codes. Several threads may make codes with
    `encode_ids`, while one thread appends them with `append_code`.
    """

    __slots__ = ("_codes", "_lengths")

    def __init__(self, batches: Iterable[NDArray[np.integer]] = ()) -> None:
        self._codes: list[Code] = []
        self._lengths: list[int] = []
        for sorted_ids in batches:
            self.append(sorted_ids)

    def append(self, sorted_ids: NDArray[np.integer]) -> None:
        """Add a batch with strictly ascending, non-negative ids (U,).

        Raises
        ------
        PlanError
            The ids are not one-dimensional integers, not ascending, not unique or negative.
        """
        self.append_code(encode_ids(sorted_ids), len(sorted_ids))

    def append_code(self, code: Code, count: int) -> None:
        """Add a batch from ``code``, the result of `encode_ids` for its ``count`` ids."""
        self._codes.append(code)
        self._lengths.append(count)

    def __len__(self) -> int:
        """Return S, the number of batches."""
        return len(self._codes)

    @overload
    def __getitem__(self, batch: int) -> IdArray: ...

    @overload
    def __getitem__(self, batch: slice) -> Trace: ...

    def __getitem__(self, batch: int | slice) -> IdArray | Trace:
        """Return the ids (U,) int64 of ``batch`` as a new array, or for a slice a `Trace` of its batches."""
        if isinstance(batch, slice):
            # Codes never change, so a slice may share them while this trace grows.
            part = Trace()
            part._codes, part._lengths = self._codes[batch], self._lengths[batch]
            return part
        if not -len(self) <= batch < len(self):
            raise IndexError(f"batch {batch} is not one of the trace's {len(self)}")
        return decode_ids(self._codes[batch], self._lengths[batch])

    def read(self, batch: int, scratch: IdArray) -> IdArray:
        """Return ``batch``'s ids in the first elements of ``scratch``, which must have enough room."""
        ids = scratch[: self._lengths[batch]]
        decode_into(self._codes[batch], ids)
        return ids

    @property
    def lengths(self) -> IdArray:
        """(S,) each batch's accesses; a copy."""
        return np.array(self._lengths, dtype=np.int64)

    @property
    def num_accesses(self) -> int:
        """A, the accesses over all batches."""
        return sum(self._lengths)

    @property
    def num_bytes(self) -> int:
        """Bytes of the codes and lists."""
        return sum(len(code) for code in self._codes) + _BYTES_PER_BATCH * len(self)


class BatchReader:
    """Reads one batch's ids after another, from arrays or from a `Trace`. Not thread-safe.

    With a `Trace`, `read` decodes into a buffer, which is valid until the next call.

    Parameters
    ----------
    batches : S arrays with node ids, or a trace
    name : the batches' name in messages

    Raises
    ------
    PlanError
        An array is not one-dimensional int32 or int64. The ids' range is not checked here: the planners' kernels, such
        as `belady_kernels.link`, check it when they read the batches.
    """

    def __init__(self, batches: Sequence[NDArray[np.integer]], name: str) -> None:
        self.batches = kept(batches, name)
        self.lengths = lengths_of(self.batches)
        # Decoding needs room for one batch's ids. Arrays are returned as they are.
        longest = int(self.lengths.max(initial=0)) if isinstance(self.batches, Trace) else 0
        self._scratch = np.empty(longest, dtype=np.int64)

    def __len__(self) -> int:
        """Return S, the number of batches."""
        return len(self.lengths)

    @property
    def num_accesses(self) -> int:
        """A, the accesses over all batches."""
        return int(self.lengths.sum())

    def read(self, batch: int) -> NDArray[np.integer]:
        """Return ``batch``'s ids (U,)."""
        if isinstance(self.batches, Trace):
            return self.batches.read(batch, self._scratch)
        return self.batches[batch]

    def highest(self) -> int:
        """Return the largest id, or -1 if there is none."""
        return max((int(self.read(batch).max(initial=-1)) for batch in range(len(self))), default=-1)


def kept(
    batches: Sequence[NDArray[np.integer]], name: str = "accesses"
) -> Trace | tuple[NDArray[np.integer], ...]:
    """Return ``batches`` as a new `Trace` or tuple, which does not change if the caller's list grows. Pure.

    Arrays are checked. Codes are shared, and arrays too unless they must be made contiguous. ``name`` names the batches
    in messages.

    Raises
    ------
    PlanError
        An array is not one-dimensional int32 or int64.
    """
    if isinstance(batches, Trace):
        return batches[:]
    return tuple(_checked(given, f"{name}[{batch}]") for batch, given in enumerate(batches))


def lengths_of(batches: Sequence[NDArray[np.integer]]) -> IdArray:
    """Return each batch's accesses as (S,) int64. Pure."""
    if isinstance(batches, Trace):
        return batches.lengths
    return np.array([len(nodes) for nodes in batches], dtype=np.int64)


def _checked(given: NDArray[np.integer], name: str) -> NDArray[np.integer]:
    """Return a batch's ids as a contiguous array. Raise PlanError unless it is one-dimensional int32 or int64."""
    nodes = np.asarray(given)
    # An empty array may have any dtype, because numpy gives an empty list the dtype float64.
    if nodes.size == 0:
        return NO_ROWS
    if nodes.ndim != 1 or nodes.dtype not in (np.int32, np.int64):
        raise PlanError(
            f"{name} has shape {nodes.shape} and dtype {nodes.dtype}; node ids are one-dimensional, "
            "int32 or int64"
        )
    return np.ascontiguousarray(nodes)
