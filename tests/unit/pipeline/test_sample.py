"""The verb "sample": the batch of a position, its trace, and the same batch again for execution."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gloader.cache import decode_ids
from gloader.observe.instruments import Instruments
from gloader.observe.timeline import TimelineRecorder
from gloader.pipeline import sample
from gloader.pipeline.sample import (
    KeptBatch,
    KeptBatches,
    SampleBatch,
    SampleOrdered,
    SampleTrace,
    ordered,
)
from gloader.pipeline.superbatch import OrderedBatch
from gloader.samplers import CscGraph
from gloader.types import BatchId, SampledBatch

from .items import NUM_NODES, ORDER, OneSampler, in_order, instruments, sampled, seconds_of, stream

# Node i has i in-edges.
GROWING = CscGraph(
    indptr=np.append(0, np.cumsum(np.arange(NUM_NODES))),
    indices=np.zeros(NUM_NODES * (NUM_NODES - 1) // 2, dtype=np.int32),
)


def _whole(once: SampleBatch, position: int) -> OrderedBatch:
    """Return a batch of features in memory."""
    return SampleOrdered(once, KeptBatches(), GROWING, types=()).process(position)


def _batch_of(kept: KeptBatch | None) -> Any:
    assert kept is not None
    return kept.batch


def _assert_degrees(found: NDArray[np.float32], batch: SampledBatch) -> None:
    assert found.dtype == np.float32
    assert found.tolist() == batch.nodes.tolist()


def test_the_batch_at_a_position_is_sampled_from_its_seeds() -> None:
    sampler, found = OneSampler(), instruments()
    once = SampleBatch(sampler, stream(), found)
    with once.working(3) as work:
        batch = once.make(3, work)
    seeds = ORDER.seeds[ORDER.batch_seeds(ORDER.epoch_positions(0), 3)]
    assert batch.id == BatchId(epoch=0, index=3)
    np.testing.assert_array_equal(batch.nodes, sampler.sample(batch.id, seeds).nodes)
    assert seconds_of(found, "sample") > 0


def test_an_error_says_where_it_was() -> None:
    class Broken:
        def sample(self, *_: object) -> SampledBatch:
            raise MemoryError("boom")

    with pytest.raises(MemoryError, match="boom") as caught:
        _whole(SampleBatch(Broken(), stream(), instruments()), 2)
    assert caught.value.__notes__ == ["in stage sample, epoch 0, batch 2"]


def test_an_error_behind_the_sampler_is_noted_once_too() -> None:
    once = SampleBatch(OneSampler(), stream(), instruments())
    with pytest.raises(ValueError, match="concatenate") as caught:  # there is no table of that number
        SampleTrace(once, KeptBatches(0), types=(7,)).process(2)
    assert caught.value.__notes__ == ["in stage sample, epoch 0, batch 2"]


@pytest.mark.parametrize(("keep_bytes", "notes"), [(0, {}), (10**6, {"kept": True})])
def test_a_batch_is_one_piece_of_work_and_its_trace_another(
    keep_bytes: int, notes: dict[str, Any], tmp_path: Path
) -> None:
    timeline = TimelineRecorder()
    once, kept = SampleBatch(OneSampler(), stream(), Instruments(timeline=timeline)), KeptBatches(keep_bytes)
    SampleTrace(once, kept).process(1)
    SampleOrdered(once, kept, GROWING).process(1)
    _whole(once, 2)
    timeline.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    found = [(event["name"], event["args"]) for event in events if event["ph"] == "X"]
    assert all(args.pop("cpu_us") > 0 for _, args in found)
    assert found == [
        ("sample", {"epoch": 0, "batch": 1, "ahead": True}),
        ("sample", {"epoch": 0, "batch": 1, **notes}),
        ("sample", {"epoch": 0, "batch": 2}),
    ]


@pytest.mark.parametrize(("keep_bytes", "num_calls"), [(0, 2), (10**6, 1)])
def test_a_trace_and_its_batch_are_of_one_sample(keep_bytes: int, num_calls: int) -> None:
    sampler = OneSampler()
    once, kept = SampleBatch(sampler, stream(), instruments()), KeptBatches(keep_bytes)
    (entry,) = SampleTrace(once, kept).process(1)
    batch = SampleOrdered(once, kept, GROWING).process(1)
    (rows,) = batch.tables
    np.testing.assert_array_equal(decode_ids(entry.code, entry.count), rows.ascending)
    np.testing.assert_array_equal(batch.sampled.nodes[rows.order], rows.ascending)
    assert len(sampler.calls) == num_calls
    _assert_degrees(batch.src_degree, batch.sampled)


def test_the_places_of_rows_are_found_only_for_a_batch_that_may_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = SampleBatch(OneSampler(), stream(), instruments())
    expected = SampleTrace(once, KeptBatches(10**6)).process(1)
    monkeypatch.setattr(sample, "ordered_rows", None)
    (entry,), (wanted,) = SampleTrace(once, KeptBatches(0)).process(1), expected
    np.testing.assert_array_equal(decode_ids(entry.code, entry.count), decode_ids(wanted.code, wanted.count))
    with pytest.raises(TypeError, match="not callable"):
        SampleTrace(once, KeptBatches(10**6)).process(1)


def test_a_batch_of_features_in_memory_has_its_degrees_from_the_thread_that_samples() -> None:
    whole = _whole(SampleBatch(OneSampler(), stream(), instruments()), 2)
    _assert_degrees(whole.src_degree, whole.sampled)


def test_what_is_taken_makes_room_again() -> None:
    batch = sampled(0)
    tables = in_order(0).tables
    kept = KeptBatches(batch.nodes.nbytes + 4 * len(batch.nodes))
    kept.offer(0, batch, tables)
    kept.offer(1, sampled(2), tables)
    assert kept.take(1) is None
    assert _batch_of(kept.take(0)) is batch
    assert kept.take(0) is None
    kept.offer(2, batch, tables)
    assert _batch_of(kept.take(2)) is batch


def test_the_rows_of_a_kept_batch_are_not_sorted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    once, kept = SampleBatch(OneSampler(), stream(), instruments()), KeptBatches(10**6)
    expected = SampleOrdered(once, kept, GROWING).process(1)
    SampleTrace(once, kept).process(1)
    monkeypatch.setattr("gloader.pipeline.sample._ascending", None)
    found = SampleOrdered(once, kept, GROWING).process(1)
    for ours, theirs in zip(found.tables, expected.tables, strict=True):
        assert ours.ascending.tolist() == theirs.ascending.tolist()
        assert ours.order.tolist() == theirs.order.tolist()


def test_a_batch_on_the_device_is_not_kept_there_and_brings_its_degrees() -> None:
    there: Any = object()  # blocks, of which nothing is asked
    batch = replace(sampled(0), blocks=(), on_device=there)
    kept = KeptBatches(10**6)
    kept.offer(0, batch, in_order(0).tables)
    assert kept.take(0) is None
    sampler: Any = SimpleNamespace(sample=lambda batch_id, seeds: batch)
    once = SampleBatch(sampler, stream(), instruments())
    assert len(_whole(once, 0).src_degree) == 0
    assert len(SampleOrdered(once, kept, GROWING).process(0).src_degree) == 0


def test_nothing_is_kept_after_cancel() -> None:
    kept = KeptBatches(10**6)
    kept.offer(0, sampled(0), in_order(0).tables)
    kept.cancel()
    kept.offer(1, sampled(1), in_order(1).tables)
    assert kept.take(0) is None
    assert kept.take(1) is None


def test_ids_too_large_to_share_a_word_are_sorted_all_the_same() -> None:
    nodes = np.array([2**40, 5, 2**33], dtype=np.int64)
    sampled = SampledBatch(id=BatchId(epoch=0, index=0), nodes=nodes, num_seeds=1, blocks=())
    (rows,) = ordered(sampled, np.ones(3, dtype=np.float32)).tables
    assert rows.ascending.tolist() == [5, 2**33, 2**40]
    assert rows.order.tolist() == [1, 2, 0]
