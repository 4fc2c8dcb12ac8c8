"""A run as it goes on and on: work of recorded batches under a plan of which means alone are known. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gloader.replay.work import NOTHING, Demands, SuperbatchWork, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.replay.costs import Costs
    from gloader.replay.planned_work import SampleCosts
    from gloader.replay.work import BatchWork

# Two superbatches are under way at a time: what there is before the third is how a run begins.
_SUPERBATCHES = 4
_FEWEST, _MOST = 48, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNeeds:
    """What a memory plan makes of a step, on average; without a strategy the features are in memory."""

    superbatch: int  # S
    rows: float  # of a batch, that are gathered on the host
    misses: float  # of those
    strategy: str = ""
    ahead_s: float = 0.0  # that the disk works before the batch's turn
    own_s: float = 0.0  # and in it
    swept_bytes: float = 0.0  # that are read and written before the batch's turn
    kept_share: float = 0.0  # of the batches, those that are kept from their trace on

    def corrected(self, *, misses: float, ahead: float, own: float) -> StepNeeds:
        """Return the same with so many times the misses, the sweeps, and the reads in a batch's turn."""
        return replace(
            self,
            misses=min(self.misses * misses, self.rows),
            ahead_s=self.ahead_s * ahead,
            swept_bytes=self.swept_bytes * ahead,
            own_s=self.own_s * own,
        )


def num_steps(superbatch: int) -> int:
    """Return the batches whose steps say how long one takes with superbatches of that size. Pure."""
    return min(max(_SUPERBATCHES * superbatch, _FEWEST), _MOST)


def steady_work(
    known: Sequence[BatchWork], needs: StepNeeds, costs: Costs, sampling: SampleCosts, *, steps: int
) -> Work:
    """Return work of two stretches of batches, epoch 0 to begin with and epoch 1, whose batches count. Pure.

    Parameters
    ----------
    known : batches as they were recorded, taken in turn
    needs : of the plan
    costs : of what is done to rows
    sampling : of a batch
    steps : batches of a stretch
    """
    sampling = sampling.of_plan(kept_share=needs.kept_share)
    batches = tuple(
        _batch(known[position % len(known)], position, steps, needs, costs, sampling)
        for position in range(2 * steps)
    )
    if not needs.strategy:
        return Work(batches=batches)
    superbatches, left = [], 2 * steps
    size = min(needs.superbatch, steps)
    while left:
        count = min(size, left)
        left -= count
        superbatches.append(
            SuperbatchWork(
                num_batches=count,
                inspect=Demands(cpu_s=costs.seconds("inspect", count * needs.rows, 0.0)),
                stage=Demands(
                    cpu_s=costs.seconds(
                        f"stage {needs.strategy}",
                        count * needs.misses,
                        count * needs.swept_bytes,
                    ),
                    disk_s=count * needs.ahead_s,
                ),
            )
        )
    return Work(batches=batches, superbatches=tuple(superbatches))


def _batch(
    batch: BatchWork, position: int, steps: int, needs: StepNeeds, costs: Costs, sampling: SampleCosts
) -> BatchWork:
    epoch, index = divmod(position, steps)
    if not needs.strategy:
        return replace(
            batch,
            epoch=epoch,
            index=index,
            trace=NOTHING,
            sample=batch.sample._replace(cpu_s=sampling.again_s),
            read=NOTHING,
            gather=Demands(cpu_s=costs.gather_in_memory(int(needs.rows))),
            pause_s=0.0,
        )
    copied = max(needs.rows - needs.misses, 0.0)
    return replace(
        batch,
        epoch=epoch,
        index=index,
        trace=batch.trace._replace(cpu_s=batch.trace.cpu_s or sampling.trace_s),
        sample=batch.sample._replace(cpu_s=sampling.sample_s(position)),
        read=Demands(
            cpu_s=costs.seconds(f"read {needs.strategy}", needs.misses, needs.misses * costs.row_bytes),
            disk_s=needs.own_s,
        ),
        # About as many rows are admitted as are missed.
        gather=Demands(
            cpu_s=costs.seconds("gather", copied + needs.misses, (copied + needs.misses) * costs.row_bytes)
        ),
        pause_s=0.0,
    )
