"""The work of a planned run, from the counts of its plan and the costs that a recording shows. Pure.

`learn_costs` learns seconds and bytes for each row, `planned_work` applies them to the superbatches of a plan, and
`steady_work` makes the work of a run whose plan has only means.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gloader.replay.demands import disk_demands, stage_of, strategies_of
from gloader.replay.work import NOTHING, BatchWork, Demands, SuperbatchWork, Work

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gloader.replay.recording import RecordedEvent, Recording
    from gloader.replay.work import BatchCounts, SuperbatchCounts
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.types import BatchId, IdArray


class _Usual(NamedTuple):
    """Processor seconds of a kind of work."""

    each: float  # piece of it
    row: float
    byte: float = 0.0
    slot: float = 0.0  # of the host cache
    node: float = 0.0  # row of the table, used or not


# For kinds of work that a recording lacks; otherwise only the proportions of rows, bytes and slots. From runs of
# `experiments/bench/replay.py` on two cores, with rows of 512 B.
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
    """Processor seconds of work on rows."""

    scale: Mapping[str, float]  # of the usual seconds, by kind of work
    other: float  # for kinds that the recording lacks
    row_bytes: int  # of a row, about: of all tables, as stored
    slots: int  # of the host cache
    nodes: int  # rows of all tables

    def with_slots(self, slots: int) -> Costs:
        """Return the same costs with another number of slots in the host cache."""
        return replace(self, slots=slots)

    def stage(self, counts: SuperbatchCounts) -> float:
        """Return the processor seconds to count a superbatch's misses, and of its sweep."""
        return self.seconds(
            f"stage {counts.strategy}", counts.misses, counts.stage_bytes + counts.written_bytes
        )

    def read(self, batch: BatchCounts, strategy: str) -> float:
        """Return the processor seconds to move a batch's misses into its buffer."""
        num_bytes = batch.read_bytes or batch.misses * self.row_bytes
        return self.seconds(f"read {strategy}", batch.misses, num_bytes)

    def gather(self, rows: float) -> Demands:
        """Return the demands to copy rows: hits out of the cache and admissions into it, or features in memory."""
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
        """Return the processor seconds of a ``kind`` of work on so many rows and bytes."""
        usual = _USUAL[kind]
        return self.scale.get(kind, self.other) * (
            usual.each
            + usual.row * rows
            + usual.byte * num_bytes
            + usual.slot * self.slots
            + usual.node * self.nodes
        )


def learn_costs(recording: Recording) -> Costs:
    """Return the costs of work in a recording, by kind. Pure."""
    tables = recording.header.tables
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
    """Yield an event's kind of work on rows, the number of rows, and their bytes; nothing if it has none."""
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


