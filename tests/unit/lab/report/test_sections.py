from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from comparison_json import MEASURED, comparison

from gloader.errors import ConfigError, FormatError
from gloader.lab.report import make_report
from gloader.lab.report.build_page import read_sections

EPOCH = {
    "epoch": 0, "loss": 1.5, "train_acc": 0.5, "valid_acc": None, "lr": 0.1, "seconds": 2.0, "evaluate_seconds": 1.0,
    "rows_per_second": 5.0, "bottleneck": "compute", "rows_gathered": 1000, "hit_rate": 0.25, "bytes_read": 4096,
    "bytes_written": 0,
}  # fmt: skip


def _run(folder: Path, *epochs: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
    return folder


def _trace() -> dict[str, Any]:
    events = [
        {
            "ph": "X", "cat": "stage", "name": "compute", "tid": 1, "ts": 1e6 * epoch, "dur": 5e5,
            "args": {"epoch": epoch, "batch": 0},
        }
        for epoch in (0, 1)
    ]  # fmt: skip
    return {"traceEvents": [{"ph": "M", "name": "thread_name"}, *events]}


def test_a_run_that_is_not_finished_is_shown(tmp_path: Path) -> None:
    folder = _run(tmp_path / "r", EPOCH, EPOCH | {"epoch": 1, "valid_acc": 0.75})
    (section,) = read_sections(folder)
    assert section.title == "Training: r"
    assert section.facts[-1] == ("state", "not finished")
    table = dict(section.folded_tables)["Each epoch"]
    assert [row[0] for row in table.rows] == ["1", "2"]  # as on the screen
    assert [row[5] for row in table.rows] == ["", "0.7500"]
    assert "acc" in {chart.name for chart in section.charts}


def test_a_run_that_diverged_is_drawn(tmp_path: Path) -> None:
    (section,) = read_sections(_run(tmp_path / "r", EPOCH | {"valid_acc": 1e308}, EPOCH | {"epoch": 1}))
    assert "loss" in {chart.name for chart in section.charts}


def test_a_run_of_several_types_says_what_came_from_memory_of_each(tmp_path: Path) -> None:
    folder = _run(tmp_path / "r", EPOCH)
    result = {
        "test_acc": None, "features": "ssd", "policy": "belady", "io_strategy": "auto", "hit_rate": 0.5,
        "rows_gathered": 9, "bytes_read": 4096, "requests": 2, "peak_rss_bytes": 10**9, "total_seconds": 3.0,
        "versions": {},
        "tables": {"paper": {"hit_rate": 0.25, "rows_gathered": 1000, "bytes_read": 2_000_000}},
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    (section,) = read_sections(folder)
    assert ("rows of paper from memory", "25.0% of 1,000, 2 MB read") in section.facts


def test_several_runs_stand_beside_each_other(tmp_path: Path) -> None:
    runs = [
        _run(tmp_path / name, EPOCH | {"seconds": seconds}) for name, seconds in (("a", 2.0), ("b", 130.0))
    ]
    together, *_ = make_report(runs, tmp_path / "page.html")
    (table,) = together.tables
    assert [row[0] for row in table.rows] == ["a", "b"]
    assert [row[5] for row in table.rows] == ["2.0 s", "2 min 10 s"]
    page = (tmp_path / "page.html").read_text()
    assert "<td>2\u00a0min 10\u00a0s</td>" in page  # a unit stays beside its number
    assert "<td>4.1\u00a0KB</td>" in page
    assert [section.title for section in make_report(runs[:1], tmp_path / "page.html")] == ["Training: a"]


def test_a_folder_shows_all_it_holds(tmp_path: Path) -> None:
    folder = _run(tmp_path / "r", EPOCH)
    for home in (folder, folder / "mlp"):
        home.mkdir(exist_ok=True)
        for number in (10, 9):
            _run(home / f"run-{number}", EPOCH)
    (folder / "trace.json").write_text(json.dumps(_trace()))
    titles = [section.title for section in read_sections(folder)]
    runs = ["r", "r/run-9", "r/run-10", "r/mlp/run-9", "r/mlp/run-10"]
    assert titles == [*(f"Training: {name}" for name in runs), "Timeline: r"]


def test_the_timeline_is_of_the_second_epoch(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(json.dumps(_trace()))
    (section,) = read_sections(path)
    assert section.title == "Timeline: some"
    assert section.charts[0].caption.startswith("Epoch 2:")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("{", FormatError, "is not JSON"),
        ("[]", FormatError, "holds no JSON object"),
        (
            '{"a": 1}',
            ConfigError,
            "is no file that a report can show; give the folder of a `gloader train` run",
        ),
        ('{"benchmark": "compare"}', FormatError, "is no comparison: KeyError"),
        ('{"traceEvents": [{"ph": "X"}]}', FormatError, "is no trace of gloader: KeyError"),
        ('{"knee": 1, "policies": {}}', FormatError, "is no inspection: KeyError"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, error: type[Exception], message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(error, match=message):
        read_sections(path)


def test_paths_without_anything_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds nothing that can be shown"):
        read_sections(tmp_path)
    with pytest.raises(ConfigError, match="does not exist; give the folder"):
        read_sections(tmp_path / "no")
    with pytest.raises(ConfigError, match="there are no runs"):
        make_report([], tmp_path / "out.html")


def test_an_error_leaves_the_page_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    path = tmp_path / "compare.json"
    values = {"benchmark": "compare", "comparisons": [comparison(MEASURED)], "machine": {"cores": 2}}
    path.write_text(json.dumps(values | {"versions": {}, "read_ahead_kb": {"vda": 128}, "command": "c"}))
    sections = make_report([path], out, png=tmp_path / "png")
    assert [section.title for section in sections] == ["Comparison on rmat"]
    assert (tmp_path / "png" / "compare-rmat.svg").read_bytes() == sections[0].charts[0].as_file()
    before = out.read_bytes()
    with pytest.raises(ConfigError):
        make_report([path, tmp_path / "no"], out)
    assert out.read_bytes() == before
    assert [p.name for p in out.parent.iterdir()] == ["page.html"]
