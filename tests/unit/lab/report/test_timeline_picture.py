"""The picture of a trace."""

import sys
from pathlib import Path

import pytest

from gloader.errors import ConfigError, MissingDependencyError
from gloader.lab.report.timeline_picture import _cut, _labels, _rows, _slices_of, render_timeline
from gloader.observe.epoch_stats import WORK_NAMES
from gloader.observe.timeline import TimelineRecorder
from gloader.types import BatchId

S = 10**9


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    timeline = TimelineRecorder()
    for epoch in (0, 1):
        for place, stage in enumerate(WORK_NAMES):
            for index in range(3):
                begin = (epoch * 20 + place + index) * S
                timeline.record(stage, BatchId(epoch=epoch, index=index), 1, begin, begin + S)
    timeline.write(tmp_path / "trace.json")
    return tmp_path / "trace.json"


def test_the_picture_is_a_png(trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    render_timeline(trace, picture, epoch=1, seconds=(0, 5), title="an epoch")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 5000


def test_it_holds_one_epoch_from_its_first_work_on(trace: Path) -> None:
    slices = _cut(_slices_of(trace, 1), None)
    assert len(slices) == 3 * len(WORK_NAMES)
    assert (min(s["begin"] for s in slices), max(s["end"] for s in slices)) == (
        0.0,
        float(len(WORK_NAMES) + 2),
    )
    assert len(_slices_of(trace, None)) == 6 * len(WORK_NAMES)


def test_a_part_of_the_time_is_cut_out(trace: Path) -> None:
    slices = _cut(_slices_of(trace, 0), (0.5, 1.5))
    assert [(s["name"], s["shade"], s["begin"], s["end"]) for s in slices] == [
        ("sweep", 0, 0.0, 0.5),
        ("sweep", 1, 0.5, 1.0),
        ("sample", 0, 0.5, 1.0),
    ]


def test_superbatches_alternate_in_shade(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    for index in range(4):
        batch = BatchId(epoch=0, index=index)
        timeline.record("sample", batch, 1, index * S, (index + 1) * S)
        timeline.record("read", batch, 1, (5 + index) * S, (6 + index) * S, notes={"superbatch": index // 2})
    timeline.record("stage", BatchId(epoch=0, index=2), 2, 4 * S, 5 * S, notes={"superbatch": 1})
    timeline.write(tmp_path / "trace.json")
    shades = [(s["name"], s["shade"]) for s in _slices_of(tmp_path / "trace.json", 0)]
    assert [shade for name, shade in shades if name == "sample"] == [0, 0, 1, 1]
    assert [shade for name, shade in shades if name == "read"] == [0, 0, 1, 1]
    assert [shade for name, shade in shades if name == "stage"] == [1]


def test_rows_follow_the_stages_and_number_their_threads() -> None:
    rows = _rows(
        [{"name": n, "tid": t} for n, t in [("gather", 1), ("sample", 3), ("sample", 2), ("gather", 1)]]
    )
    assert rows == [("sample", 2), ("sample", 3), ("gather", 1)]
    assert _labels(rows) == ["sample 1", "sample 2", "gather"]


def test_an_epoch_without_work_is_refused(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trace.json holds no work of epoch 7; choose another"):
        render_timeline(trace, tmp_path / "x.png", epoch=7)
    with pytest.raises(ConfigError, match=r"no work of epoch \* between 900 s and 901 s"):
        render_timeline(trace, tmp_path / "x.png", seconds=(900, 901))
    assert not (tmp_path / "x.png").exists()


def test_without_matplotlib_it_says_how_to_install_it(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"'\.\[plot\]'"):
        render_timeline(trace, tmp_path / "x.png")
