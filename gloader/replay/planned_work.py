"""A planned run's work, from its plan's counts and a recording's costs. Pure.

A what-if changes a recorded run's plan, for example its cache. The new plan's work is not recorded, so it is estimated:

- `learn_costs` learns from the recording the processor seconds per row and byte.
- `planned_work` applies these costs to the counts of each superbatch in the new plan.
- `resized_work` makes the work for batches with another size.
- `steady_work` makes a run's work from a plan's means.

`gloader.lab.analyze.predict` and `gloader.pipeline.advisor` replay this work to predict a run's time.
`gloader.replay.work` explains the stages, the traces, the demands and the read strategies. A row is missing if the host
cache does not hold it, and admitted if the cache takes it in.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gloader.replay.demands import disk_demands, stage_of, strategies_of
from gloader.replay.work import NOTHING, BatchWork, Demands, RunWork, SuperbatchWork

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gloader.replay.recording import RecordedEvent, Recording
    from gloader.replay.work import BatchCounts, SuperbatchCounts
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.types import BatchId, IdArray


class _Usual(NamedTuple):
    """Coefficients for the usual processor seconds of a kind of work: a sum of five terms."""

    each: float  # seconds per piece of work
    row: float  # seconds per row
    byte: float = 0.0  # seconds per byte
    slot: float = 0.0  # seconds per slot in the host cache
    node: float = 0.0  # seconds per row of all tables, used or not


# Usual seconds by kind of work, from runs of `experiments/bench/replay.py` on two cores, with rows of 512 B. They are
# scaled to each kind's recorded seconds, so that only the proportions of rows, bytes and slots count. A kind that the
# recording lacks takes the mean scale. A kind is a stage, for staging and reading with the strategy's name after it.
_USUAL: Final[Mapping[str, _Usual]] = {
    "inspect": _Usual(each=1e-3, row=40e-9, slot=20e-9, node=5e-9),
    "stage direct": _Usual(each=1e-3, row=57e-9),
    "stage staged": _Usual(each=8e-3, row=1e-6, byte=0.25e-9),
    "stage packed": _Usual(each=8e-3, row=0.5e-6, byte=0.15e-9),
    "read direct": _Usual(each=0.2e-3, row=2e-6, byte=0.7e-9),
    "read staged": _Usual(each=0.2e-3, row=300e-9),
    "read packed": _Usual(each=0.2e-3, row=300e-9, byte=0.5e-9),
    "gather": _Usual(each=0.1e-3, row=100e-9, byte=0.2e-9),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs for work on rows, in processor seconds."""

    scale: Mapping[str, float]  # recorded seconds divided by usual seconds, by kind of work
    other: float  # mean scale, for kinds of work that the recording lacks
    row_bytes: int  # bytes per stored row, the largest over all tables
    slots: int  # slots in the host cache; a slot holds one row
    nodes: int  # number of rows over all tables

    def with_slots(self, slots: int) -> Costs:
        """Return the same costs with another number of slots in the host cache."""
        return replace(self, slots=slots)

    def stage(self, counts: SuperbatchCounts) -> float:
        """Return the processor seconds of "stage": to count a superbatch's misses, and to sweep them if it is swept."""
        return self.seconds(
            f"stage {counts.strategy}", counts.misses, counts.stage_bytes + counts.written_bytes
        )

    def read(self, batch: BatchCounts, strategy: str) -> float:
        """Return the processor seconds to move a batch's missing rows into its feature buffer."""
        # A staged superbatch has its rows in memory, so the batch has no reads of its own.
        num_bytes = batch.read_bytes or batch.misses * self.row_bytes
        return self.seconds(f"read {strategy}", batch.misses, num_bytes)

    def gather(self, rows: float) -> Demands:
        """Return the demands to copy rows: cache hits and admissions, or feature rows in memory."""
        return Demands(cpu_s=self.seconds("gather", rows, rows * self.row_bytes))

    def superbatch(self, counts: SuperbatchCounts, rates: IoRates) -> SuperbatchWork:
        """Return the demands to plan and stage a superbatch on a disk with these rates."""
        return SuperbatchWork(
            num_batches=counts.num_batches,
            inspect=Demands(cpu_s=self.seconds("inspect", counts.accesses, 0)),
            stage=disk_demands(
                rates,
                cpu_s=self.stage(counts),
                requests=counts.stage_requests,
                bytes_read=counts.stage_bytes,
                bytes_written=counts.written_bytes,
            ),
        )

    def read_demands(self, batch: BatchCounts, strategy: str, rates: IoRates) -> Demands:
        """Return the demands to read a batch's missing rows on a disk with these rates."""
        return disk_demands(
            rates,
            cpu_s=self.read(batch, strategy),
            requests=batch.read_requests,
            bytes_read=batch.read_bytes,
            is_pack=strategy == "packed",
        )

    def seconds(self, kind: str, rows: float, num_bytes: float) -> float:
        """Return the processor seconds for a ``kind`` of work, a key of `_USUAL`, on ``rows`` and ``num_bytes``."""
        usual = _USUAL[kind]
        return self.scale.get(kind, self.other) * (
            usual.each
            + usual.row * rows
            + usual.byte * num_bytes
            + usual.slot * self.slots
            + usual.node * self.nodes
        )


