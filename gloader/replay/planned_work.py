"""The work of a run that is planned again: counts of its plan, and what its batches take whatever is planned. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from gloader.replay.demands import stage_of
from gloader.replay.work import NOTHING, BatchWork, Demands

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gloader.replay.costs import Costs
    from gloader.replay.counts import SuperbatchCounts
    from gloader.replay.recording import Recording
    from gloader.replay.work import SuperbatchWork, Work
    from gloader.ssd_store.cost.strategy import IoRates
    from gloader.types import BatchId, IdArray

_SECONDS: Final = tuple(name for name in Demands._fields if name.endswith("_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCosts:
    """Processor seconds of a batch in the sampler threads, on average."""

    trace_s: float  # ahead, for its trace; 0: it was never sampled ahead
    kept_s: float  # of a batch that was kept since
    again_s: float  # of one that is sampled again
    kept_share: float = 1.0  # of the batches that are kept

    @classmethod
    def of(cls, recording: Recording) -> SampleCosts:
        """Return what sampling cost in a recording."""
        traces: list[float] = []
        kept: list[float] = []
        again: list[float] = []
        for event in recording.events:
            if event.stage == "sample":
                where = traces if stage_of(event) == "trace" else kept if event.notes.get("kept") else again
                where.append(event.cpu_s)
        trace = _mean(traces)
        sampled = _mean(again) or trace
        # A batch that is kept is put in order all the same, which is the smaller part of sampling it.
        return cls(
            trace_s=trace or sampled,
            kept_s=_mean(kept) or max(sampled - trace, 0.0),
            again_s=sampled or _mean(kept),
            kept_share=len(kept) / max(len(kept) + len(again), 1),
        )

    def of_plan(self, *, kept_share: float, factor: float = 1.0) -> SampleCosts:
        """Return the same where another share is kept, and sampling a batch takes ``factor`` times as long."""
        return SampleCosts(
            trace_s=factor * self.trace_s,
            kept_s=factor * self.kept_s,
            again_s=factor * self.again_s,
            kept_share=kept_share,
        )

    def sample_s(self, position: int) -> float:
        """Return what the batch at ``position`` takes: those that are kept are spread evenly."""
        is_kept = int((position + 1) * self.kept_share) > int(position * self.kept_share)
        return self.kept_s if is_kept else self.again_s


def planned_work(
    recorded: Work,
    counts: Sequence[SuperbatchCounts],
    *,
    rows: IdArray,
    costs: Costs,
    sampling: SampleCosts,
    rates: IoRates,
) -> Work:
    """Return the work of a run whose rows are cached and read as ``counts`` says. Pure.

    Parameters
    ----------
    recorded : the same batches, as they were recorded
    counts : of each superbatch; empty: features are in memory
    rows : (batches,) that are gathered on the host
    costs : of what is done to rows
    sampling : of a batch
    rates : of the disk
    """
    if not counts:
        return replace(
            recorded,
            superbatches=(),
            batches=tuple(
                replace(
                    batch,
                    trace=NOTHING,
                    sample=batch.sample._replace(cpu_s=sampling.again_s),
                    read=NOTHING,
                    gather=Demands(cpu_s=costs.gather_in_memory(int(rows[position]))),
                )
                for position, batch in enumerate(recorded.batches)
            ),
        )
    batches: list[BatchWork] = []
    superbatches: list[SuperbatchWork] = []
    for one in counts:
        superbatches.append(costs.superbatch(one, rates))
        for of_batch in one.batches:
            batch = recorded.batches[len(batches)]
            batches.append(
                replace(
                    batch,
                    trace=batch.trace._replace(cpu_s=batch.trace.cpu_s or sampling.trace_s),
                    sample=batch.sample._replace(cpu_s=sampling.sample_s(len(batches))),
                    read=costs.read_demands(of_batch, one.strategy, rates),
                    gather=Demands(cpu_s=costs.gather(of_batch)),
                )
            )
    return replace(recorded, batches=tuple(batches), superbatches=tuple(superbatches))


def resized_work(
    recorded: Work, batches: Sequence[BatchId], sizes: NDArray[np.float64], *, sampling: float
) -> Work:
    """Return the work of other batches than those that were recorded, as far as no rows are read for them. Pure.

    A batch takes what those that were recorded took on average, in proportion to its rows and edges.

    Parameters
    ----------
    recorded : those that were
    batches : the others, in the order of the stream
    sizes : (batches,) rows and edges of each, over those of a batch that was recorded, on average
    sampling : processor seconds of sampling a batch, over those of one that was recorded
    """
    known = recorded.batches
    trace, sample, transfer, compute = (
        _mean_demands([getattr(batch, name) for batch in known])
        for name in ("trace", "sample", "transfer", "compute")
    )
    pauses = {batch.epoch: batch.pause_s for batch in known if batch.pause_s}
    return replace(
        recorded,
        batches=tuple(
            BatchWork(
                epoch=one.epoch,
                index=one.index,
                trace=_scaled(trace, sampling),
                sample=_scaled(sample, sampling),
                transfer=_scaled(transfer, size),
                compute=_scaled(compute, size),
                pause_s=pauses.get(one.epoch, 0.0) if one.index == 0 else 0.0,
            )
            for one, size in zip(batches, sizes.tolist(), strict=True)
        ),
    )


def _mean_demands(demands: Sequence[Demands]) -> Demands:
    """Return what pieces of work of one kind need on average."""
    means: dict[str, Any] = {name: fmean(getattr(one, name) for one in demands) for name in _SECONDS}
    return demands[0]._replace(**means)


def _scaled(demands: Demands, factor: float) -> Demands:
    """Return so many times the demands, in the same cores."""
    return demands._replace(**{name: factor * getattr(demands, name) for name in _SECONDS})


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
