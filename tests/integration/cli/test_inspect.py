"""`gloader inspect` on a real graph, as a user would run it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gloader.cli.main import main
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import ensure_dataset
from gloader.lab.inspect import EmbeddingReads, inspect_embedding

BASE = ["inspect", "--dataset", "builtin:digits", "--fanout", "5,5", "--batch-size", "32"]
WORDS = [*BASE, "--superbatch", "8"]


@pytest.fixture(autouse=True, scope="module")
def _prepared() -> None:
    """Have the digits prepared before a test whose budget is too small for that."""
    ensure_dataset("builtin:digits", SourceOptions(), PrepareOptions())


def test_the_table_names_every_policy_and_the_knee(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(WORDS) == 0
    shown = capsys.readouterr().out
    for word in ("belady", "S=8", "reset", "degree", "presample", "vip", "best", "lru", "sieve", "s3fifo"):
        assert word in shown
    assert "34 of 34 batches sampled; 1,797 of 1,797 rows occur" in shown
    assert shown.startswith("The knee is at ")
    table = shown[shown.index("digits: % of") : shown.index("34 of 34")]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    head = table.splitlines()[1:3]  # two lines name every policy; the third is the first size
    assert " ".join(head[1].split()) == "memory belady S=8 reset degree presample vip best lru sieve s3fifo"
    assert "KB" in table.splitlines()[3]
    assert "The first read of each row is counted, 8.6% of the accesses. Not so for static sets" in shown


def test_a_narrow_terminal_gets_tables_below_each_other_with_whole_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main([*WORDS, "--batches", "2"]) == 0
    shown = capsys.readouterr().out
    table = shown[shown.index("digits: % of") : shown.index("2 of 34")]
    assert table.count("memory") > 1
    assert max(map(len, table.splitlines())) <= 40
    assert "…" not in table
    for word in ("reset", "degree", "presample", "vip", "best", "lru", "sieve", "s3fifo"):
        assert word in table


def test_json_files_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "inspection"
    assert main([*WORDS, "--batches", "6", "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert json.loads((out / "inspect.json").read_text()) == report
    assert (report["batches"], report["epoch_batches"], report["dataset"]) == (6, 34, "digits")
    assert report["policies"]["static, best"]["preload_bytes"] == report["memory_bytes"]
    assert set(report["policies"]["belady"]["preload_bytes"]) == {0}
    assert report["settings"] == {"fanout": [5, 5], "batch_size": 32, "superbatch": 8, "seed": 0}
    assert (out / "inspect.svg").read_bytes().startswith(b"<svg")


def test_an_embedding_is_shown_at_every_cache_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--batches", "6", "--embed", "32"]) == 0
    shown = capsys.readouterr().out
    table = shown[shown.index("an embedding with rows of 132 B") :]
    assert table.splitlines()[1].split() == ["memory", "rows", "%", "loaded", "read", "written", "disk"]
    assert "100.0%" in table
    assert main([*WORDS, "--batches", "6", "--embed", "node=32", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["embedding"]
    assert (report["row_bytes"], report["slots"][-1]) == (132, 1797)
    assert report["written_bytes_per_epoch"][0] > report["written_bytes_per_epoch"][-1]


def test_assumed_rates_and_sizes_that_are_left_out_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspect_embedding

    def assumed(*given: Any, **named: Any) -> EmbeddingReads:
        reads = found(*given, **named)
        slots = reads.slots
        return replace(reads, is_assumed=True, slots=slots[:-2], left_out=slots[-2:], needed_bytes=3000)

    monkeypatch.setattr("gloader.lab.inspect.inspect_embedding", assumed)
    assert main([*WORDS, "--batches", "6", "--embed", "32"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "The disk's rates are assumed; `gloader doctor` measures them." in shown
    assert (
        "Caches of 1,348 rows and more are left out: their plans take up to 3 KB. Give --memory-budget 6000 for "
        "all sizes."
    ) in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--embed", "author=32"], "--embed: the dataset has no node type 'author'; it has 'node'"),
        (["--embed", "32", "--topology"], "--embed shows reads of rows, and --topology those of edges"),
        (["--batches", "0"], "there is nothing to sample"),
        (["--superbatch", "0"], "superbatch is 0"),
        (["--memory-budget", "20KB"], "--batches"),
    ],
)
def test_what_cannot_be_inspected_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BASE, *words]) == 2
    assert message in capsys.readouterr().err


TOPOLOGY = [*BASE, "--topology", "--batches", "4", "--memory-budget", "4GB", "--spill-budget", "1GB"]


def test_reads_of_the_edges_as_tables_sentences_json_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    # The disk is taken for a modest SSD, whatever is remembered of it.
    for module in ("profile", "device_rates"):
        monkeypatch.setattr(f"gloader.ssd_store.cost.{module}.remembered_profile", lambda _: None)
    out = tmp_path / "new" / "inspection"
    assert main([*TOPOLOGY, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    tables, choice = shown[shown.index("digits: pages") :].split("\n\nA loader ")
    assert [line for line in tables.splitlines() if len(line) <= 80] == GOLDEN.splitlines()
    assert (
        "Alone, hop after hop, a batch reads 177 KB in 6 requests: 0.38 ms. Mapped, it waits for 24 page faults, one "
        "after another.\n"
    ) in tables
    assert (
        "all 98.7 KB (full). What it brings is written once and read twice: 4.24 KB a batch, not in" in tables
    )
    assert tables.endswith(" 4 of 34 batches sampled.")
    assert re.match(
        r"keeps the edges in memory \(they fit in half of the memory budget\)\. With topology='sweep' it makes a pass "
        r"for 512 batches \(S_t\): the most that are tried\. That takes [\d.]+ MB of memory and [\d.]+ MB of the spill "
        r"disk, and reads [\d.]+ KB a batch, what passes brought included: [\d.]+ ms of the disk\.\n",
        choice,
    )
    assert (out / "topology.svg").read_bytes().startswith(b"<svg")
    assert main([*TOPOLOGY, "--out", str(tmp_path / "bare"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in (tmp_path / "bare").iterdir()) == ["topology.json", "topology.svg"]
    assert json.loads((out / "topology.json").read_text()) == report
    assert (report["dataset"], report["num_pages"], report["num_batches"]) == ("digits", 25, 4)
    assert [entry["num_batches"] for entry in report["passes"]] == [2**power for power in range(10)]
    assert [entry["fastest"] for entry in report["passes"]] == ["direct", *["full"] * 9]
    assert (report["home"], report["sweep"]["num_batches"]) == ("ram", 512)


GOLDEN = """\
digits: pages of edges that a batch touches, of 25
hop  nodes  edges  pages  % of all
  0     32    160     19      75.0
  1    180    899     24      98.0

In passes that many batches share, a batch's part by batches a pass (S_t):
  S_t  % wanted            direct            merged              full  fastest
    1      98.0   100 KB  0.20 ms   100 KB  0.20 ms   102 KB  0.20 ms   direct
    2     100.0  51.2 KB  0.10 ms  51.2 KB  0.10 ms  51.2 KB  0.10 ms     full
    4     100.0  25.6 KB  0.05 ms  25.6 KB  0.05 ms  25.6 KB  0.05 ms     full
    8         -                 -                 -  12.8 KB  0.03 ms     full
   16         -                 -                 -   6.4 KB  0.01 ms     full
   32         -                 -                 -   3.2 KB  0.01 ms     full
   64         -                 -                 -   1.6 KB  0.00 ms     full
  128         -                 -                 -    800 B  0.00 ms     full
  256         -                 -                 -    400 B  0.00 ms     full
512 *         -                 -                 -    200 B  0.00 ms     full
"""