def learn_costs(recording: Recording) -> Costs:
    """Return a recording's costs by kind of work. Pure."""
    tables = recording.header.tables
    # A scale of 1 gives the usual seconds, with which the recorded seconds are compared.
    usual = Costs(
        scale={},
        other=1.0,
        row_bytes=max((table.row_bytes for table in tables), default=0),
        slots=sum(table.cache_rows for table in tables),
        nodes=sum(table.num_rows for table in tables),
    )
    strategies = strategies_of(recording)
    spent: dict[str, float] = defaultdict(float)
    expected: dict[str, float] = defaultdict(float)
    for event in recording.events:
        for kind, rows, num_bytes in _rows_of(event, strategies, usual.row_bytes):
            spent[kind] += event.cpu_s
            expected[kind] += usual.seconds(kind, rows, num_bytes)
    scale = {kind: spent[kind] / expected[kind] for kind in spent}
    other = sum(spent.values()) / sum(expected.values()) if spent else 1.0
    return replace(usual, scale=scale, other=other)


def _rows_of(
    event: RecordedEvent, strategies: Mapping[int, str], row_bytes: int
) -> Iterator[tuple[str, float, float]]:
    """Yield (kind of work, rows, bytes) for an event, or nothing if it has no work on rows."""
    notes = event.notes
    if event.stage == "inspect":
        yield "inspect", notes["hits"] + notes["misses"], 0
    elif event.stage == "stage" and "strategy" in notes:
        strategy = strategies[notes["superbatch"]]
        yield f"stage {strategy}", notes["misses"], event.bytes_read + event.bytes_written
    elif event.stage == "read" and notes.get("superbatch") in strategies:
        strategy = strategies[notes["superbatch"]]
        yield f"read {strategy}", notes["misses"], event.bytes_read or notes["misses"] * row_bytes
    elif event.stage == "gather":
        copied = notes["hits"] + notes["admitted"] if "hits" in notes else notes["rows"]
        yield "gather", copied, copied * row_bytes


