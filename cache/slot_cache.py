"""The host cache: it executes a step per batch on a preallocated row buffer.

The steps come from a plan, which is made before the batches run, or from a policy, which decides batch by batch. A step
lists a batch's hits, misses and admissions. Hits are copied from slots, misses are read from the source, and admissions
are misses that are then kept in a slot. The gather calls `SlotCache.execute`, or its parts, once per batch; the loops
are in `slot_kernels`. A slot's tag is the id of the row in it, which is also the id of the row's node. The batch buffer
may have another dtype than the slots: a hit is then converted from the slot's dtype to the buffer's, and an admitted
row from the buffer's dtype to the slot's.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.cache import slot_kernels as kernels
from gloader.core.aligned_memory import aligned_bytes
from gloader.core.dtypes import RowFormat
from gloader.core.signals import thread_errors
from gloader.core.thread_times import helping
from gloader.errors import FeatureValueError, PlanError, ShapeError

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import DTypeLike, NDArray

    from gloader.types import CacheStep, FeatureSource, IdArray, ReadStats

# Minimum bytes of hits per copy thread: to wake a thread takes longer than to copy fewer bytes.
_PARALLEL_BYTES: Final = 1 << 20


class SlotCache:
    """C rows in memory, each tagged with its id. Owns its copy threads until `close`.

    No memory for rows is allocated per batch. Only one thread may execute steps; other threads may call `copy_held`
    meanwhile. Each hit is checked: if its slot holds another row, PlanError is raised.

    Parameters
    ----------
    capacity : C, the number of slots
    dim : F, elements per row
    dtype : dtype of the cached rows. The batch buffers have the same dtype; if the rows are float16, bfloat16 or int8
        with a scale, a buffer may also be float32. Its rows are then converted without a loss.
    is_bfloat16 : True if uint16 elements are bfloat16
    scale : (N,) float32, int8 rows' factors. None for other dtypes.
    threads : number of threads that copy hits, if a batch has enough hits
    """

    def __init__(
        self,
        capacity: int,
        *,
        dim: int,
        dtype: DTypeLike = np.float32,
        is_bfloat16: bool = False,
        scale: NDArray[np.float32] | None = None,
        threads: int = 1,
    ) -> None:
        if capacity < 0 or dim < 1 or threads < 1:
            raise ShapeError(
                f"a cache of {capacity} rows of {dim} elements and {threads} threads cannot be made; needs "
                "capacity >= 0, dim >= 1 and threads >= 1"
            )
        # The buffer starts at a page. So if a row's size is a multiple of the processor's cache line, no two rows share
        # a line. The system provides a page at its first write, which an admission does: to write all pages here would
        # delay the first batch by a second per GB.
        rows = aligned_bytes(capacity * dim * np.dtype(dtype).itemsize)
        self._rows: NDArray[Any] = rows.view(dtype).reshape(capacity, dim)
        self._form = RowFormat(dtype=self._rows.dtype, dim=dim, is_bfloat16=is_bfloat16, scale=scale)
        # The number of the conversion to and from float32, for the kernels; 0 if there is none. See `RowFormat`.
        self._way = self._form.way
        self._scale = np.empty(0, dtype=np.float32) if scale is None else np.ascontiguousarray(scale)
        # These views show the same memory as bytes, as 2-byte halves, and as words of up to 8 bytes, because a kernel
        # takes arrays with one dtype. The width is the number of words per row.
        self._octets = self._rows.reshape(-1).view(np.uint8)
        self._halves = self._octets[: self._octets.size // 2 * 2].view(np.uint16)
        self._words = _words(self._rows)
        self._width = max(self._rows.itemsize * dim // self._words.itemsize, 1)
        self._tags = np.full(capacity, -1, dtype=np.int64)
        # `admit` and `copy_held` take this lock, so that `copy_held` in another thread never copies a half-written row.
        # `fill` and `clear` do not take it: they must not run while another thread may call `copy_held`.
        self._changing = threading.Lock()
        # The pool has one thread fewer than requested, because the gathering thread copies too.
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "gloader-copy") if threads > 1 else None

    @property
    def resident(self) -> IdArray:
        """(C,) row in each slot, -1 if empty; a copy."""
        return self._tags.copy()

    @property
    def num_bytes(self) -> int:
        """Bytes for the rows and their tags."""
        return self._rows.nbytes + self._tags.nbytes

    def fill(self, rows: IdArray, source: FeatureSource, *, chunk_rows: int = 1 << 16) -> None:
        """Read ``rows`` into the first slots, in chunks, and empty the other slots. Not during `copy_held`.

        Parameters
        ----------
        rows : (<= C,) row ids
        source : the features
        chunk_rows : rows per read

        Raises
        ------
        PlanError
            There are more rows than slots.
        """
        if len(rows) > len(self._tags):
            raise PlanError(f"{len(rows)} rows do not fit {len(self._tags)} slots")
        self.clear()
        for start in range(0, len(rows), chunk_rows):
            part = rows[start : start + chunk_rows]
            # The tags are written after the rows, so that the slots stay empty if the read fails.
            source.read_into(part, self._rows[start : start + len(part)])
            self._tags[start : start + len(part)] = part

    def clear(self) -> None:
        """Empty every slot. Not during `copy_held`, as `fill`."""
        self._tags[:] = -1

    def copy_held(self, requests: IdArray, out: NDArray[np.uint8], /) -> NDArray[np.bool_]:
        """Copy the cached rows among ``requests`` in stored form. Return the mask of copied rows (M,). Thread-safe.

        Parameters
        ----------
        requests : (M,) ids of the rows to copy, ascending
        out : (M, R) uint8, receives the rows' bytes. The entries of rows that are not cached stay unchanged.

        Raises
        ------
        ShapeError
            ``out`` has another shape.
        """
        row_bytes = self._form.row_bytes
        if out.shape != (len(requests), row_bytes) or out.dtype != np.uint8 or not out.flags.c_contiguous:
            raise ShapeError(
                f"out is {out.dtype} of shape {out.shape}; it must be C-contiguous uint8 of shape "
                f"({len(requests)}, {row_bytes})"
            )
        is_held = np.zeros(len(requests), np.bool_)
        if not len(requests):
            return is_held
        # Another thread may change slots during this search. So the kernel checks the tags again under the lock.
        slots = np.flatnonzero((self._tags >= requests[0]) & (self._tags <= requests[-1]))
        rows = self._tags[slots]
        order = np.argsort(rows)
        with self._changing:
            kernels.copy_held(
                self._octets,
                row_bytes,
                self._tags,
                rows[order],
                slots[order],
                requests,
                out.reshape(-1),
                is_held,
            )
        return is_held

    def execute(self, step: CacheStep, nodes: IdArray, out: NDArray[Any], source: FeatureSource) -> ReadStats:
        """Put a batch's rows into ``out``: copy the hits, read the misses, and admit some misses.

        Node ``nodes[i]`` has its row in ``out[i]``. If the read fails, the cache is unchanged. Returns the read's
        statistics.

        Parameters
        ----------
        step : the batch's step, from the plan or the policy
        nodes : (U,) int64, the batch's node ids
        out : (>= U, F) C-contiguous, with the cache's dtype or float32
        source : the missing rows' source

        Raises
        ------
        PlanError
            A slot or position is out of range, or a hit's slot holds another row.
        """
        # Hits are copied before rows are admitted, because an admitted row may take a hit's slot in the same step.
        self.copy_hits(step, nodes, out)
        read = source.read_into(step.miss_row, out, at=step.miss_pos)
        self.admit(step, nodes, out)
        return read

    def copy_hits(self, step: CacheStep, nodes: IdArray, out: NDArray[Any]) -> None:
        """Copy ``step``'s hits to their positions in ``out``.

        Parameters
        ----------
        step, nodes, out : the batch's step, its ids and its buffer, as in `execute`

        Raises
        ------
        PlanError
            A slot or position is out of range, or a hit's slot holds another row.
        ShapeError
            ``out`` has another shape or dtype.
        """
        self._check(nodes, out)
        hits = len(step.hit_pos)
        parts = min(self._threads, max(hits * self._form.row_bytes // _PARALLEL_BYTES, 1))
        bounds = [hits * part // parts for part in range(parts + 1)]
        with thread_errors():  # if the pool cannot start a thread
            # `helping` charges the threads' processor time to this thread.
            pending = [
                self._pool.submit(helping(self._copy), step, nodes, out, bounds[part], bounds[part + 1])
                for part in range(1, parts)
                if self._pool is not None
            ]
        # This thread copies the first part while the pool copies the other parts. When the list is complete, all parts
        # have ended. So no thread writes to ``out`` after this call, also if it raises PlanError.
        bad = [self._copy(step, nodes, out, bounds[0], bounds[1]), *(part.result() for part in pending)]
        for index in bad:
            if index >= 0:
                raise PlanError(self._bad_hit(step, nodes, index))

    def admit(self, step: CacheStep, nodes: IdArray, out: NDArray[Any]) -> None:
        """Copy the rows that ``step`` admits from ``out`` to their slots.

        Parameters
        ----------
        step, nodes, out : the batch's step, its ids, and the buffer that now holds its rows

        Raises
        ------
        PlanError
            A position or slot is out of range.
        FeatureValueError
            The stored dtype cannot hold a value in ``out``; the slot of the value's row is now empty.
        """
        self._check(nodes, out)
        is_inexact = False
        with self._changing:
            if out.dtype == self._rows.dtype:
                bad = kernels.admit(
                    self._words, self._width, self._tags, nodes, step.admit_pos, step.admit_slot, _words(out)
                )
            else:
                # The conversions to 16 bits work on the bits of the float32 values, hence the uint32 view.
                bad, is_inexact = kernels.narrow_admissions(
                    self._halves, self._octets, self._scale, self._way, self._form.dim,
                    self._tags, nodes, step.admit_pos, step.admit_slot, out.reshape(-1),
                    out.reshape(-1).view(np.uint32),
                )  # fmt: skip
        if is_inexact:
            raise FeatureValueError(
                f"row {int(nodes[step.admit_pos[bad]])} of the batch has a value that the cache cannot hold as "
                f"{self._stored_as}, so it differs from the stored row. Admit rows before you change them, or make "
                "the cache with dtype float32"
            )
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

    def _copy(self, step: CacheStep, nodes: IdArray, out: NDArray[Any], start: int, stop: int) -> int:
        """Copy the step's hits ``start:stop``. Return the index of the first bad hit, or -1.

        Runs in the gathering thread for the first part of the hits, and in the copy threads for the others.
        """
        bad: int
        if out.dtype == self._rows.dtype:
            bad = kernels.copy_hits(
                self._words, self._width, self._tags, nodes, step.hit_pos, step.hit_slot, _words(out), start, stop
            )  # fmt: skip
        else:
            bad = kernels.widen_hits(
                self._halves, self._octets, self._scale, self._way, self._form.row_bytes, self._form.dim,
                self._tags, nodes, step.hit_pos, step.hit_slot, out.reshape(-1), start, stop,
            )  # fmt: skip
        return bad

    def _check(self, nodes: IdArray, out: NDArray[Any]) -> None:
        """Raise ShapeError for a buffer that the kernels would exceed."""
        if (
            out.ndim != 2
            or out.shape[1] != self._rows.shape[1]
            or not (out.dtype == self._rows.dtype or (self._way and out.dtype == np.float32))
            or len(out) < len(nodes)
            or not out.flags.c_contiguous
        ):
            raise ShapeError(
                f"the batch buffer is {out.dtype} of shape {out.shape}; it must be C-contiguous {self._rows.dtype}"
                f"{' or float32' if self._way else ''} of at least {len(nodes)} rows of {self._rows.shape[1]}"
            )

    @property
    def _stored_as(self) -> str:
        """The name of the stored dtype, for messages."""
        element = self._form.element
        return f"{element.name} with its scale" if element.has_scale else element.name

    def _bad_hit(self, step: CacheStep, nodes: IdArray, index: int) -> str:
        """Return the message for the step's hit ``index``, which contradicts the cache."""
        position, slot = int(step.hit_pos[index]), int(step.hit_slot[index])
        if not (0 <= position < len(nodes) and 0 <= slot < len(self._tags)):
            return f"a hit at position {position} of {len(nodes)} in slot {slot} of {len(self._tags)}: out of range"
        return (
            f"node {int(nodes[position])} at position {position} was planned as a hit in slot {slot}, which holds row "
            f"{int(self._tags[slot])}: the plan and the cache disagree. Plan from the cache's resident rows"
        )


def _words(rows: NDArray[Any]) -> NDArray[Any]:
    """Return ``rows`` (n, F) as a flat view, with the widest integers that divide a row."""
    row_bytes = rows.itemsize * rows.shape[1]
    flat = rows.reshape(-1).view(np.uint8)
    # With the widest word that divides a row, the kernels copy up to eight bytes at once.
    for word in (np.uint64, np.uint32, np.uint16):
        if row_bytes % np.dtype(word).itemsize == 0:
            return flat.view(word)
    return flat
