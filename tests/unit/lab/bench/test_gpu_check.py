"""The check of a GPU: what it does with parts that fail or take too long, and that it asks torch for what there is."""

import ast
import operator
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import gpu_check
import gpu_models
import gpu_processes
import pytest
import torch
from gpu_check import Part, run_parts
from gpu_findings import GpuFinding, bounded, reported
from gpu_sizes import Clock, Sizes, sizes_of

BENCH = Path(gpu_check.__file__).parent


@pytest.fixture
def sizes(tmp_path: Path) -> Sizes:
    return sizes_of(is_gpu=False, workdir=tmp_path, scale=1.0)


def _put_parts(monkeypatch: pytest.MonkeyPatch, **checks: object) -> None:
    """Make the given functions the parts, each with an equal share of the time."""
    monkeypatch.setitem(sys.modules, "parts_of_a_test", SimpleNamespace(**checks))
    parts = {name: Part(module="parts_of_a_test", check=name, seconds=1) for name in checks}
    monkeypatch.setattr(gpu_check, "PARTS", parts)


def test_a_part_that_fails_is_a_finding_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, sizes: Sizes
) -> None:
    def breaks(_: Sizes, __: Clock) -> Iterator[GpuFinding]:
        yield reported("before", 1.0)
        raise RuntimeError("the device is gone")

    def works(_: Sizes, __: Clock) -> Iterator[GpuFinding]:
        yield reported("after", 2.0)

    _put_parts(monkeypatch, breaks=breaks, works=works)
    found = {finding.name: finding for finding in run_parts(["breaks", "works"], sizes, seconds=60)}
    assert list(found) == ["before", "breaks: to its end", "breaks: time", "after", "works: time"]
    failed = found["breaks: to its end"]
    assert (failed.verdict, failed.part) == ("failed", "breaks")
    assert failed.measured == "RuntimeError: the device is gone"
    assert "in breaks" in failed.note


def test_a_part_has_its_share_of_the_time_and_says_what_it_left_out(
    monkeypatch: pytest.MonkeyPatch, sizes: Sizes
) -> None:
    def goes_on(_: Sizes, clock: Clock) -> Iterator[GpuFinding]:
        for number in clock.each(range(1000)):
            time.sleep(0.01)
            yield reported(str(number), 0.0)

    _put_parts(monkeypatch, first=goes_on, second=goes_on)
    began = time.monotonic()
    found = list(run_parts(["first", "second"], sizes, seconds=0.4))
    assert time.monotonic() - began < 2
    for name in ("first", "second"):
        notes = [finding.note for finding in found if finding.name == f"{name}: in full"]
        assert len(notes) == 1
        assert notes[0].startswith("no time was left for: ")
        assert notes[0].endswith(", 999")
        assert [finding for finding in found if finding.part == name and finding.name == "0"]
    found = list(run_parts(["first"], sizes, seconds=0))
    assert next(finding.note for finding in found) == "no time was left for: all of it"


def test_a_module_that_the_checkout_does_not_have_is_not_checked(
    monkeypatch: pytest.MonkeyPatch, sizes: Sizes
) -> None:
    monkeypatch.setattr(gpu_check, "PARTS", {"later": Part(module="gpu_later", check="check", seconds=1)})
    assert [finding.verdict for finding in run_parts(["later"], sizes, seconds=9)] == [
        "not checked",
        "for comparison",
    ]


@pytest.mark.filterwarnings("ignore")  # torch warns of its own code while it traces
@pytest.mark.parametrize("breaks", [pytest.param(False, marks=pytest.mark.long), True])
def test_what_the_compiler_refuses_is_wrong(
    monkeypatch: pytest.MonkeyPatch, sizes: Sizes, breaks: bool
) -> None:
    """Of every model, also without a GPU: a check that calls it a figure for comparison cannot fail."""

    def refuse(*_: object, **__: object) -> object:
        raise RuntimeError("no meta function\nand a trace")

    if breaks:
        monkeypatch.setattr(torch, "compile", lambda *_, **__: refuse)
    found = list(run_parts(["compile"], sizes, seconds=300))
    verdicts = {name: [f.verdict for f in found if f.name.startswith(name)] for name in gpu_models.NAMES}
    assert all(verdicts.values())
    if breaks:
        assert {verdict for of_model in verdicts.values() for verdict in of_model} == {"wrong"}
        assert {f.note for f in found if f.verdict == "wrong"} == {"RuntimeError: no meta function"}
    else:
        assert {verdict for of_model in verdicts.values() for verdict in of_model} == {"ok"}


def test_parts_are_chosen_by_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--only", "bits,fast"])
    with pytest.raises(SystemExit):
        gpu_check.main()
    assert "argument --only: fast: not among env, pinned, bits" in capsys.readouterr().err


def test_bounds_and_predictions_stand_beside_the_figures() -> None:
    slow = bounded("rate", 40.0, "GB/s", least=50.0, predicted="55", note="sorted")
    assert slow.row == "| rate | 40 GB/s (sorted) | at least 50 GB/s | 55 | short of it |"
    wrong = bounded("distance", 0.1, "", most=0.01, is_right=False)
    assert (wrong.verdict, wrong.must_be) == ("wrong", "at most 0.01")
    assert slow.line == "   short of it  rate: 40 GB/s (sorted); must be at least 50 GB/s; predicted 55"


def test_a_child_that_hangs_ends_by_its_deadline_and_not_by_its_word() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    began = time.monotonic()
    assert not gpu_processes._has_begun(child, began + 0.1)
    assert gpu_processes._outcome(child, began) == ("", "")
    assert gpu_processes._status(child) == "ended by us, as it hung"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("path", sorted(BENCH.glob("gpu_*.py")), ids=lambda path: path.stem)
def test_every_name_of_torch_exists(path: Path) -> None:
    """This torch has the names of CUDA, though no CUDA: a misspelt one would be found on the GPU alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if re.fullmatch(r"torch(\.\w+)+", text):
            operator.attrgetter(text.partition(".")[2])(torch)
