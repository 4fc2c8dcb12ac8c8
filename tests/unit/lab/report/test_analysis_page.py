"""The sections of an analysis: a table beside every chart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from replayed_runs import findings_of_run, predicted, work_of_run
from training_runs import texts, told

from gloader.cli.main import main
from gloader.errors import FormatError
from gloader.lab.analyze.findings import Findings
from gloader.lab.report.analysis_page import analysis_sections, best_points
from gloader.lab.report.build_page import read_sections
from gloader.lab.report.page import Section, render_page

FASTER = predicted("order=$a_{b$", work=work_of_run(read_s=0.015))  # no formula, whatever it looks like
SMALLER = predicted("cache=0.5x", work=work_of_run(read_s=0.045))
VERIFIED = {"compute_s": 0.08, "warm_s": 0.09, "cold_s": 0.24, "preparation": 0.01, "fetch": 0.15}
TITLES = [
    "Analysis: x",
    "Where an epoch goes: x",
    "Measured beside replayed: x",
    "Seconds against memory: x",
    "Misses against memory: x",
]


def _sections(found: Findings) -> list[Section]:
    return analysis_sections(found, source="runs/x", name="x")


def test_every_chart_has_a_table_beside_it() -> None:
    made = analysis_sections(findings_of_run(FASTER, SMALLER), source="runs/x", name="x")
    assert [section.title for section in made] == TITLES
    names = [chart.name for section in made for chart in section.charts]
    assert names == ["x-what-if", "x-course", "x-memory", "x-misses"]
    for section in made:
        assert len(section.charts) <= 1
        assert section.tables
        assert all(len(row) == len(table.header) for table in section.tables for row in table.rows)
    page = render_page("t", made)
    assert "<script" not in page
    assert "$a_{b" in page


def test_charts_say_what_the_tables_say() -> None:
    first, _, course, memory, misses = analysis_sections(
        findings_of_run(FASTER, SMALLER), source="runs/x", name="x"
    )
    assert {"measured", "replayed", "order=$a_{b$", "120 ms, -50%", "floor of the same work"} <= set(
        texts(first.charts[0])
    )
    shown = texts(course.charts[0])
    assert shown.index("measured") < shown.index("sample 2") < shown.index("replayed")
    assert {"batch 2", "batch 3", "batch 4", "other batches"} <= set(shown)
    assert {"1, 3", "2"} <= set(texts(memory.charts[0])) or {"1", "2", "3"} <= set(texts(memory.charts[0]))
    assert "knee 1 MB" in texts(misses.charts[0])
    assert told(misses.charts[0])[0] == "rows read from the SSD, 0: 100%"


def test_the_first_table_has_what_helps_between_the_epoch_and_its_floor() -> None:
    (table,) = _sections(findings_of_run(FASTER, SMALLER))[0].tables
    assert [row[0] for row in table.rows] == ["measured", "replayed", "order=$a_{b$", "floor"]
    assert table.rows[2][1:5] == ("120 ms", "-50.1%", "reads of the SSD", "1 GB")
    asked = _sections(findings_of_run(FASTER, SMALLER, was_asked=True))[0]
    assert [row[0] for row in asked.tables[0].rows][2:4] == ["order=$a_{b$", "cache=0.5x"]
    none = _sections(findings_of_run(SMALLER))[0]
    assert none.notes == ("no tried change saves 2% of an epoch (cache=0.5x)",)


def test_stalls_have_a_column_of_what_was_measured_where_it_was() -> None:
    parts, stalls = _sections(findings_of_run())[1].tables
    assert parts.rows[0][0] == "read"
    assert stalls.header == ("stall", "replayed", "share")
    _, stalls, runs = _sections(findings_of_run(verified=VERIFIED))[1].tables
    assert stalls.header[-1] == "measured"
    assert {row[0]: row[-1] for row in stalls.rows} == {
        "preparation": "10 ms", "fetch": "150 ms", "transfer": "", "interconnect": "", "network": "",
    }  # fmt: skip
    assert runs.rows == (("computing alone", "80 ms"), ("all in memory", "90 ms"), ("as recorded", "240 ms"))


def test_three_batches_are_compared_stage_by_stage() -> None:
    found = findings_of_run(slower=1.05)
    (section,) = (one for one in _sections(found) if one.title.startswith("Measured beside"))
    assert section.source.startswith("Batches 2, 3, 4 of epoch 3, from the first batch's sampling")
    rows = {name: (measured, replayed) for name, measured, replayed in section.tables[0].rows}
    assert list(rows)[-1] == "from the first sample to the last step"
    measured, replayed = (float(text.removesuffix(" ms")) for text in list(rows.values())[-1])
    assert measured == pytest.approx(1.05 * replayed, rel=0.01)
    assert list(rows)[:-1] == ["sample", "inspect", "stage", "read", "gather", "compute"]


def test_points_that_are_beaten_in_both_are_marked() -> None:
    assert best_points([(1, 3.0), (2, 2.0), (2, 2.5), (3, 2.0)]) == {(1, 3.0), (2, 2.0)}
    (section,) = (
        one for one in _sections(findings_of_run(FASTER, SMALLER)) if one.title.startswith("Seconds")
    )
    assert [(row[1], row[-1]) for row in section.tables[0].rows] == [
        ("as it was", "yes"),
        ("order=$a_{b$", ""),
        ("cache=0.5x", ""),
    ]


def test_what_is_not_known_has_no_section() -> None:
    found = findings_of_run()
    alone = replace(found, curve=(), knee_bytes=None, memory_bytes=None)
    assert [section.title for section in _sections(alone)] == TITLES[:3]
    untimed = replace(alone, course=replace(alone.course, replayed=()))
    assert [section.title for section in _sections(untimed)] == TITLES[:2]


def test_a_refused_analysis_shows_what_was_measured_and_why_there_is_no_more() -> None:
    found = findings_of_run(FASTER, slower=1.5)
    first, *rest = _sections(found)
    assert ("nothing predicted", found.refused) in first.facts
    assert [row[0] for row in first.tables[0].rows] == ["measured", "replayed"]
    assert first.notes == ()
    assert TITLES[1] not in [section.title for section in rest]


def test_a_report_has_the_analysis_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "x"
    run.mkdir()
    (run / "analysis.json").write_text(json.dumps(findings_of_run(FASTER, SMALLER).to_json()))
    assert [section.title for section in read_sections(run)] == TITLES
    assert main(["report", str(run), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sections"] == TITLES


@pytest.mark.parametrize("damage", [{"measured_s": "long"}, {"parts": {"read": None}}, {"version": 0}])
def test_a_damaged_analysis_is_refused_by_a_report(tmp_path: Path, damage: dict[str, object]) -> None:
    path = tmp_path / "analysis.json"
    path.write_text(json.dumps(findings_of_run().to_json() | damage))
    with pytest.raises(FormatError):
        read_sections(path)
