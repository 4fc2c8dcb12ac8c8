from __future__ import annotations

import pytest
from comparison_json import MEASURED, comparison, row, spread
from training_runs import texts

from gloader.errors import FormatError
from gloader.lab.report.comparison import Comparison, comparison_charts
from gloader.lab.report.page import TextTable, as_html, as_markdown


def test_the_table_has_medians_spread_and_outcome() -> None:
    shown = Comparison.from_json(comparison(MEASURED, row("dgl-memory-limited")))
    table = shown.table()
    cells = dict(zip(table.header, table.rows[0], strict=True))
    assert (cells["first epoch"], cells["later epochs"], cells["least to most"]) == (
        "10.0 s",
        "2.0 s",
        "1.8 s to 2.2 s",
    )
    assert (cells["read an epoch"], cells["peak resident"], cells["to target"]) == (
        "3 GB",
        "1.5 GB",
        "12.0 s",
    )
    killed = dict(zip(table.header, table.rows[1], strict=True))
    assert (killed["later epochs"], killed["outcome"]) == ("", "killed at the limit")
    assert shown.notes() == ("gloader: policy belady", "dgl-memory-limited: killed at the limit")
    assert shown.heading.startswith("rmat: 8,000,000 nodes, 100,000,000 edges, 4.1 GB of features; GraphSAGE")
    assert "memory limit 1.77 GB; 3 repeats, target accuracy 0.500" in shown.heading


def test_figures_from_a_part_of_an_epoch_are_marked() -> None:
    slow = row("dgl", first_epoch_s=spread(200.0), is_extrapolated=True, outcome="out of time in epoch 1")
    (cells,) = Comparison.from_json(comparison(slow)).table().rows
    assert cells[3].startswith("~3 min 20 s")


def test_a_long_reason_stands_below_the_table() -> None:
    shown = Comparison.from_json(comparison(row("pyg", outcome="cannot run: needs pyg-lib")))
    assert shown.table().rows[0][-1] == "cannot run"
    assert shown.notes() == ("pyg: cannot run: needs pyg-lib",)


def test_what_is_missing_is_named() -> None:
    broken = comparison(MEASURED)
    del broken["rows"][0]["later_epoch_s"]
    with pytest.raises(FormatError, match=r"malformed: KeyError\('later_epoch_s'\); write it anew"):
        Comparison.from_json(broken)


def test_charts_have_every_contender_with_its_figure_or_its_outcome() -> None:
    slow = row(
        "dgl", later_epoch_s=spread(2000.0), first_epoch_s=spread(3000.0), wait_s=1.0, is_extrapolated=True
    )
    charts = comparison_charts(Comparison.from_json(comparison(MEASURED, slow, row("killed"))))
    assert [chart.name for chart in charts] == [
        f"compare-rmat{part}" for part in ("", "-parts", "-read", "-memory", "-target")
    ]
    seconds, parts, read, memory, target = map(texts, charts)
    for shown in (seconds, read, memory, target):
        assert {"gloader", "dgl", "killed", "killed at the limit"} <= set(shown)
    assert {"2.0 s (1.8 s to 2.2 s)", "~33 min 20 s (30 min 00 s to 36 min 40 s)"} <= set(seconds)
    assert {"sample", "gather", "compute", "wait"} <= set(parts)
    assert "killed" not in parts
    assert {"3 GB", "1.5 GB", "12.0 s (10.8 s to 13.2 s)"} <= {*read, *memory, *target}


def test_tables_escape_what_would_break_them() -> None:
    table = TextTable(header=("a", "b"), rows=(("x|y", "<b>"),))
    assert as_markdown(table).splitlines() == ["| a | b |", "| --- | ---: |", r"| x\|y | <b> |"]
    assert "<td>&lt;b&gt;</td>" in as_html(table)
