"""A loader's description of itself."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gloader.observe.explain import (
    IoFacts,
    RowReport,
    SuperbatchReport,
    TableFacts,
    TierFacts,
    explain_io,
    explain_rows,
    explain_run,
    explain_tiers,
    predict_step,
    retrieval_error,
    run_json,
    step_error,
)
from gloader.plan.embedding_cost import RowCost, RowTraffic
from gloader.plan.sweep_plan import SweepPlan
from gloader.plan.topology_home import TopologyChoice
from gloader.ssd_store.cost.io_rates import IoRates
from gloader.ssd_store.cost.strategy import Choice, SuperbatchSize

if TYPE_CHECKING:
    from gloader.plan.memory_plan import MemoryPlan


def tiers(**changes: Any) -> TierFacts:
    plan = SimpleNamespace(
        budget_bytes=10**9,
        total_bytes=9 * 10**8,
        parts=(("feature buffers", 10**8), ("host cache", 8 * 10**8)),
        features="ssd",
        cache_rows=(60,),
        missed_bytes=(10**7,),
        num_buffers=3,
        would_fit=False,
        candidates=("80 ms a step: 3 feature buffers", "90 ms a step: 2 feature buffers"),
    )
    facts = {"tables": (PAPER,), "policy": "belady", "topology": HELD, "rates": IO.rates} | changes
    plan.features = facts.pop("features", plan.features)
    plan.cache_rows = facts.pop("cache_rows", plan.cache_rows)
    plan.missed_bytes = facts.pop("missed_bytes", plan.missed_bytes)
    plan.sweeps = facts.pop("sweeps", None)
    return TierFacts(plan=cast("MemoryPlan", plan), **facts)


PAPER = TableFacts(name="paper", num_nodes=600, row_bytes=1536)
HELD = TopologyChoice(home="ram", topology_bytes=5 << 30, max_bytes=5 << 30, reason="as asked for")
PACKED = Choice(
    strategy="packed", predicted={"direct": 20.0, "staged": 4.0, "packed": 5.0}, reason="packed takes 5.0 s"
)
IO = IoFacts(
    size=SuperbatchSize(num_batches=128, reason="two packs in 5 GB of disk"),
    rates=IoRates(
        random_reads_per_s=86_000.0,
        read_bytes_per_s=1.05e9,
        write_bytes_per_s=1.8e9,
        pack_read_bytes_per_s=1.05e9,
    ),
    staging_bytes=10**8,
    spill_bytes=5 * 10**9,
)
REPORT = SuperbatchReport(
    number=7,
    num_batches=128,
    rows=29_000_000,
    misses=4_100_000,
    choice=PACKED,
    predicted_step_s=0.040,
    measured_retrieval_s=6.25,
    measured_step_s=0.050,
)


def test_the_tiers_are_named_with_their_sizes() -> None:
    assert explain_tiers(tiers()).splitlines() == [
        "memory budget 1 GB, planned 900 MB:",
        "  feature buffers: 100 MB",
        "  host cache: 800 MB",
        "edges: 5.37 GB, kept in memory (as asked for)",
        "features: on the SSD; 60 rows (10.0%) in memory, policy belady",
        "shared out as predicted to be the fastest:",
        "  80 ms a step: 3 feature buffers",
        "  90 ms a step: 2 feature buffers",
    ]


def test_few_buffers_and_an_ssd_that_is_not_needed_are_said() -> None:
    facts = tiers()
    facts.plan.num_buffers, facts.plan.would_fit = 1, True  # type: ignore[misc]
    text = explain_tiers(facts)
    assert "all features would fit in memory, and are read from the SSD again and again" in text
    assert "asking for the next batch empties the x of the last" in text
    facts.plan.num_buffers = 2  # type: ignore[misc]
    assert "two feature buffers: reading the next batch waits" in explain_tiers(facts)


def test_features_in_memory_and_a_paged_topology_say_why() -> None:
    read = replace(HELD, home="direct", reason="they do not fit in half of the memory budget")
    text = explain_tiers(tiers(features="ram", topology=read))
    assert "features: in memory (they fit the budget)" in text
    assert (
        "edges: 5.37 GB on the SSD, read page by page (they do not fit in half of the memory budget)" in text
    )


def test_sweeps_say_how_many_batches_they_serve_why_and_what_a_batch_costs() -> None:
    sweeps = SweepPlan(
        num_batches=256,
        reason="half of the spill budget has room for no more",
        buffer_bytes=10**7,
        checksum_bytes=10**7,
        frontier_bytes=10**8,
        spill_bytes=5_120_000_000,
        file_bytes=12_800_000_000,
        touched_bytes=600_000_000,
        drawn_bytes=4_000_000,
    )
    swept = replace(HELD, home="sweep", reason="they do not fit in half of the memory budget")
    lines = explain_tiers(tiers(topology=swept, sweeps=sweeps)).splitlines()
    assert lines[3:7] == [
        "edges: 5.37 GB on the SSD, read in sweeps (they do not fit in half of the memory budget)",
        "  sweeps of up to 256 batches (half of the spill budget has room for no more), and of up to 12.8 GB each",
        "  a batch: 50 MB of that, and 4 MB written and read back twice, in 57 ms",
        "  disk for what sweeps bring: up to 5.12 GB",
    ]


def test_of_several_tables_each_is_told_of() -> None:
    author = TableFacts(name="author", num_nodes=400, row_bytes=256)
    lines = explain_tiers(
        tiers(tables=(PAPER, author), cache_rows=(60, 400), missed_bytes=(25 * 10**6, 0))
    ).splitlines()
    assert lines[4:7] == [
        "features: on the SSD; 460 rows (46.0%) in memory, policy belady",
        "  paper: 60 rows (10.0%) of 1.54 KB; about 25 MB are read from the SSD for a superbatch",
        "  author: 400 rows (100.0%) of 256 B; nothing is read from the SSD for a superbatch",
    ]
    assert "features: no node type has any" in explain_tiers(tiers(tables=(), cache_rows=(), features="ram"))


def test_reports_of_several_tables_are_told_apart() -> None:
    direct = replace(PACKED, strategy="direct")
    packed = replace(PACKED, read_bytes=128 * 5000)
    reports = [
        replace(REPORT, table="paper", rows=100, misses=60, choice=packed, measured_bytes=256 * 2000),
        replace(REPORT, table="author", rows=50, misses=1, choice=direct),
        replace(REPORT, table="paper", rows=100, misses=40, choice=direct),
        replace(REPORT, table="place", rows=10, misses=0, choice=direct),
    ]
    lines = explain_run(reports).splitlines()
    assert [line.split()[:3] for line in lines[2:6]] == [
        ["paper", "packed", "128"],
        ["author", "direct", "128"],
        ["paper", "direct", "128"],
        ["place", "direct", "128"],
    ]
    assert lines[-3:] == [
        "paper: 50% of 200 rows were cached; packed 1, direct 1; a batch read 2 KB, predicted 2.5 KB",
        "author: 98% of 50 rows were cached; direct 1; a batch read 0 B, predicted 0 B",
        "place: 100% of 10 rows were cached; nothing was read",
    ]
    assert [report["table"] for report in run_json(reports)["superbatches"]] == [
        "paper",
        "author",
        "paper",
        "place",
    ]
    assert "table" not in run_json([REPORT])["superbatches"][0]


def test_the_disk_and_the_superbatch_are_explained_before_anything_was_read() -> None:
    assert explain_io(IO).splitlines() == [
        "superbatch: up to 128 batches planned together (two packs in 5 GB of disk)",
        "disk: 86 k random reads/s, 1.05 GB/s read, 1.8 GB/s written",
        "missing rows of a superbatch: up to 100 MB in memory, 5 GB on disk",
    ]


def test_the_table_has_a_line_for_each_kind_with_its_medians() -> None:
    direct = replace(PACKED, strategy="direct")
    first = replace(REPORT, num_batches=2, choice=direct, predicted_step_s=None)
    slower = replace(REPORT, measured_retrieval_s=10.0, measured_step_s=0.080)
    assert explain_run([first, REPORT, slower, REPORT]).splitlines() == [
        "superbatches, predicted and measured:",
        "  read    batches  times  misses  retrieval  measured  error   step  measured  error",
        "  direct        2      1   4.1 M     20.0 s     6.2 s   220%      -     50 ms      -",
        "  packed      128      3   4.1 M      5.0 s     6.2 s    20%  40 ms     50 ms    20%",
        "retrieval time: predicted to 35% (median over superbatches)",
        "step time: predicted to 20% (median over superbatches)",
    ]


def test_the_errors_of_a_line_follow_from_the_figures_beside_them() -> None:
    # The median of the two errors, 70%, would follow from no figure of the line.
    reports = [
        replace(
            REPORT, measured_retrieval_s=5.0 / (1 - error), predicted_step_s=0.02 * one, measured_step_s=0.02
        )
        for error, one in ((0.9, 9.0), (0.5, 1.0))
    ]
    line = explain_run(reports).splitlines()[2]
    assert line.split()[3:] == ["4.1", "M", "5.0", "s", "30.0", "s", "83%", "100", "ms", "20", "ms", "400%"]


def test_assumed_rates_are_called_so() -> None:
    assumed = replace(IO, rates=replace(IO.rates, is_assumed=True))
    assert "\ndisk (assumed; `gloader doctor` measures it): 86 k random reads/s" in explain_io(assumed)


def test_nothing_done_is_said() -> None:
    assert explain_run([]) == "no superbatch was finished"


def test_superbatches_that_read_nothing_have_no_error() -> None:
    idle = replace(REPORT, misses=0, measured_retrieval_s=0.0, predicted_step_s=None)
    assert retrieval_error([idle]) is None
    assert step_error([idle]) is None
    text = explain_run([idle])
    assert "predicted to" not in text
    found = json.loads(json.dumps(run_json([idle, REPORT])))
    assert found["retrieval_error"] == pytest.approx(0.2)
    assert found["superbatches"][1]["measured_step_s"] == 0.05


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ({}, 0.10),  # the computation, whose thread is one of the four
        ({"cpu_s": 0.48}, 0.12),  # the cores
        ({"retrieval_s": 0.15}, 0.15),  # the disk
        ({"cpu_s": 0.38, "cores": 1}, 0.38),  # a device computes
    ],
)
def test_a_step_takes_as_long_as_the_busiest_resource(change: dict[str, Any], step: float) -> None:
    parts: dict[str, Any] = {"cpu_s": 0.22, "retrieval_s": 0.05, "compute_s": 0.10, "cores": 4}
    assert predict_step(**(parts | change)) == pytest.approx(step)


def test_trained_rows_are_told_by_source_with_measured_and_predicted_bytes() -> None:
    report = RowReport(
        name="author",
        traffic=RowTraffic(
            num_superbatches=2, forward=30_000, staged=40_000, late=10_000, fresh=20_000, appended=40_000
        ),
        row_bytes=500,
        predicted=RowCost(
            staged_bytes=40_000_000,
            spilled_bytes=0,
            appended_bytes=20_000_000,
            merge_read_bytes=0,
            merge_written_bytes=0,
            seconds=1.5,
        ),
        bytes_read=44_000_000,
        bytes_written=21_000_000,
        measured_s=2.0,
        waited_s=0.5,
    )
    assert explain_rows(report) == (
        "trained rows of author: 100 k loaded, of which 30% were kept since an earlier batch, 40% were read ahead, 20% "
        "were not yet trained and 10% were read at their load; loads waited 500 ms for steps\n"
        "  a superbatch: 7.5 MB kept for later batches, 10 MB read ahead, 10 MB written to the table\n"
        "  predicted: 40 MB read, 20 MB written, 1.5 s of the disk\n"
        "  measured: 44 MB read, 21 MB written, 2.0 s of reading ahead, of evictions and of loads"
    )
    assert (
        "\n  predicted, for assumed rates of the disk (`gloader doctor` measures them): 40 MB read"
        in explain_rows(replace(report, is_assumed=True))
    )
    assert explain_rows(replace(report, traffic=RowTraffic())) == ""
