"""A small run as its replay has it, the recording that it would have left, and the findings about both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gloader.lab.analyze.findings import CurvePoint, Findings, measured_findings, what_if_of
from gloader.lab.analyze.predict import Prediction
from gloader.replay.calibrate import doubt_of
from gloader.replay.recording import RecordedEvent, RecordedTable, Recording, RunHeader
from gloader.replay.replay import replay
from gloader.replay.stalls import find_stalls, mean_parts
from gloader.replay.work import BatchWork, Demands, Machine, PipelineShape, RunWork, SuperbatchWork
from gloader.ssd_store.cost.io_rates import IoRates

EPOCHS, BATCHES, SUPERBATCH = 3, 8, 4  # batches of an epoch; both superbatches of an epoch are full
COUNTED = (1, 2)  # epochs behind the first
MACHINE = Machine(cores=2.0)
SHAPE = PipelineShape(features="ssd", sampler_threads=2)
RATES = IoRates(
    random_reads_per_s=1e4, read_bytes_per_s=1e9, write_bytes_per_s=1e9, pack_read_bytes_per_s=1e9
)


def work_of_run(*, compute_s: float = 0.010, read_s: float = 0.030) -> RunWork:
    """Return three epochs of eight batches on the SSD, bound by reads unless told otherwise."""
    batches = tuple(
        BatchWork(
            epoch=epoch,
            index=index,
            trace=Demands(cpu_s=0.004),
            sample=Demands(cpu_s=0.002),
            read=Demands(cpu_s=0.001, disk_s=read_s),
            gather=Demands(cpu_s=0.003),
            compute=Demands(cpu_s=compute_s),
        )
        for epoch in range(EPOCHS)
        for index in range(BATCHES)
    )
    superbatch = SuperbatchWork(num_batches=SUPERBATCH, inspect=Demands(cpu_s=0.002))
    return RunWork(batches=batches, superbatches=(superbatch,) * (len(batches) // SUPERBATCH))


def predicted(change: str = "", *, work: RunWork | None = None, **values: Any) -> Prediction:
    """Return the replay of ``work`` as a prediction."""
    work = work or work_of_run()
    replayed = replay(work, MACHINE, SHAPE)
    return Prediction(
        change=change,
        replayed_s=replayed.mean_s(COUNTED),
        replayed=replayed,
        work=work,
        machine=MACHINE,
        shape=SHAPE,
        **values,
    )


def recording_of(prediction: Prediction, *, slower: float = 1.0) -> Recording:
    """Return what a run would have recorded that did what a replay does, ``slower`` times as long."""
    batches, events = prediction.work.batches, []
    for event in prediction.replayed.events:
        of = batches[event.batch]
        is_trace = event.stage == "trace"
        superbatch = {"superbatch": event.batch // SUPERBATCH}
        notes: dict[str, Any] = {"ahead": True} if is_trace else {}
        if event.stage in ("inspect", "stage", "read"):
            notes = superbatch
        events.append(
            RecordedEvent(
                stage="sample" if is_trace else event.stage,
                thread=event.thread + 1,
                epoch=of.epoch,
                batch=of.index,
                batches=SUPERBATCH if event.stage in ("inspect", "stage") else 1,
                started_s=slower * event.started_s,
                ended_s=slower * event.ended_s,
                cpu_s=event.demands.cpu_s,
                requests=10 if event.stage == "read" else 0,
                bytes_read=4096 if event.stage == "read" else 0,
                bytes_written=0,
                notes=notes,
            )
        )
    events += _waits(events)
    return Recording(header=header(), events=tuple(sorted(events, key=lambda event: event.started_s)))


def header(**values: Any) -> RunHeader:
    """Return the header of the run, changed by ``values``."""
    found = RunHeader(
        cores=2,
        torch_threads=2,
        device="cpu",
        shape=SHAPE,
        superbatch=SUPERBATCH,
        superbatch_unit=1,
        sweep_batches=0,
        num_hops=2,
        policy="belady",
        budget_bytes=10**9,
        spill_bytes=0,
        staging_bytes=0,
        tables=(RecordedTable(name="features", num_rows=1000, row_bytes=512, cache_rows=100),),
        rates=RATES,
        state={"next": [0, 0]},
        num_batches=BATCHES,
        dataset="nowhere",
        fingerprint="none",
    )
    return replace(found, **values)


SIZES = {"cache=0.5x": 500_000_000}


def _gigabyte(prediction: Prediction) -> int:
    return SIZES.get(prediction.change, 10**9)


def findings_of_run(
    *what_if: Prediction,
    slower: float = 1.0,
    lags: float = 0.01,
    unexplained: Mapping[str, float] | None = None,
    memory_bytes: Callable[[Prediction], int] = _gigabyte,
    **values: Any,
) -> Findings:
    """Return the findings about the run with ``what_if``, where the run took ``slower`` times what its replay does."""
    base = predicted()
    unexplained = unexplained or {"sample": 0.02, "read": slower - 1, "epoch": slower - 1}
    predictor: Any = SimpleNamespace(
        recording=recording_of(base, slower=slower),
        measured=SimpleNamespace(seconds=slower * base.replayed_s),
        base=base,
        unexplained=unexplained,
        lags=lags,
        doubt=doubt_of(unexplained, lags),
        memory_bytes=memory_bytes,
        spill_bytes=lambda prediction: 0,
    )
    found = measured_findings(predictor, "runs/x")
    if found.is_trusted:
        found = replace(
            found,
            parts=mean_parts(base.replayed, COUNTED),
            stalls=find_stalls(base.work, MACHINE, SHAPE, epochs=COUNTED),
            floor_s=0.24,
            floor_of="disk",
            what_if=tuple(what_if_of(one, predictor) for one in what_if),
            curve=tuple(
                CurvePoint(cache_bytes=size, miss_rate=rate)
                for size, rate in ((0, 1.0), (10**6, 0.4), (10**7, 0.1))
            ),
            knee_bytes=10**6,
        )
    return replace(found, **values)


def _waits(events: list[RecordedEvent]) -> list[RecordedEvent]:
    """Return the loop's waiting before each computation."""
    computed = sorted((event for event in events if event.stage == "compute"), key=lambda one: one.started_s)
    found, at = [], 0.0
    for event in computed:
        found.append(event._replace(stage="wait", started_s=at, ended_s=event.started_s, cpu_s=0.0, notes={}))
        at = event.ended_s
    return found
