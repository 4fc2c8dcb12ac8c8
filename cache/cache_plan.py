"""A cache plan: the host cache's action for every access in a superbatch.

An access is one row that one batch needs. Its action (see `actions`) is one of four: a hit in a slot, a miss that
bypasses the cache, a miss that enters a slot, or a row on the device. The planners make plans. The gather expands a
batch's actions to its `CacheStep`, which lists the positions of its hits, misses and admissions (misses that enter a
slot).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gloader.cache.actions import ADMIT, ON_DEVICE, batch_step, select_misses
from gloader.cache.trace import lengths_of
from gloader.core.kernels import njit
from gloader.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.cache.actions import Actions
    from gloader.types import CacheStep, IdArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CachePlan:
    """The host cache's actions for each batch in a superbatch. Holds a reference to the trace, no copy.

    `step` expands one batch's actions into a `CacheStep`. The actions take 4 bytes per access. At execution the caller
    has the batch's nodes, so a plan `without_trace` suffices then: pass `batch_actions` and the nodes to `batch_step`.
    """

    capacity: int  # C, the cache's slots
    # The trace: S arrays of unique node ids; empty after `without_trace`.
    accesses: Sequence[NDArray[np.integer]]
    offsets: IdArray  # (S + 1,) start of each batch in `actions`
    actions: Actions  # (A,) int32, one code per access, see `gloader.cache.actions`
    hits: IdArray  # (S,) hits per batch
    misses: IdArray  # (S,) misses per batch
    admissions: IdArray  # (S,) admitted rows per batch
    resident_after: IdArray  # (C,) row in each slot after the last batch, -1 if the slot is free

    @property
    def num_hits(self) -> int:
        """Accesses served from the cache."""
        return int(self.hits.sum())

    @property
    def num_misses(self) -> int:
        """Rows to read."""
        return int(self.misses.sum())

    @property
    def steps(self) -> tuple[CacheStep, ...]:
        """All batches' steps, expanded. `step` expands a single one."""
        return tuple(map(self.step, range(self.num_batches)))

    @property
    def num_bytes(self) -> int:
        """The plan's bytes without the trace."""
        counts = (self.hits, self.misses, self.admissions)
        return sum(a.nbytes for a in (self.offsets, self.actions, self.resident_after, *counts))

    @property
    def num_batches(self) -> int:
        """S, the number of batches."""
        return len(self.offsets) - 1

    @property
    def has_trace(self) -> bool:
        """True if the plan still holds its batches' nodes."""
        return len(self.accesses) == self.num_batches

    def without_trace(self) -> CachePlan:
        """Return the plan without its batches' nodes; both share the actions. Pure."""
        return replace(self, accesses=())

    def batch_actions(self, batch: int) -> Actions:
        """Return one batch's actions (U,), a view."""
        return self.actions[self.offsets[batch] : self.offsets[batch + 1]]

    def step(self, batch: int, order: NDArray[np.integer] | None = None) -> CacheStep:
        """Return ``batch``'s step; see `batch_step` for ``order``.

        Raises
        ------
        PlanError
            The trace was dropped, or ``order`` does not fit.
        """
        return batch_step(self.batch_actions(batch), self._nodes(batch), order)

    def miss_rows(self, batch: int) -> IdArray:
        """Return the rows (M,) that ``batch`` reads, in the trace's order: ascending if the trace is sorted.

        Raises
        ------
        PlanError
            The trace was dropped.
        """
        rows = np.empty(int(self.misses[batch]), dtype=np.int64)
        if select_misses(self._nodes(batch), self.batch_actions(batch), rows) != len(rows):
            raise PlanError(
                f"batch {batch}: the plan counts {len(rows)} misses, but its actions have another number"
            )
        return rows

    def _nodes(self, batch: int) -> NDArray[np.integer]:
        """Return one batch's node ids (U,) from the trace. Raise PlanError if the trace was dropped."""
        if not self.has_trace:
            raise PlanError(
                "this plan was made without_trace(); expand batch_actions(b) with batch_step and the batch's nodes"
            )
        return np.ascontiguousarray(self.accesses[batch])

    def validate(self, resident: IdArray, accesses: Sequence[NDArray[np.integer]] | None = None) -> None:
        """Replay the plan on the slots' contents, without rows, and check every action. O(A + C).

        Parameters
        ----------
        resident : (<= C,) row in each slot before the first batch, -1 if empty
        accesses : the trace to check against. None means the plan's own.

        Raises
        ------
        PlanError
            A hit's slot holds another row, a slot is out of range or written twice in one step, the counts are wrong,
            or the final content is not ``resident_after``.
        """
        trace = self.accesses if accesses is None else accesses
        lengths = lengths_of(trace).tolist()
        if lengths != np.diff(self.offsets).tolist() or self.offsets[-1] != len(self.actions):
            raise PlanError(
                f"the plan has {len(self.offsets) - 1} batches and {len(self.actions)} actions; the trace has "
                f"{len(lengths)} batches and {sum(lengths)} accesses"
            )
        content = initial_content(resident, self.capacity)
        # The number of the step that last wrote each slot. It shows a double write and needs no clearing.
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

    def _contradiction(self, batch: int, position: int, node: int, content: IdArray) -> str:
        """Return the message for an action that contradicts the slots' ``content``."""
        action = int(self.batch_actions(batch)[position])
        where = f"batch {batch}, position {position}, node {node}"
        slot = action if action >= 0 else ADMIT - action
        if slot >= self.capacity:
            return f"{where}: slot {slot} does not exist, the capacity is {self.capacity}"
        if action >= 0:
            return f"{where}: a hit in slot {slot}, which holds row {int(content[slot])}"
        return f"{where}: enters slot {slot}, which another row enters in the same step"

    def _check_end(self, content: IdArray) -> None:
        """Raise PlanError if the replayed ``content`` (C,) contradicts ``resident_after``."""
        # Only slots that the next plan uses are checked. The other slots may hold rows without a further use.
        kept = self.resident_after >= 0
        wrong = np.flatnonzero(kept & (content != self.resident_after))
        if len(wrong):
            slot = int(wrong[0])
            raise PlanError(
                f"in the end slot {slot} holds row {int(content[slot])}; the plan says "
                f"{int(self.resident_after[slot])}"
            )


def initial_content(resident: IdArray, capacity: int) -> IdArray:
    """Return ``resident`` (<= C,) as a new (C,) array, -1 for empty slots. Pure.

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


@njit(cache=True, nogil=True)
def _replay(
    nodes: NDArray[np.integer],
    actions: Actions,
    batch: int,
    content: IdArray,
    written: IdArray,
    counts: IdArray,
) -> int:
    """Apply one step to ``content``. Return the first position that contradicts it, or -1.

    ``written`` (C,) is the last batch that wrote each slot. The hits, misses and admissions are added to ``counts``.
    """
    # Hits come first, because the executor copies them out before it admits rows: an admission may take a hit's slot.
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
