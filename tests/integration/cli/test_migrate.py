"""`gloader migrate` as it is typed: what it prints, its exit status, and that it neither runs nor changes a script."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from scripts_to_migrate import DGL_BUILT, DGL_GRAPHBOLT, DGL_LINKS, DGL_MAG, PYG_BUILT, PYG_PRODUCTS

from gloader.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of each test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_a_script_that_maps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text(DGL_BUILT)
    assert main(["migrate", "train.py"]) == 0
    out = capsys.readouterr().out
    assert "maps, by the same name" in out
    assert "gloader.compat.dgl.dataloading: DataLoader, NeighborSampler" in out
    assert 'dgl.graph: dgl.DGLGraph(gloader.Dataset.open("data/graph"))' in out
    assert "34  num_workers=: threads sample and read ahead" in out
    assert "    gloader prepare dgl:graph.bin data/graph --self-loops\n" in out
    assert "does not map" not in out
    assert not re.search(r" $", out.partition("\n--- ")[0], re.MULTILINE)  # blanks that fill a table up
    assert "\n-import dgl\n" in out
    assert out.endswith(
        "nothing was written; to change the script: gloader migrate train.py --diff | patch train.py\n"
    )


def test_a_script_that_does_not_map(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text(DGL_MAG)
    assert main(["migrate", "train.py"]) == 1
    out = capsys.readouterr().out
    assert "does not map" in out
    assert "13  dgl.nn.HeteroEmbedding: rows that are learned: a torch.nn.Embedding for each type" in out
    assert "look at this" in out
    assert "docs/from-dgl.md says what to do about what does not map" in out
    (folder / "train.py").write_text(DGL_GRAPHBOLT)
    assert main(["migrate", "train.py"]) == 1
    out = capsys.readouterr().out
    assert out.count("a GraphBolt pipeline takes") == 1
    assert (
        "4, 5, 8  dgl.graphbolt.BuiltinDataset, dgl.graphbolt.ItemSampler, dgl.graphbolt.DataLoader: a" in out
    )
    assert out.endswith("no line changes\n")


def test_a_narrow_screen_keeps_words_whole(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    (folder / "train.py").write_text(PYG_PRODUCTS)
    assert main(["migrate", "train.py"]) == 1
    out = capsys.readouterr().out
    assert 'gloader.Dataset.open("data/ogbn-products")' in out
    assert "  gloader prepare ogb:ogbn-products data/ogbn-products\n" in out


@pytest.mark.parametrize("text", [DGL_BUILT, DGL_LINKS, PYG_BUILT])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "command", [["git", "apply", "-p0", "-"], ["patch", "-p0"], ["patch", "--binary", "train.py"]]
)
def test_the_diff_is_taken_by_other_programs(
    text: str, line_end: str, command: list[str], folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    script = folder / "train.py"
    script.write_bytes(text.replace("\n", line_end).encode())
    if command[0] == "patch" and line_end == "\r\n":
        command = [*command, "--binary"]
    assert main(["migrate", "train.py", "--diff"]) == 0
    diff = capfdbinary.readouterr().out
    subprocess.run(command, input=diff, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    assert script.read_bytes().count(line_end.encode()) == script.read_bytes().count(b"\n")
    assert b"gloader" in script.read_bytes()
    again = main(["migrate", "train.py", "--diff"])
    assert capfdbinary.readouterr().out == b""
    assert again in (0, 2)  # a script of PyG still uses it; one of DGL does not


def test_json_has_everything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.py").write_text("import dgl\n")
    (folder / "train.py").write_text(f"import model\n{DGL_BUILT}")
    assert main(["migrate", "train.py", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["script", "libraries", "complete", "findings", "once", "also", "diff"]
    assert found["also"] == ["model.py"]
    assert main(["migrate", "train.py"]) == 0
    assert "the script imports another: gloader migrate model.py" in capsys.readouterr().out


def test_nothing_is_run_and_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = folder / "train.py"
    script.write_text(f"open('ran', 'w').close()\nraise SystemExit(9)\n{DGL_BUILT}")
    before = script.read_bytes()
    for words in ([], ["--json"], ["--diff"]):
        assert main(["migrate", "train.py", *words]) == 0
    capsys.readouterr()
    assert [path.name for path in folder.iterdir()] == ["train.py"]
    assert script.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "train.py is missing; give a Python script"),
        (b"import dgl\nfor\n", "train.py is no Python of this version, line 2: invalid syntax"),
        (b"\x7fELF\x02\x01\x00\xd0", "train.py is not UTF-8: line 1 has the byte 0xd0"),
        (b"import dgl\n" * 100_000, "train.py has more than 1 MB; give a Python script"),
        (b"import numpy\n", "train.py imports neither dgl nor torch_geometric"),
    ],
)
def test_what_cannot_be_read(
    content: bytes | None, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (folder / "train.py").write_bytes(content)
    assert main(["migrate", "train.py"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith(f"error: {said}")


def test_what_a_script_says_has_no_power_over_the_screen(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text("import dgl\nx = '\x1b]0;title\x07[red]'  # :smile:\nimport dgl.nn\n")
    assert main(["migrate", "train.py"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[red]'  # :smile:" in out
