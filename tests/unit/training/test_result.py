from __future__ import annotations

import json
import platform
import statistics
from dataclasses import replace

import pytest

from gloader.observe.epoch_stats import STAGES, EpochStats
from gloader.training.metrics import EpochRecord
from gloader.training.result import RunResult, name_strategy, summarize

# DESIGN's list: other tools read these from result.json.
PROMISED = {
    "test_acc", "valid_acc", "epoch_seconds", "batches", "seeds_per_second", "hit_rate", "rows_read", "bytes_read",
    "bytes_written", "stage_seconds", "overlap_efficiency", "peak_rss_bytes", "policy", "io_strategy", "versions",
}  # fmt: skip


def _result(*, test_acc, valid_acc=0.5, seed=0) -> RunResult:
    stats = EpochStats(
        epoch=0, batches=4, seeds=40, rows_gathered=100, cache_hits=25, rows_read=75, bytes_read=750,
        stage_seconds=dict.fromkeys(STAGES, 0.0) | {"sample": 6.0, "gather": 2.0, "wait": 4.0},
    )  # fmt: skip
    epochs = tuple(
        EpochRecord(
            epoch=epoch, loss=1.0, train_acc=0.5, valid_acc=0.5, lr=0.1, seconds=4.0, evaluate_seconds=1.0,
            rows_per_second=1.0, bottleneck="", stats=stats,
        )
        for epoch in range(2)
    )  # fmt: skip
    return RunResult(
        seed=seed, best_epoch=1, valid_acc=valid_acc, test_acc=test_acc, epochs=epochs, seconds=11.0,
        num_parameters=7, features="ssd", policy="static", io_strategy="direct", sampler_threads=2, explanation="",
    )  # fmt: skip


def test_one_run_has_every_promised_key_and_its_sums() -> None:
    summary = summarize([_result(test_acc=0.75)])
    assert set(summary) >= PROMISED
    assert set(summary["stage_seconds"]) == set(STAGES)
    assert summary["test_acc"] == 0.75
    assert summary["test_acc_std"] is None
    assert summary["epoch_seconds"] == [4.0, 4.0]
    assert summary["seeds_per_second"] == 80 / 8
    assert summary["hit_rate"] == 0.25
    assert summary["rows_read"] == 150
    assert json.loads(json.dumps(summary)) == summary


def test_a_result_says_what_its_seconds_depend_on_and_not_where_it_was() -> None:
    found = summarize([replace(_result(test_acc=0.75), device="NVIDIA H100")])["machine"]
    assert set(found) == {"device", "processor", "cores", "memory_bytes"}
    assert found["device"] == "NVIDIA H100"
    assert found["cores"] >= 1
    assert found["memory_bytes"] > 10**8
    assert platform.node() not in found.values()


def test_the_hit_rate_of_a_run_is_that_of_its_epochs_rows_on_the_device_included() -> None:
    records = [
        EpochRecord(
            epoch=epoch, loss=1.0, train_acc=0.5, valid_acc=0.5, lr=0.1, seconds=4.0, evaluate_seconds=1.0,
            rows_per_second=1.0, bottleneck="",
            stats=EpochStats(
                epoch=epoch, rows_gathered=rows, device_hits=rows // 2, cache_hits=rows // 4, rows_read=rows // 4
            ),
        )
        for epoch, rows in enumerate((100, 300))
    ]  # fmt: skip
    run = replace(_result(test_acc=0.75), epochs=tuple(records))
    assert [record.to_json()["hit_rate"] for record in records] == [0.75, 0.75]
    assert summarize([run])["hit_rate"] == 0.75
    assert summarize([replace(run, epochs=records[:1])])["hit_rate"] == records[0].to_json()["hit_rate"]


def test_overlap_is_the_slowest_stage_per_thread_over_the_time_and_waiting_is_no_stage() -> None:
    assert summarize([_result(test_acc=0.75)])["overlap_efficiency"] == pytest.approx(6.0 / 2 * 2 / 8)


def test_several_runs_have_a_mean_an_unbiased_deviation_and_a_best_one() -> None:
    accuracies = [0.7, 0.8, 0.75]
    results = [_result(test_acc=a, valid_acc=1 - a, seed=i) for i, a in enumerate(accuracies)]
    summary = summarize(results)
    assert summary["test_acc"] == pytest.approx(0.75)
    assert summary["test_acc_std"] == pytest.approx(statistics.stdev(accuracies))
    assert [run["test_acc"] for run in summary["runs"]] == accuracies
    assert summary["best_run"] == 0
    assert summary["batches"] == 24


@pytest.mark.parametrize(
    ("asked", "chosen", "name"),
    [
        ("auto", ["packed", "direct", "packed"], "auto: packed 2, direct 1"),
        ("auto", ["staged", "direct"], "auto: direct 1, staged 1"),
        ("auto", [], "auto"),
        ("packed", ["packed", "packed"], "packed"),
    ],
)
def test_the_strategy_of_a_run_says_what_was_chosen_how_often(asked, chosen, name) -> None:
    assert name_strategy(asked, chosen) == name


def test_a_dataset_without_test_nodes_has_no_accuracy() -> None:
    summary = summarize([_result(test_acc=None, valid_acc=None)] * 2)
    assert summary["test_acc"] is None
    assert summary["valid_acc_std"] is None


def test_what_each_table_moved_is_summed_up_over_the_epochs() -> None:
    counts = {
        "rows_gathered": 40, "device_hits": 0, "cache_hits": 10, "rows_read": 30, "requests": 2, "bytes_read": 300,
        "bytes_written": 0,
    }  # fmt: skip
    result = _result(test_acc=0.5)
    assert "tables" not in summarize([result])
    epochs = tuple(
        replace(epoch, stats=replace(epoch.stats, tables={"paper": counts})) for epoch in result.epochs
    )
    tables = summarize([replace(result, epochs=epochs)])["tables"]
    assert tables == {"paper": {name: 2 * value for name, value in counts.items()} | {"hit_rate": 0.25}}