# The fields of `Demands` in seconds.
_SECONDS: Final = tuple(name for name in Demands._fields if name.endswith("_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCosts:
    """Mean processor seconds per batch in the sampler threads.

    Each batch is sampled for its trace. Some of these samples are *kept* in memory and only finished later. The other
    batches are sampled again.
    """

    trace_s: float  # seconds to sample a batch for its trace; ``again_s`` without recorded traces
    kept_s: float  # seconds to finish a kept batch
    again_s: float  # seconds to sample a batch again
    kept_share: float = 1.0  # share of batches that are kept

    @classmethod
    def of(cls, recording: Recording) -> SampleCosts:
        """Return a recording's sampling costs; 0 for costs that it cannot give."""
        traces: list[float] = []
        kept: list[float] = []
        again: list[float] = []
        for event in recording.events:
            if event.stage == "sample":
                costs = traces if stage_of(event) == "trace" else kept if event.notes.get("kept") else again
                costs.append(event.cpu_s)
        trace = _mean(traces)
        sampled = _mean(again) or trace
        # A kept batch only has to be sorted, which is the smaller part of sampling. Without recorded kept batches, this
        # part is estimated as the difference between a whole sampling and a trace.
        return cls(
            trace_s=trace or sampled,
            kept_s=_mean(kept) or max(sampled - trace, 0.0),
            again_s=sampled or _mean(kept),
            kept_share=len(kept) / max(len(kept) + len(again), 1),
        )

    def of_plan(self, *, kept_share: float, factor: float = 1.0) -> SampleCosts:
        """Return the costs with another share of kept batches, and all seconds times ``factor``."""
        return SampleCosts(
            trace_s=factor * self.trace_s,
            kept_s=factor * self.kept_s,
            again_s=factor * self.again_s,
            kept_share=kept_share,
        )

    def sample_s(self, position: int) -> float:
        """Return the seconds for the batch at ``position``. Kept batches are spread evenly over the positions."""
        # True if the number of kept batches, rounded down, grows at this position.
        is_kept = int((position + 1) * self.kept_share) > int(position * self.kept_share)
        return self.kept_s if is_kept else self.again_s


def planned_work(
    recorded: RunWork,
    counts: Sequence[SuperbatchCounts],
    *,
    rows: IdArray,
    costs: Costs,
    sampling: SampleCosts,
    rates: IoRates,
) -> RunWork:
    """Return the work for a run that caches and reads rows as in the new plan's ``counts``. Pure.

    Parameters
    ----------
    recorded : the same batches' recorded work
    counts : the plan's counts for each superbatch; empty for features in memory
    rows : (batches,) rows gathered on the host, used for features in memory
    costs : costs for work on rows
    sampling : costs to sample a batch
    rates : the disk's rates
    """
    if not counts:
        return replace(
            recorded,
            superbatches=(),
            batches=tuple(
                _in_memory(batch, int(rows[position]), costs, sampling)
                for position, batch in enumerate(recorded.batches)
            ),
        )
    batches: list[BatchWork] = []
    superbatches: list[SuperbatchWork] = []
    for superbatch in counts:
        superbatches.append(costs.superbatch(superbatch, rates))
        for batch_counts in superbatch.batches:
            position = len(batches)
            batch = _cached(
                recorded.batches[position],
                position,
                costs,
                sampling,
                batch_counts.hits + batch_counts.admitted,
            )
            batches.append(replace(batch, read=costs.read_demands(batch_counts, superbatch.strategy, rates)))
    return replace(recorded, batches=tuple(batches), superbatches=tuple(superbatches))


def _in_memory(batch: BatchWork, rows: int, costs: Costs, sampling: SampleCosts) -> BatchWork:
    """Return a batch's work if it gathers ``rows`` from features in memory."""
    return replace(
        batch,
        trace=NOTHING,
        sample=batch.sample._replace(cpu_s=sampling.again_s),
        read=NOTHING,
        gather=costs.gather(rows),
    )


def _cached(batch: BatchWork, position: int, costs: Costs, sampling: SampleCosts, copied: float) -> BatchWork:
    """Return a batch's work with features on the SSD and a host cache; its reads are left unchanged.

    ``position`` is the batch's stream position. ``copied`` counts the rows copied out of the cache and into it.
    """
    return replace(
        batch,
        trace=batch.trace._replace(cpu_s=batch.trace.cpu_s or sampling.trace_s),
        sample=batch.sample._replace(cpu_s=sampling.sample_s(position)),
        gather=costs.gather(copied),
    )


def resized_work(
    recorded: RunWork, batches: Sequence[BatchId], sizes: NDArray[np.float64], *, sampling: float
) -> RunWork:
    """Return the work for batches that were not recorded, without reading rows. Pure.

    Each batch gets the recorded batches' mean work. Sampling is multiplied by ``sampling``, and transfer and
    computation are multiplied by the batch's size.

    Parameters
    ----------
    recorded : the recorded work
    batches : the new batches, in stream order
    sizes : (batches,) rows plus edges of each batch, relative to the mean recorded batch
    sampling : processor seconds to sample a batch, relative to a recorded batch
    """
    known = recorded.batches
    trace, sample, transfer, compute = (
        _mean_demands([getattr(batch, name) for batch in known])
        for name in ("trace", "sample", "transfer", "compute")
    )
    # Pauses before the epochs' first batches.
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
    """Return the mean demands for the same kind of work."""
    means: dict[str, Any] = {name: fmean(getattr(one, name) for one in demands) for name in _SECONDS}
    return demands[0]._replace(**means)


def _scaled(demands: Demands, factor: float) -> Demands:
    """Return the demands multiplied by ``factor``, with the same cores."""
    return demands._replace(**{name: factor * getattr(demands, name) for name in _SECONDS})


def _mean(values: list[float]) -> float:
    """Return the mean, or 0 without values."""
    return sum(values) / len(values) if values else 0.0


# Superbatches until a run is steady: later superbatches take as long as the one before. Two are under way at the same
# time, so the first two still belong to the start.
_SUPERBATCHES: Final = 4
_FEWEST: Final = 48  # least number of batches; fewer do not give a reliable mean
_MOST: Final = 512  # largest number of batches; more would make the replay slow


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNeeds:
    """A step's mean needs under a memory plan."""

    superbatch: int  # S, superbatch size
    rows: float  # rows gathered on the host per batch
    misses: float  # cache misses among these rows
    strategy: str = ""  # "direct", "staged" or "packed"; "" for features in memory
    ahead_s: float = 0.0  # disk seconds per batch for its superbatch's sweep
    own_s: float = 0.0  # disk seconds for the batch's own reads
    swept_bytes: float = 0.0  # bytes per batch that the sweep reads and writes
    kept_share: float = 0.0  # share of kept batches; see `SampleCosts`

    def corrected(self, *, misses: float, ahead: float, own: float) -> StepNeeds:
        """Return the needs times three factors, which correct a prediction by measurements.

        Parameters
        ----------
        misses : factor on the misses
        ahead : factor on the sweeps' disk time and bytes
        own : factor on the disk time of the batches' own reads
        """
        return replace(
            self,
            misses=min(self.misses * misses, self.rows),
            ahead_s=self.ahead_s * ahead,
            swept_bytes=self.swept_bytes * ahead,
            own_s=self.own_s * own,
        )


def num_steps(superbatch: int) -> int:
    """Return the number of batches to replay for a reliable step time with superbatches of this size. Pure."""
    return min(max(_SUPERBATCHES * superbatch, _FEWEST), _MOST)


def steady_work(
    known: Sequence[BatchWork], needs: StepNeeds, costs: Costs, sampling: SampleCosts, *, steps: int
) -> RunWork:
    """Return the work for two epochs of ``steps`` batches. Epoch 0 warms up, and epoch 1 is measured. Pure.

    Parameters
    ----------
    known : recorded batches, repeated in turn as often as needed
    needs : the plan's needs per step
    costs : costs for work on rows
    sampling : costs to sample a batch
    steps : batches per epoch
    """
    sampling = sampling.of_plan(kept_share=needs.kept_share)
    batches = tuple(
        replace(
            _steady_batch(known[position % len(known)], position, needs, costs, sampling),
            epoch=position // steps,
            index=position % steps,
            pause_s=0.0,
        )
        for position in range(2 * steps)
    )
    if not needs.strategy:
        return RunWork(batches=batches)
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
    return RunWork(batches=batches, superbatches=tuple(superbatches))


def _steady_batch(
    batch: BatchWork, position: int, needs: StepNeeds, costs: Costs, sampling: SampleCosts
) -> BatchWork:
    """Return the work at stream ``position`` of a steady run, from the recorded ``batch``."""
    if not needs.strategy:
        return _in_memory(batch, int(needs.rows), costs, sampling)
    # About as many rows are admitted as are missed. So the copied rows, hits and admissions, are about all rows.
    cached = _cached(batch, position, costs, sampling, max(needs.rows, needs.misses))
    cpu_s = costs.seconds(f"read {needs.strategy}", needs.misses, needs.misses * costs.row_bytes)
    return replace(cached, read=Demands(cpu_s=cpu_s, disk_s=needs.own_s))
