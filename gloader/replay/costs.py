"""What work costs for each row and byte, learnt from a recording: turns counts of a plan into demands. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from gloader.replay.demands import disk_demands, strategies_of
from gloader.replay.work import SuperbatchWork

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gloader.replay.counts import BatchCounts, SuperbatchCounts
    from gloader.replay.recording import RecordedEvent, Recording
    from gloader.replay.work import Demands
    from gloader.ssd_store.cost.strategy import IoRates


class _Usual(NamedTuple):
    """Processor seconds of a kind of work."""

    each: float  # piece of it
    row: float
    byte: float = 0.0
    slot: float = 0.0  # of the host cache
    node: float = 0.0  # row of the table, whether anybody wants it or not


# Where a recording has none of a kind of work; else what it says of rows, bytes and slots in proportion. From runs of
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
    """Processor seconds of what is done to rows."""

    scale: Mapping[str, float]  # of the usual seconds, by kind of work
    other: float  # of kinds that the recording has none of
    row_bytes: int  # of a row, about: of all tables, as stored
    slots: int  # of the host cache
    nodes: int  # rows of all tables

    def with_slots(self, slots: int) -> Costs:
        """Return the same with a host cache of another size."""
        return replace(self, slots=slots)

    def inspect(self, counts: SuperbatchCounts) -> float:
        """Return the processor seconds of planning a superbatch."""
        return self.seconds("inspect", counts.accesses, 0)

    def stage(self, counts: SuperbatchCounts) -> float:
        """Return the processor seconds of counting what a superbatch misses, and of its sweep."""
        return self.seconds(
            f"stage {counts.strategy}", counts.misses, counts.stage_bytes + counts.written_bytes
        )

    def read(self, batch: BatchCounts, strategy: str) -> float:
        """Return the processor seconds of bringing what a batch misses into its buffer."""
        num_bytes = batch.read_bytes or batch.misses * self.row_bytes
        return self.seconds(f"read {strategy}", batch.misses, num_bytes)

    def gather(self, batch: BatchCounts) -> float:
        """Return the processor seconds of copying hits out of the cache, and admissions into it."""
        copied = batch.hits + batch.admitted
        return self.seconds("gather", copied, copied * self.row_bytes)

    def gather_in_memory(self, rows: int) -> float:
        """Return the processor seconds of copying the rows of a batch out of features in memory."""
        return self.seconds("gather", rows, rows * self.row_bytes)

    def superbatch(self, counts: SuperbatchCounts, rates: IoRates) -> SuperbatchWork:
        """Return what planning and staging a superbatch takes on a disk of these rates."""
        return SuperbatchWork(
            num_batches=counts.num_batches,
            inspect=disk_demands(rates, cpu_s=self.inspect(counts)),
            stage=disk_demands(
                rates,
                cpu_s=self.stage(counts),
                requests=counts.stage_requests,
                bytes_read=counts.stage_bytes,
                bytes_written=counts.written_bytes,
            ),
        )

    def read_demands(self, batch: BatchCounts, strategy: str, rates: IoRates) -> Demands:
        """Return what bringing the missing rows of a batch takes on a disk of these rates."""
        return disk_demands(
            rates,
            cpu_s=self.read(batch, strategy),
            requests=batch.read_requests,
            bytes_read=batch.read_bytes,
            is_pack=strategy == "packed",
        )

    def seconds(self, kind: str, rows: float, num_bytes: float) -> float:
        """Return the processor seconds of ``kind`` of work on so many rows and bytes."""
        usual = _USUAL[kind]
        return self.scale.get(kind, self.other) * (
            usual.each
            + usual.row * rows
            + usual.byte * num_bytes
            + usual.slot * self.slots
            + usual.node * self.nodes
        )


def learn_costs(recording: Recording) -> Costs:
    """Return what work cost in a recording, by kind. Pure."""
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
    """Yield the kind of work that an event is on rows, how many rows, and their bytes; nothing where it is none."""
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
