from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from typed_batches import full_batch, random_edges, small_schema

from gloader.errors import DivergedError
from gloader.observe.epoch_stats import STAGES, EpochStats
from gloader.training.group import RankGroup
from gloader.training.metrics import EpochRecord, RunningMetrics, merge_stats
from gloader.types import BatchId, DeviceBlock, ReadyBatch

CPU = torch.device("cpu")


def _batch(labels: list[int], num_rows: int = 9) -> ReadyBatch:
    return ReadyBatch(
        id=BatchId(epoch=0, index=0),
        x=torch.zeros(num_rows, 1),
        y=torch.tensor(labels),
        blocks=(),
        nodes=np.arange(num_rows),
        num_seeds=len(labels),
    )


def _logits(predicted: list[int]) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(predicted), 3).float()


def test_batches_weigh_by_their_seeds() -> None:
    metrics = RunningMetrics(CPU)
    metrics.add(_batch([0, 1, 2]), _logits([0, 1, 1]), torch.tensor(1.0))
    metrics.add(_batch([0]), _logits([2]), torch.tensor(5.0))
    assert metrics.loss == pytest.approx((3 * 1 + 5) / 4)
    assert metrics.accuracy == pytest.approx(2 / 4)


def test_the_state_continues_the_sums() -> None:
    first = RunningMetrics(CPU)
    first.add(_batch([0, 1, 2]), _logits([0, 1, 1]), torch.tensor(1.0))
    state = json.loads(json.dumps(first.state()))
    second = RunningMetrics(CPU, saved=state)
    assert second.seconds >= state["seconds"]
    second.add(_batch([0]), _logits([2]), torch.tensor(5.0))
    assert (second.loss, second.accuracy) == (2.0, 0.5)


@pytest.mark.reliability("S5")
def test_a_loss_that_is_no_number_ends_the_epoch_with_batch_and_cause() -> None:
    nan = torch.tensor(float("nan"))
    batch = replace(_batch([0, 1]), id=BatchId(epoch=2, index=6), nodes=np.arange(100, 109))
    with pytest.raises(
        DivergedError, match=r"epoch 3, batch 7: .*are finite.*the network diverged: lower --lr"
    ):
        RunningMetrics(CPU).add(batch, _logits([0, 1]), nan)
    batch.x[4] = float("inf")
    with pytest.raises(DivergedError, match=r"epoch 3, batch 7: .*column 0 of node 104 is inf"):
        RunningMetrics(CPU).add(batch, _logits([0, 1]), nan)
    batch.x[7] = float("nan")
    with pytest.raises(
        DivergedError,
        match=r"104 is inf; in the batch, 2 numbers are NaN or infinite, in column 0 of node 104, 107",
    ):
        RunningMetrics(CPU).add(batch, _logits([0, 1]), nan)
    schema = small_schema()
    x = {name: torch.zeros(count, schema.feature_dims[name]) for name, count in schema.num_nodes.items()}
    x["author"][1, 0] = float("nan")
    typed = full_batch(schema, random_edges(schema, seed=3), [4, 0, 2], num_hops=2, x=x, y=[0, 1, 2])
    with pytest.raises(DivergedError, match="column 0 of author 1 is nan"):
        RunningMetrics(CPU).add(typed, _logits([0, 1, 1]), nan)


@pytest.mark.reliability("S5")
def test_a_bad_feature_of_an_edge_is_named_by_its_row() -> None:
    edge_x = torch.zeros(3, 2)
    edge_x[1, 1] = float("nan")
    block = DeviceBlock(
        indptr=torch.tensor([0, 3], dtype=torch.int32),
        indices=torch.zeros(3, dtype=torch.int32),
        edge_ids=torch.tensor([40, 41, 42]),
        src_degree=torch.ones(1),
        num_src=1,
        num_dst=1,
        edge_x=edge_x,
    )
    batch = replace(_batch([0]), blocks=(block,))
    with pytest.raises(DivergedError, match=r"clean the edge features: column 1 of edge 41 is nan$"):
        RunningMetrics(CPU).add(batch, _logits([0]), torch.tensor(float("nan")))


@pytest.mark.reliability("S5")
def test_a_device_says_so_when_its_sum_is_read(monkeypatch) -> None:
    """A look at each loss would wait for the device; the first bad batch is kept there until the sum is read."""
    metrics = RunningMetrics(CPU)
    monkeypatch.setattr(metrics, "_is_far", True)
    for index, loss in enumerate([1.0, float("inf"), 2.0, float("nan")]):
        metrics.add(replace(_batch([0]), id=BatchId(epoch=1, index=index)), _logits([0]), torch.tensor(loss))
    for read in (lambda: metrics.loss, metrics.state):
        with pytest.raises(DivergedError, match="epoch 2, batch 2: "):
            read()


