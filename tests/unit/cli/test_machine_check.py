"""What the doctor finds, and what it advises."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from gloader.cli import machine_check
from gloader.cli.doctor import _table
from gloader.cli.views.screen import Screen

if TYPE_CHECKING:
    from pathlib import Path


def test_cpu_quota_of_either_cgroup_version(tmp_path: Path) -> None:
    assert machine_check.cpu_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert machine_check.cpu_quota(tmp_path) is None
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    assert machine_check.cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine_check.cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("300000 100000\n")
    assert machine_check.cpu_quota(tmp_path) == 3


def test_missing_package_is_a_problem_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        machine_check, "_version", lambda package: None if package in {"torch", "dgl"} else "1.0"
    )
    findings = {finding.name: finding for finding in machine_check.check_versions()}
    assert findings["torch"].severity == "problem"
    assert findings["torch"].fix == "pip install torch -c constraints.txt"
    assert findings["dgl"].severity == "ok"
    assert "optional" in findings["dgl"].value


def test_single_core_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_check.os, "sched_getaffinity", lambda _pid: {3})
    assert machine_check.check_cores().severity == "note"
    monkeypatch.setattr(machine_check.os, "sched_getaffinity", lambda _pid: {1, 2})
    monkeypatch.setattr(machine_check, "cpu_quota", lambda _cgroup: 0.5)
    assert machine_check.check_cores().severity == "note"
    monkeypatch.setattr(machine_check, "cpu_quota", lambda _cgroup: None)
    assert machine_check.check_cores().severity == "ok"


def test_small_limit_on_open_files_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (64, 4096))
    assert machine_check.check_descriptors().fix == "ulimit -n 4096"


def test_little_memory_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gloader.memory.available.available_memory_bytes", lambda: 1 << 30)
    finding = machine_check.check_memory()
    assert finding.severity == "note"
    assert "--memory-budget" in str(finding.fix)


@pytest.mark.parametrize(
    ("free", "severity", "value"),
    [(1, "problem", "the disk is full: 1 B free at "), (1 << 30, "note", "1.07 GB free at ")],
)
def test_a_full_disk_is_a_problem_and_little_space_is_noted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, severity: str, value: str
) -> None:
    usage = machine_check.shutil._ntuple_diskusage(9 << 30, 8 << 30, free)
    monkeypatch.setattr(machine_check.shutil, "disk_usage", lambda _path: usage)
    monkeypatch.setattr(machine_check, "_probe", lambda _base: [])
    (finding,) = machine_check.check_disk(tmp_path)
    assert (finding.severity, finding.value) == (severity, f"{value}{tmp_path}")
    assert finding.fix


def test_what_to_do_is_shown_below_the_finding(capsys: pytest.CaptureFixture[str]) -> None:
    finding = machine_check.Finding(name="disk", value="1 GB free", severity="note", fix="free some space")
    Screen.open(is_json=False).console.print(_table([finding]))
    shown, advice = capsys.readouterr().out.splitlines()
    assert shown.split() == ["note", "disk", "1", "GB", "free"]
    assert advice.strip() == "-> free some space"