_SECONDS: Final = tuple(name for name in Demands._fields if name.endswith("_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCosts:
    """Processor seconds of a batch in the sampler threads, on average."""

    trace_s: float  # ahead, for its trace; 0 if none was sampled ahead
    kept_s: float  # of a kept batch
    again_s: float  # of a batch that is sampled again
    kept_share: float = 1.0  # of the kept batches

    @classmethod
    def of(cls, recording: Recording) -> SampleCosts:
        """Return the costs of sampling in a recording."""
        traces: list[float] = []
        kept: list[float] = []
        again: list[float] = []
        for event in recording.events:
            if event.stage == "sample":
                where = traces if stage_of(event) == "trace" else kept if event.notes.get("kept") else again
                where.append(event.cpu_s)
        trace = _mean(traces)
        sampled = _mean(again) or trace
        # A kept batch is still sorted, which is the smaller part of sampling.
        return cls(
            trace_s=trace or sampled,
            kept_s=_mean(kept) or max(sampled - trace, 0.0),
            again_s=sampled or _mean(kept),
            kept_share=len(kept) / max(len(kept) + len(again), 1),
        )

    def of_plan(self, *, kept_share: float, factor: float = 1.0) -> SampleCosts:
        """Return the costs with another share of kept batches, and ``factor`` times the time to sample one."""
        return SampleCosts(
            trace_s=factor * self.trace_s,
            kept_s=factor * self.kept_s,
            again_s=factor * self.again_s,
            kept_share=kept_share,
        )

    def sample_s(self, position: int) -> float:
        """Return the seconds of the batch at ``position``; kept batches are spread evenly."""
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
    """Return the work of a run whose rows are cached and read according to ``counts``. Pure.

    Parameters
    ----------
    recorded : the work of the same batches, as recorded
    counts : of each superbatch; empty for features in memory
    rows : (batches,) rows gathered on the host
    costs : of work on rows
    sampling : of a batch
    rates : of the disk
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
    for one in counts:
        superbatches.append(costs.superbatch(one, rates))
        for of_batch in one.batches:
            position = len(batches)
            batch = _cached(
                recorded.batches[position], position, costs, sampling, of_batch.hits + of_batch.admitted
            )
            batches.append(replace(batch, read=costs.read_demands(of_batch, one.strategy, rates)))
    return replace(recorded, batches=tuple(batches), superbatches=tuple(superbatches))


def _in_memory(batch: BatchWork, rows: int, costs: Costs, sampling: SampleCosts) -> BatchWork:
    """Return the batch with features in memory, of which it gathers ``rows``."""
    return replace(
        batch,
        trace=NOTHING,
        sample=batch.sample._replace(cpu_s=sampling.again_s),
        read=NOTHING,
        gather=costs.gather(rows),
    )


def _cached(batch: BatchWork, position: int, costs: Costs, sampling: SampleCosts, copied: float) -> BatchWork:
    """Return the batch at ``position`` with features on the SSD; ``copied`` rows go out of the cache and into it."""
    return replace(
        batch,
        trace=batch.trace._replace(cpu_s=batch.trace.cpu_s or sampling.trace_s),
        sample=batch.sample._replace(cpu_s=sampling.sample_s(position)),
        gather=costs.gather(copied),
    )


def resized_work(
    recorded: Work, batches: Sequence[BatchId], sizes: NDArray[np.float64], *, sampling: float
) -> Work:
    """Return the work of other batches than the recorded ones, without reads of rows. Pure.

    A batch takes the mean of the recorded batches, in proportion to its rows and edges.

    Parameters
    ----------
    recorded : the recorded work
    batches : the others, in the order of the stream
    sizes : (batches,) rows and edges of each, over the mean of the recorded batches
    sampling : processor seconds to sample a batch, over those of a recorded one
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
    """Return the mean demands of pieces of work of one kind."""
    means: dict[str, Any] = {name: fmean(getattr(one, name) for one in demands) for name in _SECONDS}
    return demands[0]._replace(**means)


def _scaled(demands: Demands, factor: float) -> Demands:
    """Return the demands multiplied by ``factor``, with the same cores."""
    return demands._replace(**{name: factor * getattr(demands, name) for name in _SECONDS})


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


# Two superbatches are under way at a time: a run is in its beginning before the third.
_SUPERBATCHES = 4
_FEWEST, _MOST = 48, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNeeds:
    """The means of a step under a memory plan; without a strategy the features are in memory."""

    superbatch: int  # S
    rows: float  # of a batch, gathered on the host
    misses: float  # among them
    strategy: str = ""
    ahead_s: float = 0.0  # of the disk before the batch's turn
    own_s: float = 0.0  # and in it
    swept_bytes: float = 0.0  # read and written before the batch's turn
    kept_share: float = 0.0  # share of the batches that are kept from their trace on

    def corrected(self, *, misses: float, ahead: float, own: float) -> StepNeeds:
        """Return the same with the misses, the sweeps, and the reads in a batch's turn multiplied by these factors."""
        return replace(
            self,
            misses=min(self.misses * misses, self.rows),
            ahead_s=self.ahead_s * ahead,
            swept_bytes=self.swept_bytes * ahead,
            own_s=self.own_s * own,
        )


def num_steps(superbatch: int) -> int:
    """Return the number of batches that show the time of a step with superbatches of that size. Pure."""
    return min(max(_SUPERBATCHES * superbatch, _FEWEST), _MOST)


def steady_work(
    known: Sequence[BatchWork], needs: StepNeeds, costs: Costs, sampling: SampleCosts, *, steps: int
) -> Work:
    """Return work of two stretches of batches, epoch 0 to warm up and epoch 1, whose batches count. Pure.

    Parameters
    ----------
    known : recorded batches, used in turn
    needs : of the plan
    costs : of work on rows
    sampling : of a batch
    steps : batches of a stretch
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


def _steady_batch(
    batch: BatchWork, position: int, needs: StepNeeds, costs: Costs, sampling: SampleCosts
) -> BatchWork:
    if not needs.strategy:
        return _in_memory(batch, int(needs.rows), costs, sampling)
    # About as many rows are admitted as are missed.
    found = _cached(batch, position, costs, sampling, max(needs.rows, needs.misses))
    cpu_s = costs.seconds(f"read {needs.strategy}", needs.misses, needs.misses * costs.row_bytes)
    return replace(found, read=Demands(cpu_s=cpu_s, disk_s=needs.own_s))
