"""The findings of the doctor, and its advice."""

from __future__ import annotations

import resource
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gloader.cli import machine_check
from gloader.cli.doctor import _table
from gloader.cli.screen import Screen
from gloader.ssd_store.cost.device_profile import DeviceProfile, Known, Lesson
from gloader.ssd_store.cost.profile import remember_profile

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
    monkeypatch.setattr("gloader.plan.available.available_memory_bytes", lambda: 1 << 30)
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
    finding = machine_check.MachineFinding(
        name="disk", value="1 GB free", severity="note", fix="free some space"
    )
    Screen.open(is_json=False).console.print(_table([finding]))
    shown, advice = capsys.readouterr().out.splitlines()
    assert shown.split() == ["note", "disk", "1", "GB", "free"]
    assert advice.strip() == "-> free some space"


NOW = 1_790_000_000.0
PROFILE = DeviceProfile(
    random_reads_per_s=60_000.0,
    read_bytes_per_s=3e9,
    write_bytes_per_s=2e9,
    queue_depth=256,
    is_direct=True,
    medium_reads_per_s=40_000.0,
    wide_reads_per_s=16_000.0,
    measured_at=NOW - 3 * 86_400 - 5,
)


def _lesson(when: float) -> Lesson:
    known = Known(ratio=2.5, share=1.0, times=8.0)
    return Lesson(when=when, known={"in_order": known, "wide": known, "write": known})


def test_rates_are_shown_with_their_age() -> None:
    finding = machine_check.used_rates(PROFILE, NOW)
    assert (finding.name, finding.severity) == ("rates used", "ok")
    assert finding.value == (
        "60 k random reads/s of 4 KiB, 40 k of 16 KiB and 16 k of 64 KiB, 3 GB/s in file order, 2 GB/s written: "
        "measured 3 days ago"
    )


def test_rates_that_runs_corrected_say_from_how_many_and_when() -> None:
    profile = PROFILE
    for hours in range(13, 1, -1):
        profile = profile.taught(_lesson(NOW - hours * 3600 - 10))
    assert machine_check.used_rates(profile, NOW).value == (
        "60 k random reads/s of 4 KiB, 25.6 k of 16 KiB and 6,400 of 64 KiB, 1.2 GB/s in file order, "
        "800 MB/s written: learnt from 12 runs, the last 2 hours ago; measured 3 days ago"
    )
    once = PROFILE.taught(_lesson(NOW - 61))
    assert machine_check.used_rates(once, NOW).value.endswith(
        "learnt from 1 run, 1 minute ago; measured 3 days ago"
    )


def test_the_doctor_shows_what_the_disk_does_now_beside_what_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))
    learnt = replace(PROFILE, measured_at=time.time() - 7200).taught(_lesson(time.time() - 150))
    remember_profile(tmp_path, learnt)
    fresh = replace(PROFILE, read_bytes_per_s=3.1e9, measured_at=time.time())
    monkeypatch.setattr("gloader.ssd_store.cost.profile.probe_device", lambda *_, **__: fresh)
    found = {finding.name: finding.value for finding in machine_check._probe(tmp_path)}
    assert found["disk rates"] == (
        "60 k random 4 KiB reads/s at depth 256, 3.1 GB/s read, 2 GB/s written, as probed just now"
    )
    assert found["rates used"].endswith("learnt from 1 run, 2 minutes ago; measured 2 hours ago")
    assert "1.2 GB/s in file order" in found["rates used"]
