"""Costs by row and byte are learnt from a recording, and turn another plan's counts into demands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from replay_recordings import RATES, recorded

from gloader.errors import ConfigError
from gloader.replay.changes import (
    changed_compute,
    changed_machine,
    changed_rates,
    changed_shape,
    parse_changes,
)
from gloader.replay.planned_work import Costs, SampleCosts, learn_costs, planned_work, resized_work
from gloader.replay.recording import RecordedEvent, Recording
from gloader.replay.replay import replay
from gloader.replay.work import (
    NOTHING,
    BatchCounts,
    BatchWork,
    Demands,
    Machine,
    PipelineShape,
    RunWork,
    SuperbatchCounts,
    SuperbatchWork,
)
from gloader.types import BatchId

MACHINE, SHAPE = Machine(cores=2), PipelineShape(features="ssd", sampler_threads=2, ahead=4, num_buffers=3)
ROW_BYTES = 512
USUAL = Costs(scale={}, other=1.0, row_bytes=ROW_BYTES, slots=1000, nodes=10_000)


def counts(strategy: str = "direct", *, misses: int = 1000, num: int = 4) -> SuperbatchCounts:
    batch = BatchCounts(
        rows=5000,
        hits=5000 - misses,
        misses=misses,
        admitted=100,
        read_requests=misses,
        read_bytes=4096 * misses,
    )
    return SuperbatchCounts(
        batches=(batch,) * num,
        strategy=strategy,
        accesses=5000 * num,
        stage_requests=0 if strategy == "direct" else 100,
        stage_bytes=0 if strategy == "direct" else 10**6,
        written_bytes=10**6 if strategy == "packed" else 0,
        unique_rows=3 * misses,
    )


def run_of(factor: float, planned: list[SuperbatchCounts]) -> tuple[Recording, RunWork]:
    """Return a run whose work on rows takes ``factor`` times the usual seconds."""
    superbatches, batches = [], []
    for one in planned:
        usual = USUAL.superbatch(one, RATES)
        superbatches.append(
            replace(
                usual,
                inspect=usual.inspect._replace(cpu_s=factor * usual.inspect.cpu_s),
                stage=usual.stage._replace(cpu_s=factor * usual.stage.cpu_s),
            )
        )
        for batch in one.batches:
            read = USUAL.read_demands(batch, one.strategy, RATES)
            batches.append(
                BatchWork(
                    epoch=0,
                    index=len(batches),
                    trace=Demands(cpu_s=0.006),
                    sample=Demands(cpu_s=0.004),
                    read=read._replace(cpu_s=factor * read.cpu_s),
                    gather=Demands(cpu_s=factor * USUAL.gather(batch.hits + batch.admitted).cpu_s),
                    compute=Demands(cpu_s=0.02),
                )
            )
    work = RunWork(batches=tuple(batches), superbatches=tuple(superbatches))
    found = recorded(replay(work, MACHINE, SHAPE), work, MACHINE, SHAPE, strategy=planned[0].strategy)
    return replace(found, events=tuple(_noted(event, planned) for event in found.events)), work


def _noted(event: RecordedEvent, planned: list[SuperbatchCounts]) -> RecordedEvent:
    """Return an event with what a run notes of its rows, and what it moves."""
    if "superbatch" not in event.notes:
        return event
    one = planned[event.notes["superbatch"]]
    batch = one.batches[0]
    notes = {
        "inspect": {"hits": one.accesses - one.misses, "misses": one.misses},
        "stage": {"misses": one.misses},
        "read": {"misses": batch.misses},
        "gather": {"hits": batch.hits, "admitted": batch.admitted},
    }[event.stage]
    read, written = {"stage": (one.stage_bytes, one.written_bytes), "read": (batch.read_bytes, 0)}.get(
        event.stage, (0, 0)
    )
    return event._replace(notes={**event.notes, **notes}, bytes_read=read, bytes_written=written)


@pytest.mark.parametrize("strategy", ["direct", "staged", "packed"])
def test_a_machine_that_is_slower_is_found_to_be(strategy: str) -> None:
    planned = [counts(strategy, misses=1000 + 500 * number) for number in range(4)]
    recording, _ = run_of(2.5, planned)
    costs = learn_costs(recording)
    assert costs.scale["inspect"] == pytest.approx(2.5)
    assert costs.scale[f"read {strategy}"] == pytest.approx(2.5)
    assert costs.scale["gather"] == pytest.approx(2.5)
    assert costs.other == pytest.approx(2.5)
    one = counts(strategy, misses=4000)
    assert costs.read(one.batches[0], strategy) == pytest.approx(2.5 * USUAL.read(one.batches[0], strategy))
    # What the recording has none of is taken to be as much slower.
    assert costs.stage(counts("packed")) == pytest.approx(2.5 * USUAL.stage(counts("packed")))


def test_the_plan_of_the_run_itself_has_its_work() -> None:
    planned = [counts(misses=1000 + 500 * number) for number in range(4)]
    recording, work = run_of(1.7, planned)
    found = planned_work(
        work,
        planned,
        rows=np.full(16, 5000),
        costs=learn_costs(recording),
        sampling=SampleCosts(trace_s=0.006, kept_s=0.004, again_s=0.004),
        rates=RATES,
    )
    for mine, theirs in zip(found.superbatches, work.superbatches, strict=True):
        assert mine.inspect.cpu_s == pytest.approx(theirs.inspect.cpu_s)
        assert mine.stage.cpu_s == pytest.approx(theirs.stage.cpu_s)
    for mine, theirs in zip(found.batches, work.batches, strict=True):
        assert mine.read == pytest.approx(theirs.read)
        assert mine.gather.cpu_s == pytest.approx(theirs.gather.cpu_s)
        assert mine.compute == theirs.compute
        assert mine.sample == theirs.sample


def test_features_in_memory_are_neither_planned_nor_read() -> None:
    planned = [counts()]
    recording, work = run_of(1.0, planned)
    found = planned_work(
        work,
        (),
        rows=np.full(4, 5000),
        costs=learn_costs(recording),
        sampling=SampleCosts(trace_s=0.006, kept_s=0.001, again_s=0.004),
        rates=RATES,
    )
    assert not found.superbatches
    assert all(batch.read == batch.trace == NOTHING for batch in found.batches)
    assert all(batch.sample.cpu_s == 0.004 for batch in found.batches)
    assert found.batches[0].gather.cpu_s > work.batches[0].gather.cpu_s  # all rows, not the hits alone


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_batches_that_are_kept_are_spread_evenly(share: float) -> None:
    sampling = SampleCosts(trace_s=1.0, kept_s=1.0, again_s=3.0).of_plan(kept_share=share)
    found = [sampling.sample_s(position) for position in range(16)]
    assert found.count(1.0) == round(16 * share)
    if share == 0.25:
        assert [position for position, seconds in enumerate(found) if seconds == 1.0] == [3, 7, 11, 15]


def test_larger_batches_take_as_much_more() -> None:
    _, work = run_of(1.0, [counts()])
    ids = [BatchId(epoch=0, index=0), BatchId(epoch=0, index=1)]
    found = resized_work(work, ids, np.array([2.0, 0.5]), sampling=3.0)
    assert [batch.compute.cpu_s for batch in found.batches] == pytest.approx([0.04, 0.01])
    assert [batch.sample.cpu_s for batch in found.batches] == pytest.approx([0.012, 0.012])
    assert [batch.index for batch in found.batches] == [0, 1]


# --- changes without another plan


def test_a_faster_disk_has_faster_rates() -> None:
    rates = replace(RATES, latency_s=60e-6, dealt_bytes_per_s=1e9)
    found = changed_rates(rates, parse_changes("disk=2x,disk.random=3x,disk.write=0.5x"))
    assert found.random_reads_per_s == 6 * RATES.random_reads_per_s
    assert (found.latency_s, found.dealt_bytes_per_s) == (pytest.approx(10e-6), 1e9)
    assert found.read_bytes_per_s == 2 * RATES.read_bytes_per_s
    assert found.pack_read_bytes_per_s == 2 * RATES.pack_read_bytes_per_s
    assert found.write_bytes_per_s == RATES.write_bytes_per_s


@pytest.mark.parametrize(
    ("per_s", "expected"), [(3_000, 24_000), (10_000, 2e9 / 65536), (20_000, 40_000), (0, 0)]
)
def test_no_read_at_random_becomes_faster_than_those_in_file_order(per_s: float, expected: float) -> None:
    rates = replace(RATES, wide_reads_per_s=per_s, read_bytes_per_s=1e9)
    found = changed_rates(rates, parse_changes("disk=2x,disk.random=4x"))
    assert found.wide_reads_per_s == pytest.approx(expected)


def test_more_cores_threads_ranks_and_buffers() -> None:
    assert changed_machine(MACHINE, parse_changes("cores=8")).cores == 8
    shape = changed_shape(SHAPE, parse_changes("threads=5,buffers=1"))
    assert (shape.sampler_threads, shape.num_buffers, shape.ahead) == (5, 1, 7)
    ranks = changed_shape(SHAPE, parse_changes("ranks=2"))
    assert (ranks.num_ranks, ranks.ahead) == (2, 6)
    with pytest.raises(ConfigError, match="two feature buffers each; ask for buffers=2"):
        changed_shape(SHAPE, parse_changes("ranks=2,buffers=1"))


@pytest.mark.parametrize(
    ("words", "factor"), [("compute=2x", 2.0), ("gpu=4x", 0.25), ("compute=2x,gpu=2x", 1.0)]
)
def test_more_to_compute_and_a_faster_device(words: str, factor: float) -> None:
    work = RunWork(
        batches=(BatchWork(epoch=0, index=0, compute=Demands(cpu_s=1.0, device_s=2.0, lag_s=0.5)),)
    )
    found = changed_compute(work, parse_changes(words)).batches[0].compute
    assert (found.cpu_s, found.device_s, found.lag_s) == (factor, 2 * factor, 0.5 * factor)
    assert SuperbatchWork(num_batches=1).stage == NOTHING
