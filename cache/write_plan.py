"""The plan of an embedding's slots: for each batch its evictions, its loads and the slots of its rows.

An embedding is the trainable rows of one node type. A slot holds one row in memory. To load a row is to put it into a
slot, and to evict it is to take it out. A step is one optimizer step, one for each batch. All rows of a batch must lie
in slots from the batch's load until its step, so every miss enters a slot. `WritePlanner` plans one superbatch after
another; the loops are in `write_kernels`.

The victim of a load is the row whose next use is farthest (Belady's MIN with mandatory admission), among the rows that
have not been used lately: see ``depth`` in `WritePlanner`. The plan also says where each evicted row goes and where
each loaded row comes from, so that no load reads an old version:

- a row that a known later batch uses goes forward to this batch: its first load takes it from there;
- any other row goes to the table. A load takes it from the table's staged rows if the staging can see the eviction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gloader.types import IdArray

# The source of a load.
FORWARD: Final = 0  # the forward piece of the batch
TABLE: Final = 1  # the table, read ahead by the staging of the superbatch
LATE: Final = 2  # the table, read at the load, because the staging may have read it before the row's eviction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WriteStep:
    """What one batch does: first it waits, then it evicts, then it loads.

    The rows of the batch are its distinct rows in ascending order.
    """

    number: int  # of the batch, counted from the planner's start or restart
    slots: NDArray[np.int32]  # (V,) slot of each of the batch's rows
    load_pos: NDArray[np.int32]  # (L,) positions of the loaded rows among the batch's rows, ascending
    load_from: NDArray[np.int8]  # (L,) FORWARD, TABLE or LATE
    evict_slot: NDArray[np.int32]  # (E,)
    evict_row: IdArray  # (E,) the rows in these slots
    evict_to: IdArray  # (E,) number of the batch that loads the row from its forward piece, -1: to the table
    wait_for: int  # the steps of batches 0..wait_for-1 must be complete before the evictions begin


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WritePlan:
    """The steps of the batches of one superbatch."""

    capacity: int  # C, the slots
    first: int  # number of the plan's batch 0
    staged_after: int  # the staging may read the table when the evictions of batches 0..staged_after-1 are done
    resident_after: IdArray  # (C,) row in each slot after the last batch, -1 if empty

    def __len__(self) -> int:
        """Return S, the number of batches."""
        raise NotImplementedError

    def batch(self, index: int) -> WriteStep:
        """Return the step of batch ``index`` of the superbatch."""
        raise NotImplementedError

    def table_rows(self, index: int) -> IdArray:
        """Return the rows that batch ``index`` loads from the staged rows (TABLE), ascending.

        A row is in the list of at most one batch of a plan.
        """
        raise NotImplementedError


class WritePlanner:
    """Plans the slots of consecutive superbatches. Not thread-safe."""

    def __init__(
        self, num_rows: int, capacity: int, *, depth: int = 4, expected_accesses: int | None = None
    ) -> None:
        raise NotImplementedError

    @property
    def resident(self) -> IdArray:
        """(C,) row in each slot when the next plan begins, -1 if empty."""
        raise NotImplementedError

    def plan(
        self, accesses: Sequence[NDArray[np.integer]], lookahead: Sequence[NDArray[np.integer]] = ()
    ) -> WritePlan:
        """Plan ``accesses``. The planner assumes that the plan is executed.

        The next plan's batches must begin with ``lookahead``, because rows are evicted forward to them.
        """
        raise NotImplementedError

    def restart(self, resident: IdArray) -> None:
        """Start anew with batch 0, from the rows that are really in the slots; all other rows are in the table."""
        raise NotImplementedError
