"""A cache plan: what the host cache does with every access of a superbatch, four bytes each."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, overload

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gloader.errors import PlanError
from gloader.types import CacheStep, IdArray

if TYPE_CHECKING:
    from collections.abc import Iterator

Actions = NDArray[np.int32]

# An action is a slot s >= 0 (a hit, read from s), BYPASS (a miss that is not kept), ADMIT - s (a miss that
# enters slot s) or ON_DEVICE (none of the host cache's business).
BYPASS: Final = -1
ADMIT: Final = -2
ON_DEVICE: Final = -(2**31)
MAX_CAPACITY: Final = 2**31 - 4  # the largest slot whose ADMIT code is not ON_DEVICE

_MAGIC: Final = b"GLPLAN01"
_HEADER: Final = struct.Struct("<8sIIqqq")  # magic, checksums of the rest and of the trace, C, S, A


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CachePlan:
    """What the host cache does for each batch of a superbatch. Holds a reference to the trace, no copy.

    ``steps[b]`` expands the plan of batch b into a `CacheStep`; ``actions`` holds it at 4 bytes an access.
    """

    capacity: int  # C
    accesses: tuple[NDArray[np.integer], ...]  # S arrays of unique node ids, the trace
    offsets: IdArray  # (S + 1,) where each batch starts in `actions`
    actions: Actions  # (A,) see the module's codes
    hits: IdArray  # (S,)
    misses: IdArray  # (S,)
    admissions: IdArray  # (S,)
    resident_after: IdArray  # (C,) the row that each slot holds in the end, -1 where empty

    @property
    def num_hits(self) -> int:
        """Accesses served from the cache."""
        return int(self.hits.sum())

    @property
    def num_misses(self) -> int:
        """Rows to be read."""
        return int(self.misses.sum())

    @property
    def num_admissions(self) -> int:
        """Rows read that enter the cache."""
        return int(self.admissions.sum())

    @property
    def steps(self) -> Steps:
        """The steps of all batches; each is expanded when it is asked for."""
        return Steps(self)

    @property
    def num_bytes(self) -> int:
        """Bytes of the plan beside the trace."""
        counts = (self.hits, self.misses, self.admissions)
        return sum(a.nbytes for a in (self.offsets, self.actions, self.resident_after, *counts))

    def batch_actions(self, batch: int) -> Actions:
        """Return the actions (U,) of one batch, a view."""
        return self.actions[self.offsets[batch] : self.offsets[batch + 1]]

    def validate(self, resident: IdArray, accesses: Sequence[NDArray[np.integer]] | None = None) -> None:
        """Replay the plan on slot contents alone and check every promise it makes. O(A + C).

        Parameters
        ----------
        resident : (<= C,) the row in each slot before the first batch, -1 where empty
        accesses : the trace to check against; the plan's own when not given

        Raises
        ------
        PlanError
            A hit's slot holds another row, a slot is out of range or written twice in one step, the counts
            are wrong, or the content left behind is not ``resident_after``.
        """
        trace = self.accesses if accesses is None else tuple(accesses)
        lengths = [len(nodes) for nodes in trace]
        if lengths != np.diff(self.offsets).tolist() or self.offsets[-1] != len(self.actions):
            raise PlanError(
                f"the plan has {len(self.offsets) - 1} batches and {len(self.actions)} actions; the trace has "
                f"{len(lengths)} batches and {sum(lengths)} accesses"
            )
        content = initial_content(resident, self.capacity)
        written = np.full(self.capacity, -1, dtype=np.int64)
        counts = np.zeros(3, dtype=np.int64)
        for batch, nodes in enumerate(trace):
            counts[:] = 0
            actions = self.batch_actions(batch)
            position = _replay(np.ascontiguousarray(nodes), actions, batch, content, written, counts)
            if position >= 0:
                raise PlanError(self._contradiction(batch, position, int(nodes[position]), content))
            claimed = (self.hits[batch], self.misses[batch], self.admissions[batch])
            if tuple(counts) != claimed:
                raise PlanError(
                    f"batch {batch}: the plan counts {tuple(map(int, claimed))} hits, misses and admissions, its "
                    f"actions are {tuple(counts.tolist())}"
                )
        self._check_end(content)

    def to_bytes(self) -> bytes:
        """Return the plan without its trace, with a checksum of both. Pure."""
        arrays = (self.offsets, self.hits, self.misses, self.admissions, self.resident_after, self.actions)
        body = b"".join(array.tobytes() for array in arrays)
        header = _HEADER.pack(
            _MAGIC,
            zlib.crc32(body),
            _trace_checksum(self.accesses),
            self.capacity,
            len(self.accesses),
            len(self.actions),
        )
        return header + struct.pack("<I", zlib.crc32(header)) + body

    @classmethod
    def from_bytes(cls, data: bytes, accesses: Sequence[NDArray[np.integer]]) -> CachePlan:
        """Return the plan that `to_bytes` wrote, for the same trace. Pure.

        Raises
        ------
        PlanError
            The bytes are damaged, or the plan belongs to another trace.
        """
        trace = tuple(accesses)
        capacity, num_batches, num_actions = _read_header(data, trace)
        body = memoryview(data)[_HEADER.size + 4 :]
        sizes = [num_batches + 1, *[num_batches] * 3, capacity]
        ends = np.cumsum([8 * size for size in sizes]).tolist()
        parts = [
            np.frombuffer(body[end - 8 * size : end], dtype=np.int64)
            for size, end in zip(sizes, ends, strict=True)
        ]
        offsets, hits, misses, admissions, resident_after = parts
        return cls(
            capacity=capacity,
            accesses=trace,
            offsets=offsets,
            actions=np.frombuffer(body[ends[-1] :], dtype=np.int32, count=num_actions),
            hits=hits,
            misses=misses,
            admissions=admissions,
            resident_after=resident_after,
        )

    def _contradiction(self, batch: int, position: int, node: int, content: IdArray) -> str:
        action = int(self.batch_actions(batch)[position])
        where = f"batch {batch}, position {position}, node {node}"
        slot = action if action >= 0 else ADMIT - action
        if slot >= self.capacity:
            return f"{where}: slot {slot} does not exist, the capacity is {self.capacity}"
        if action >= 0:
            return f"{where}: a hit in slot {slot}, which holds row {int(content[slot])}"
        return f"{where}: enters slot {slot}, which another row enters in the same step"

    def _check_end(self, content: IdArray) -> None:
        kept = self.resident_after >= 0
        wrong = np.flatnonzero(kept & (content != self.resident_after))
        if len(wrong):
            slot = int(wrong[0])
            raise PlanError(
                f"in the end slot {slot} holds row {int(content[slot])}; the plan says "
                f"{int(self.resident_after[slot])}"
            )


class Steps(Sequence[CacheStep]):
    """The steps of a plan, each expanded when it is asked for."""

    def __init__(self, plan: CachePlan) -> None:
        self._plan = plan

    def __len__(self) -> int:
        """Return S."""
        return len(self._plan.accesses)

    @overload
    def __getitem__(self, batch: int) -> CacheStep: ...

    @overload
    def __getitem__(self, batch: slice) -> Sequence[CacheStep]: ...

    def __getitem__(self, batch: int | slice) -> CacheStep | Sequence[CacheStep]:
        """Return the step of ``batch``."""
        if isinstance(batch, slice):
            return [self[b] for b in range(*batch.indices(len(self)))]
        if not -len(self) <= batch < len(self):
            raise IndexError(f"batch {batch} is not one of the plan's {len(self)}")
        batch %= len(self)
        return expand(self._plan.accesses[batch], self._plan.batch_actions(batch))

    def __iter__(self) -> Iterator[CacheStep]:
        """Yield the steps in order."""
        return (self[batch] for batch in range(len(self)))


def expand(nodes: NDArray[np.integer], actions: Actions) -> CacheStep:
    """Return the step that ``actions`` (U,) encodes for the batch ``nodes`` (U,). Pure.

    Positions count within ``nodes``, ascending; rows that the device holds are neither hits nor misses.
    """
    num = len(actions)
    hit_pos, hit_slot, miss_pos, miss_row, admit_pos, admit_slot = np.empty((6, num), dtype=np.int64)
    hits, misses, admits = _expand(
        np.ascontiguousarray(nodes), actions, hit_pos, hit_slot, miss_pos, miss_row, admit_pos, admit_slot
    )
    return CacheStep(
        hit_pos=hit_pos[:hits],
        hit_slot=hit_slot[:hits],
        miss_pos=miss_pos[:misses],
        miss_row=miss_row[:misses],
        admit_pos=admit_pos[:admits],
        admit_slot=admit_slot[:admits],
    )


def initial_content(resident: IdArray, capacity: int) -> IdArray:
    """Return ``resident`` (<= C,) as a new (C,) array, -1 where a slot is empty. Pure.

    Raises
    ------
    PlanError
        There are more rows than slots, or an entry is below -1.
    """
    given = np.asarray(resident)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise PlanError(
            f"resident has shape {given.shape} and dtype {given.dtype}; pass one row id per slot, -1 where empty"
        )
    if len(given) > capacity:
        raise PlanError(
            f"resident names {len(given)} slots; the capacity is {capacity}. Pass at most one row per slot"
        )
    if given.size and given.min() < -1:
        raise PlanError(f"resident holds {int(given.min())}; an entry is a row id or -1 for an empty slot")
    content = np.full(capacity, -1, dtype=np.int64)
    content[: len(given)] = given
    return content


def _trace_checksum(trace: tuple[NDArray[np.integer], ...]) -> int:
    checksum = 0
    for nodes in trace:
        checksum = zlib.crc32(np.ascontiguousarray(nodes, dtype=np.int64).data, checksum)
    return checksum


def _read_header(data: bytes, trace: tuple[NDArray[np.integer], ...]) -> tuple[int, int, int]:
    size = _HEADER.size
    if len(data) < size + 4 or data[:8] != _MAGIC:
        raise PlanError(f"these {len(data)} bytes are not a cache plan: they do not start with {_MAGIC!r}")
    (header_sum,) = struct.unpack_from("<I", data, size)
    _, body_sum, trace_sum, capacity, num_batches, num_actions = _HEADER.unpack_from(data)
    expected = size + 4 + 8 * (4 * num_batches + 1 + capacity) + 4 * num_actions
    if zlib.crc32(memoryview(data)[:size]) != header_sum:
        raise PlanError("the header of a cache plan is damaged: its checksum does not match")
    if len(data) != expected or zlib.crc32(memoryview(data)[size + 4 :]) != body_sum:
        raise PlanError(
            f"a cache plan is damaged: {len(data)} bytes of {expected}, or its checksum does not match"
        )
    if len(trace) != num_batches or _trace_checksum(trace) != trace_sum:
        raise PlanError("a cache plan belongs to another trace than the one that it was opened with")
    return capacity, num_batches, num_actions


@njit(cache=True, nogil=True)
def _expand(
    nodes: NDArray[np.integer],
    actions: Actions,
    hit_pos: IdArray,
    hit_slot: IdArray,
    miss_pos: IdArray,
    miss_row: IdArray,
    admit_pos: IdArray,
    admit_slot: IdArray,
) -> tuple[int, int, int]:
    hits, misses, admits = 0, 0, 0
    for position in range(actions.shape[0]):
        action = np.int64(actions[position])
        if action >= 0:
            hit_pos[hits] = position
            hit_slot[hits] = action
            hits += 1
        elif action != ON_DEVICE:
            miss_pos[misses] = position
            miss_row[misses] = nodes[position]
            misses += 1
            if action <= ADMIT:
                admit_pos[admits] = position
                admit_slot[admits] = ADMIT - action
                admits += 1
    return hits, misses, admits


@njit(cache=True, nogil=True)
def _replay(
    nodes: NDArray[np.integer],
    actions: Actions,
    batch: int,
    content: IdArray,
    written: IdArray,
    counts: IdArray,
) -> int:
    """Apply one step to ``content``; return the first position that contradicts it, or -1."""
    capacity = content.shape[0]
    for position in range(actions.shape[0]):
        slot = np.int64(actions[position])
        if slot >= 0:
            if slot >= capacity or content[slot] != nodes[position]:
                return position
            counts[0] += 1
    for position in range(actions.shape[0]):
        action = np.int64(actions[position])
        if action >= 0 or action == ON_DEVICE:
            continue
        counts[1] += 1
        if action <= ADMIT:
            slot = ADMIT - action
            if slot >= capacity or written[slot] == batch:
                return position
            written[slot] = batch
            content[slot] = nodes[position]
            counts[2] += 1
    return -1
