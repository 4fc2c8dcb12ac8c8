"""Names from data reach a terminal as text: no escape sequence, no markup, nothing that cannot be encoded."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from gloader.cli.main import main
from gloader.cli.screen import Screen, facts, show_logs
from gloader.cli.train import _default_out
from gloader.core.malformed import printable, printable_line
from gloader.dataset import Dataset
from gloader.dataset.schema import DatasetSchema
from gloader.dataset.writer import DatasetWriter
from gloader.errors import SourceError

HOSTILE = {
    "title": "\x1b]0;owned\x07",
    "clear": "\x1b[2J\x1b[H",
    "c1": "\x9b31m",
    "carriage": "good\rbad",
    "lines": "one\ntwo",
    "bidi": "abc\u202egpj.exe",
    "isolate": "\u2066x\u2069",
    "surrogate": "caf\udce9",
    "markup": "[red]x[/red]",
    "closing": "[/x]",
    "path": "[v1]",
    "emoji": ":boom:",
    "math": "$\\frac$",
}
UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def write_dataset(path: Path, name: str) -> Path:
    with DatasetWriter(
        path,
        schema=DatasetSchema.of_one_type(4),
        name=name,
        num_classes=2,
        metadata={"source": f"npy:{name}", name: name, "options": {name: True}},
    ) as writer:
        for array, rows in (
            (writer.indptr(), np.array([0, 1, 2, 2, 2])),
            (writer.indices(2, "int32"), np.array([1, 0], np.int32)),
        ):
            with array:
                array.append(rows)
        with writer.features(2, "float32") as features:
            features.append(np.zeros((4, 2), np.float32))
        writer.labels(np.array([0, 1, 0, 1]))
        writer.splits(train=np.array([0, 1]), valid=np.array([2]), test=np.array([3]))
    return path


@pytest.mark.parametrize("kind", HOSTILE)
def test_info_shows_any_name(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_dataset(tmp_path / "ds", HOSTILE[kind])
    assert main(["info", str(path)]) == 0
    shown = capsys.readouterr().out
    shown.encode("utf-8")
    assert not UNFIT.search(shown)
    assert printable_line(HOSTILE[kind]) in shown
    assert main(["info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == HOSTILE[kind]


def test_paths_in_brackets_are_shown_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_dataset(tmp_path / "[v1]" / "[/x] ds", "plain")
    assert main(["info", str(path)]) == 0
    shown = "".join(capsys.readouterr().out.split())
    assert "".join(str(path).split()) in shown


@pytest.mark.parametrize("kind", HOSTILE)
def test_errors_show_any_name(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = HOSTILE[kind]
    assert main(["info", f"/nowhere/{name}"]) == 2
    assert main(["train", "--dataset", f"npy:/nowhere/{name}"]) == 2
    shown = capsys.readouterr().err
    shown.encode("utf-8")
    assert not UNFIT.search(shown)
    assert printable(" ".join(name.split())) in shown


def test_every_way_to_the_terminal_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    # The test runner sends what it captures to its parent, and cannot send half a pair.
    monkeypatch.setattr(logging.getLogger("gloader"), "propagate", False)
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, highlight=False, emoji=False, markup=False, color_system=None
    )
    screen = Screen(console=console, is_json=False)
    show_logs(console)
    for text in HOSTILE.values():
        screen.say(text)
        console.print(facts({text: text}, title=text))
        logging.getLogger("gloader").warning("%s", SourceError(text))
    show_logs(None)
    shown = file.getvalue()
    shown.encode("utf-8")
    assert not UNFIT.search(shown)
    for kind in ("markup", "closing", "path", "emoji"):
        assert shown.count(HOSTILE[kind]) == 5


def test_text_of_any_script_is_left_alone() -> None:
    text = "Größe 大きさ الحجم\t\U0001f600\n"
    assert printable(text) == text
    assert printable_line("a\nb") == "a\ufffdb"


@pytest.mark.parametrize("kind", ["math", "surrogate"])
def test_pictures_take_any_name(tmp_path: Path, kind: str) -> None:
    path = write_dataset(tmp_path / "ds", HOSTILE[kind])
    assert Dataset.open(path).name == HOSTILE[kind]
    words = ["--fanout", "2", "--batch-size", "2", "--out", str(tmp_path / "out")]
    assert main(["inspect", "--dataset", str(path), *words]) == 0
    assert (tmp_path / "out" / "inspect.svg").is_file()


@pytest.mark.reliability("J17")
@pytest.mark.parametrize(
    "name", ["../../../tmp/x", "/etc/x", "a\0b", "..", "", "x" * 1000, *HOSTILE.values()]
)
def test_the_folder_that_a_run_is_given_lies_below_runs(name: str) -> None:
    folder = _default_out(name, "graphsage")
    assert folder.parent == Path("runs")
    assert re.fullmatch(r"[\w.-]*-?graphsage-\d{8}-\d{6}", folder.name, re.ASCII)
    assert not folder.name.startswith((".", "-"))
    assert len(folder.name) < 100


def test_the_folder_of_a_run_is_named_like_its_dataset() -> None:
    assert _default_out("coauthor_phy", "gcn").name.startswith("coauthor_phy-gcn-2")
