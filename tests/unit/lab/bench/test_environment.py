"""Files of figures say which command and which commit they are of."""

import subprocess
import sys
from pathlib import Path

import pytest

from gloader.lab.bench import environment
from gloader.lab.bench.environment import provenance

ROOT = Path(__file__).parents[4]


def test_a_file_of_figures_names_command_commit_versions_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(ROOT / "experiments" / "bench" / "packs.py")
    monkeypatch.setattr(sys, "argv", [script, "--workdir", "/somewhere/of/mine", "--superbatch", "64"])
    found = provenance()
    assert found["command"] == "python experiments/bench/packs.py --workdir DIR --superbatch 64"
    head = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout
    assert head.startswith(found["commit"].removesuffix("-dirty"))
    assert found["versions"]["numpy"]
    assert found["machine"]["cores"] >= 1


def test_an_installed_command_outside_a_checkout_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "_ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/gloader", "bench", "gather", "--json"])
    found = provenance()
    assert found["command"] == "gloader bench gather --json"
    assert found["commit"] is None
