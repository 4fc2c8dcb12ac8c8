"""The host cache itself: executes the steps of a plan or policy on a preallocated buffer of rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numba import njit

from gloader.errors import PlanError, ShapeError
from gloader.intrinsics import copy_block, prefetch

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import DTypeLike, NDArray

    from gloader.types import CacheStep, FeatureSource, IdArray, ReadStats

_AHEAD: Final = 8  # rows; their first cache lines are fetched early, the hardware follows within a row
_LINES: Final = 8
_LINE_BYTES: Final = 64
_PAGE_BYTES: Final = 4096
_PARALLEL_BYTES: Final = 1 << 20  # less than this per thread is copied sooner than a thread wakes


class SlotCache:
    """C rows in memory, each with the id of the node that it belongs to. Owns its copy threads until `close`.

    Nothing is allocated per batch. One gather at a time executes steps. A hit whose slot holds another row
    raises, whatever the plan says.

    Parameters
    ----------
    capacity : C
    dim : F
    dtype : of the rows and of every batch buffer
    threads : that copy hits where a batch has enough of them
    """

    def __init__(self, capacity: int, *, dim: int, dtype: DTypeLike = np.float32, threads: int = 1) -> None:
        if capacity < 0 or dim < 1 or threads < 1:
            raise ShapeError(
                f"a cache of {capacity} rows of {dim} elements and {threads} threads cannot be made; needs "
                "capacity >= 0, dim >= 1 and threads >= 1"
            )
        self._rows = _aligned_rows(capacity, dim, np.dtype(dtype))
        self._words = _words(self._rows)
        self._width = max(self._rows.itemsize * dim // self._words.itemsize, 1)
        self._tags = np.full(capacity, -1, dtype=np.int64)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "gloader-copy") if threads > 1 else None

    @property
    def resident(self) -> IdArray:
        """(C,) the row that each slot holds, -1 where empty; a copy."""
        return self._tags.copy()

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows and their tags."""
        return self._rows.nbytes + self._tags.nbytes

    def fill(self, rows: IdArray, source: FeatureSource, *, chunk_rows: int = 1 << 16) -> None:
        """Read ``rows`` (<= C,) into the first slots, piece by piece, and empty the others."""
        if len(rows) > len(self._tags):
            raise PlanError(f"{len(rows)} rows do not fit {len(self._tags)} slots")
        self.clear()
        for start in range(0, len(rows), chunk_rows):
            part = rows[start : start + chunk_rows]
            source.read_into(part, self._rows[start : start + len(part)])
            self._tags[start : start + len(part)] = part

    def clear(self) -> None:
        """Empty every slot."""
        self._tags[:] = -1

    def execute(self, step: CacheStep, nodes: IdArray, out: NDArray[Any], source: FeatureSource) -> ReadStats:
        """Put the rows of ``nodes`` (U,) into ``out`` (>= U, F): hits are copied, misses read, and some of them kept.

        When reading fails the cache is what it was before.

        Raises
        ------
        PlanError
            A slot or position is out of range, or a hit's slot holds another row.
        """
        self.copy_hits(step, nodes, out)
        read = source.read_into(step.miss_row, out, at=step.miss_pos)
        self.admit(step, nodes, out)
        return read

    def copy_hits(self, step: CacheStep, nodes: IdArray, out: NDArray[Any]) -> None:
        """Copy the hits of ``step`` to their positions in ``out``."""
        words = self._checked(nodes, out)
        hits = len(step.hit_pos)
        parts = min(
            self._threads, max(hits * self._rows.itemsize * self._rows.shape[1] // _PARALLEL_BYTES, 1)
        )
        bounds = [hits * part // parts for part in range(parts + 1)]
        pending = [
            self._pool.submit(self._copy, step, nodes, words, bounds[part], bounds[part + 1])
            for part in range(1, parts)
            if self._pool is not None
        ]
        bad = [self._copy(step, nodes, words, bounds[0], bounds[1]), *(part.result() for part in pending)]
        for index in bad:
            if index >= 0:
                raise PlanError(self._bad_hit(step, nodes, index))

    def admit(self, step: CacheStep, nodes: IdArray, out: NDArray[Any]) -> None:
        """Copy the rows that ``step`` lets in from ``out`` to their slots."""
        words = self._checked(nodes, out)
        bad = _admit(
            self._words, self._width, self._tags, nodes, step.admit_pos, step.admit_slot, words
        )  # fmt: skip
        if bad >= 0:
            raise PlanError(
                f"position {int(step.admit_pos[bad])} of {len(nodes)} cannot enter slot {int(step.admit_slot[bad])} "
                f"of {len(self._tags)}: out of range"
            )

    def close(self) -> None:
        """Join the copy threads. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _copy(self, step: CacheStep, nodes: IdArray, words: NDArray[Any], start: int, stop: int) -> int:
        bad: int = _copy_hits(
            self._words, self._width, self._tags, nodes, step.hit_pos, step.hit_slot, words, start, stop
        )
        return bad

    def _checked(self, nodes: IdArray, out: NDArray[Any]) -> NDArray[Any]:
        """Return ``out`` as words, after the checks that the kernels rely on."""
        if (
            out.ndim != 2
            or out.shape[1] != self._rows.shape[1]
            or out.dtype != self._rows.dtype
            or len(out) < len(nodes)
            or not out.flags.c_contiguous
        ):
            raise ShapeError(
                f"the batch buffer is {out.dtype} of shape {out.shape}; it must be C-contiguous {self._rows.dtype} "
                f"of at least {len(nodes)} rows of {self._rows.shape[1]}"
            )
        return _words(out)

    def _bad_hit(self, step: CacheStep, nodes: IdArray, index: int) -> str:
        position, slot = int(step.hit_pos[index]), int(step.hit_slot[index])
        if not (0 <= position < len(nodes) and 0 <= slot < len(self._tags)):
            return f"a hit at position {position} of {len(nodes)} in slot {slot} of {len(self._tags)}: out of range"
        return (
            f"node {int(nodes[position])} at position {position} was planned as a hit in slot {slot}, which holds row "
            f"{int(self._tags[slot])}: the plan and the cache disagree. Plan from the cache's resident rows"
        )


def _aligned_rows(capacity: int, dim: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return zeroed rows that start on a page, so that a row of whole cache lines touches no other line."""
    num_bytes = capacity * dim * dtype.itemsize
    # Not numpy.zeros: written pages are there before the first batch, and numpy asks for huge ones.
    buffer = np.empty(num_bytes + _PAGE_BYTES, dtype=np.uint8)
    buffer[:] = 0
    start = -buffer.ctypes.data % _PAGE_BYTES
    return buffer[start : start + num_bytes].view(dtype).reshape(capacity, dim)


def _words(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the bytes of ``rows`` (n, F) as a flat view of the widest integers that a row is made of."""
    row_bytes = rows.itemsize * rows.shape[1]
    flat = rows.reshape(-1).view(np.uint8)
    for word in (np.uint64, np.uint32, np.uint16):
        if row_bytes % np.dtype(word).itemsize == 0:
            return flat.view(word)
    return flat


@njit(cache=True, nogil=True)
def _copy_hits(
    rows: NDArray[Any],
    width: int,
    tags: IdArray,
    nodes: NDArray[np.integer],
    hit_pos: IdArray,
    hit_slot: IdArray,
    out: NDArray[Any],
    start: int,
    stop: int,
) -> int:
    """Copy hits ``start:stop``; return the first that is out of range or not its slot's row, or -1."""
    line = _LINE_BYTES // rows.itemsize
    lines = min(_LINES, (width + line - 1) // line)
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch(tags, hit_slot[i + _AHEAD])
            ahead = hit_slot[i + _AHEAD] * width
            for j in range(lines):
                prefetch(rows, ahead + j * line)
        position, slot = hit_pos[i], hit_slot[i]
        if not (0 <= position < nodes.shape[0] and 0 <= slot < tags.shape[0]):
            return i
        if tags[slot] != nodes[position]:
            return i
        copy_block(out, position * width, rows, slot * width, width)
    return -1


@njit(cache=True, nogil=True)
def _admit(
    rows: NDArray[Any],
    width: int,
    tags: IdArray,
    nodes: NDArray[np.integer],
    admit_pos: IdArray,
    admit_slot: IdArray,
    out: NDArray[Any],
) -> int:
    """Copy rows into their slots; return the first that is out of range, or -1."""
    for i in range(admit_pos.shape[0]):
        position, slot = admit_pos[i], admit_slot[i]
        if not (0 <= position < nodes.shape[0] and 0 <= slot < tags.shape[0]):
            return i
        copy_block(rows, slot * width, out, position * width, width)
        tags[slot] = nodes[position]
    return -1