def test_an_epoch_without_batches_has_zeros() -> None:
    assert (RunningMetrics(CPU).loss, RunningMetrics(CPU).accuracy) == (0.0, 0.0)


def test_a_record_is_one_flat_json_line() -> None:
    record = EpochRecord(
        epoch=3, loss=0.5, train_acc=0.9, valid_acc=None, lr=0.1, seconds=2.0, evaluate_seconds=0.5,
        rows_per_second=10.0, bottleneck="the model",
        stats=EpochStats(epoch=3, rows_gathered=4, cache_hits=1, seconds=9.0),
    )  # fmt: skip
    line = json.loads(json.dumps(record.to_json()))
    assert line["epoch"] == 3
    assert line["seconds"] == 2.0
    assert line["hit_rate"] == 0.25
    assert line["valid_acc"] is None
    assert "stats" not in line
    assert "memory_bytes" not in line  # nobody watched
    watched = replace(record, memory_bytes=(3, 5))
    assert json.loads(json.dumps(watched.to_json()))["memory_bytes"] == [3, 5]


def test_the_sums_of_all_ranks_take_the_time_of_the_slowest(monkeypatch) -> None:
    metrics = RunningMetrics(CPU)
    metrics.add(_batch([0, 1, 2]), _logits([0, 1, 1]), torch.tensor(1.0))
    other = {"loss_sum": 5.0, "correct": 0.0, "seeds": 1.0, "rows": 4.0, "seconds": 100.0}
    group = RankGroup(rank=0, machines=["a", "a"])
    monkeypatch.setattr(group, "gather", lambda own: [own, other])
    both = metrics.over(group)
    assert (both.loss, both.accuracy) == (2.0, 0.5)
    assert both.seconds >= 100.0
    assert metrics.over(RankGroup.alone()) is metrics


def test_seeds_and_rows_of_several_types_are_counted() -> None:
    """Rows of types that have features; learned ones are no rows that were delivered."""
    schema = small_schema()
    x = {name: torch.zeros(count, schema.feature_dims[name]) for name, count in schema.num_nodes.items()}
    batch = full_batch(schema, random_edges(schema, seed=3), [4, 0, 2], num_hops=2, x=x, y=[0, 1, 2])
    metrics = RunningMetrics(CPU)
    metrics.add(batch, _logits([0, 1, 1]), torch.tensor(1.0))
    state = metrics.state()
    assert (state["seeds"], state["correct"], state["loss_sum"]) == (3, 2, 3.0)
    assert state["rows"] == len(batch.nodes["paper"]) + len(batch.nodes["author"])


def _stats(**values: float) -> EpochStats:
    seconds = dict.fromkeys(STAGES, 0.0) | {"compute": values.pop("compute", 0.0)}
    return EpochStats(epoch=2, stage_seconds=seconds, **values)


def test_one_rank_is_itself() -> None:
    part = _stats(batches=3)
    assert merge_stats([part]) is part


def test_rows_add_up_steps_do_not_and_the_slowest_rank_counts() -> None:
    merged = merge_stats(
        [
            _stats(
                batches=3, seeds=40, rows_gathered=100, cache_hits=60, rows_read=40, seconds=2.0, compute=1.0
            ),
            _stats(batches=3, seeds=38, seconds=2.5, compute=1.5),
        ]
    )
    assert (merged.epoch, merged.batches, merged.seeds) == (2, 3, 78)
    assert (merged.rows_gathered, merged.rows_read, merged.hit_rate) == (100, 40, 0.6)
    assert (merged.seconds, merged.stage_seconds["compute"]) == (2.5, 1.5)


def test_tables_are_in_the_line_and_in_what_ranks_moved_together() -> None:
    counts = {
        "rows_gathered": 4, "device_hits": 0, "cache_hits": 1, "rows_read": 3, "requests": 2, "bytes_read": 99,
        "bytes_written": 0,
    }  # fmt: skip
    parts = [EpochStats(epoch=0, rows_gathered=4, tables={name: counts}) for name in ("paper", "author")]
    merged = merge_stats([*parts, parts[0]])
    assert merged.tables == {"paper": {name: 2 * value for name, value in counts.items()}, "author": counts}
    record = EpochRecord(
        epoch=0, loss=0.5, train_acc=0.9, valid_acc=None, lr=0.1, seconds=2.0, evaluate_seconds=0.5,
        rows_per_second=10.0, bottleneck="the model", stats=merged,
    )  # fmt: skip
    assert json.loads(json.dumps(record.to_json()))["tables"] == merged.tables
    assert "tables" not in replace(record, stats=EpochStats(epoch=0)).to_json()
    assert EpochStats(**json.loads(json.dumps(asdict(merged)))) == merged
