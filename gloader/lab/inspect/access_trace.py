"""The trace of an epoch, sampled: the unique nodes of each batch, and nothing else of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gloader.core.thread_start import run_together
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.core.order import EpochOrder
    from gloader.types import Sampler

_PROBE_BATCHES = 2
_BYTES_PER_COUNT = 8  # of a pair of batches, see `next_use_counts`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AccessTrace:
    """The accesses of the first batches of an epoch."""

    accesses: tuple[NDArray[np.integer], ...]  # unique ids of each batch, int32 if N fits
    num_nodes: int
    epoch_batches: int  # batches of the whole epoch

    @property
    def num_accesses(self) -> int:
        """Rows that the batches take."""
        return sum(len(nodes) for nodes in self.accesses)


def sample_trace(
    sampler: Sampler,
    order: EpochOrder,
    *,
    epoch: int = 0,
    batches: int | None = None,
    threads: int = 1,
    budget_bytes: int | None = None,
) -> AccessTrace:
    """Sample the batches that a loader with this sampler and order takes in ``epoch``, or the first of them.

    Parameters
    ----------
    sampler : of the loader; thread-safe
    order : of the loader's seeds, the training nodes
    epoch : 0, 1, ...
    batches : how many; None: the whole epoch
    threads : that sample at once
    budget_bytes : that the trace and the counts between its batches may take; None: any

    Raises
    ------
    ConfigError
        ``batches`` is not positive, or there are no seeds.
    BudgetError
        The trace would not fit; raised after two batches.
    ThreadStartError
        The system allows no more threads.
    """
    num_batches = order.num_batches if batches is None else min(batches, order.num_batches)
    if num_batches < 1:
        raise ConfigError(
            f"{batches} batches of {len(order.seeds)} training nodes: there is nothing to sample"
        )
    ordered = order.epoch_seeds(epoch)
    dtype = np.int32 if order.num_nodes <= np.iinfo(np.int32).max else np.int64

    def nodes_of(index: int) -> NDArray[np.integer]:
        batch = sampler.sample(BatchId(epoch=epoch, index=index), order.batch_seeds(ordered, index))
        return batch.nodes.astype(dtype)

    # The first few tell what all would take, before memory is spent on it.
    first = [nodes_of(index) for index in range(min(_PROBE_BATCHES, num_batches))]
    _require_room(first, num_batches, budget_bytes)
    tasks = [partial(nodes_of, index) for index in range(len(first), num_batches)]
    rest = run_together(tasks, threads=threads, name="gloader-inspect")
    return AccessTrace(accesses=(*first, *rest), num_nodes=order.num_nodes, epoch_batches=order.num_batches)


def _require_room(probe: Sequence[NDArray[np.integer]], num_batches: int, budget_bytes: int | None) -> None:
    """Refuse a trace that would not fit, with the number of batches that would."""
    per_batch = max(nodes.nbytes for nodes in probe)
    needed = num_batches * per_batch + _BYTES_PER_COUNT * num_batches**2
    if budget_bytes is not None and needed > budget_bytes:
        # Half of the budget for the rows and half for the counts, which grow with the square of the batches.
        fitting = max(int(min(budget_bytes / per_batch / 2, (budget_bytes / _BYTES_PER_COUNT / 2) ** 0.5)), 1)
        raise BudgetError(
            f"the trace of {num_batches:,} batches takes about {format_bytes(needed)}; allowed are "
            f"{format_bytes(budget_bytes)}. Inspect fewer with --batches {fitting}"
        )
