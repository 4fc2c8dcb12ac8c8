"""Rates of the devices: remembered, probed without a trace, or those of a modest SSD."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.ssd_store.cost import device_probe
from gloader.ssd_store.cost import device_rates as module
from gloader.ssd_store.cost.device_profile import DeviceProfile
from gloader.ssd_store.cost.device_rates import DEFAULT_PROFILE, rates_of
from gloader.ssd_store.cost.io_rates import IoRates
from gloader.ssd_store.cost.profile import remember_profile, remembered_profile
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gloader.ssd_store.read.extents import Extents
    from gloader.types import IdArray

KNOWN = DeviceProfile(
    random_reads_per_s=80_000.0,
    read_bytes_per_s=1e9,
    write_bytes_per_s=2e9,
    queue_depth=128,
    is_direct=True,
    medium_reads_per_s=60_000.0,
    wide_reads_per_s=14_000.0,
)
FILE_BYTES = 2**22


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "SMALLEST_PROBED_BYTES", FILE_BYTES)
    monkeypatch.setattr(device_probe, "_FILE_BYTES", FILE_BYTES)
    for phase in ("PHASE_S", "_MIXED_S"):
        monkeypatch.setattr(device_probe, phase, 0.005)
    return tmp_path / "home"


@pytest.fixture
def features(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "features.npy"
    path.parent.mkdir()
    path.write_bytes(np.random.default_rng(0).bytes(FILE_BYTES))
    return path


@pytest.fixture
def spill(tmp_path: Path) -> Path:
    (tmp_path / "spill").mkdir()
    return tmp_path / "spill"


class TwoDevices(FaultyOS):
    """A system on which the spill folder is on a device of its own."""

    def stat(self, path: str | os.PathLike[str]) -> os.stat_result:
        found = super().stat(path)
        fields = list(found)
        fields[2] += os.path.basename(path) == "spill"  # noqa: PTH119 - st_dev, whatever the path is
        return os.stat_result(fields, {"st_blocks": found.st_blocks})


def no_probe(*_: object, **__: object) -> DeviceProfile:
    raise AssertionError("probed although it was remembered")


def test_a_device_is_probed_once_and_remembered(
    features: Path, spill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever else the machine does while so little is read.
    monkeypatch.setattr(DeviceProfile, "is_doubtful", False)
    before = features.stat().st_mtime_ns
    found = rates_of(features, spill)
    assert min(found.random_reads_per_s, found.medium_reads_per_s, found.read_bytes_per_s) > 0
    assert found.write_bytes_per_s > 0
    assert found.is_one_device
    assert [path.name for path in features.parent.iterdir()] == ["features.npy"]
    assert features.stat().st_mtime_ns == before
    assert list(spill.iterdir()) == []
    profile = remembered_profile(features.parent)
    assert profile is not None
    assert profile.is_complete
    for name in ("probe_file", "probe_writes", "probe_folder"):
        monkeypatch.setattr(module, name, no_probe)
    assert rates_of(features, spill) == found


def test_a_remembered_profile_is_taken(features: Path, spill: Path) -> None:
    remember_profile(features.parent, KNOWN)
    found = rates_of(features, spill)
    assert found.random_reads_per_s == 80_000
    assert found.medium_reads_per_s == 60_000
    assert found.read_bytes_per_s == found.pack_read_bytes_per_s == 1e9
    assert found.write_bytes_per_s == 2e9


BUSY = {
    "random": {"random_reads_per_s": 1_822.0, "medium_reads_per_s": 1_500.0, "wide_reads_per_s": 1_300.0},
    "small": {"random_reads_per_s": 20_000.0},
    "medium": {"medium_reads_per_s": 5_000.0},
    "in order": {"read_bytes_per_s": 1e8},
}


@pytest.mark.parametrize("rates", BUSY.values(), ids=BUSY.keys())
def test_rates_of_a_busy_disk_do_not_last(
    rates: dict[str, float], features: Path, spill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = [replace(KNOWN, **rates, write_bytes_per_s=0.0), replace(KNOWN, write_bytes_per_s=0.0)]
    written = [3e8, 2e9]
    monkeypatch.setattr(module, "probe_file", lambda *_: measured.pop(0))
    monkeypatch.setattr(module, "probe_writes", lambda *_: (written.pop(0), 1.0))
    busy = rates_of(features, spill)
    assert (busy.random_reads_per_s, busy.write_bytes_per_s) == (
        rates.get("random_reads_per_s", 80_000.0),
        3e8,
    )
    # With the disk to itself: all of it is measured again, writes too, and then no more.
    for _ in range(2):
        idle = rates_of(features, spill)
        assert (idle.random_reads_per_s, idle.write_bytes_per_s) == (80_000.0, 2e9)
    assert not measured


def test_odd_rates_that_were_measured_twice_are_the_device_s(
    features: Path, spill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = replace(KNOWN, **BUSY["random"], write_bytes_per_s=0.0)
    measured = [disk, replace(disk, random_reads_per_s=1_900.0)]
    monkeypatch.setattr(module, "probe_file", lambda *_: measured.pop(0))
    monkeypatch.setattr(module, "probe_writes", lambda *_: (2e8, 1.0))
    assert [rates_of(features, spill).random_reads_per_s for _ in range(4)] == [1_822, 1_900, 1_900, 1_900]


def test_a_profile_that_lacks_a_rate_is_completed(features: Path, spill: Path) -> None:
    without_writes = DeviceProfile(
        random_reads_per_s=80_000.0,
        read_bytes_per_s=1e9,
        write_bytes_per_s=0.0,
        queue_depth=128,
        is_direct=True,
        medium_reads_per_s=60_000.0,
        wide_reads_per_s=14_000.0,
    )
    remember_profile(features.parent, without_writes)
    assert rates_of(features).write_bytes_per_s == DEFAULT_PROFILE.write_bytes_per_s
    found = rates_of(features, spill)
    assert found.random_reads_per_s == 80_000
    profile = remembered_profile(features.parent)
    assert profile is not None
    assert profile.write_bytes_per_s == found.write_bytes_per_s != DEFAULT_PROFILE.write_bytes_per_s


def test_a_refresh_measures_again(features: Path, spill: Path) -> None:
    remember_profile(features.parent, KNOWN)
    assert rates_of(features, spill, refresh=True).random_reads_per_s != 80_000
    assert remembered_profile(features.parent) != KNOWN


def test_holes_are_not_measured(features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_probe(*_: object) -> None:
        raise AssertionError("the holes of a file were probed")

    size = features.stat().st_size
    features.unlink()
    with features.open("wb") as file:
        file.write(b"x" * 8192)
        file.truncate(size)
    monkeypatch.setattr(module, "probe_file", no_probe)
    assert rates_of(features).read_bytes_per_s not in {0, module.DEFAULT_PROFILE.read_bytes_per_s}
    assert [path.name for path in features.parent.iterdir()] == [features.name]


def test_a_small_file_is_not_measured(features: Path, spill: Path, home: Path) -> None:
    os.truncate(features, FILE_BYTES - 1)
    system = FaultyOS()
    found = rates_of(features, spill, os_io=system)
    assert found.random_reads_per_s == DEFAULT_PROFILE.random_reads_per_s
    assert found.write_bytes_per_s == DEFAULT_PROFILE.write_bytes_per_s
    assert "open" not in system.history
    assert not home.exists()


def test_a_spill_folder_on_another_device_is_measured_for_itself(features: Path, spill: Path) -> None:
    remember_profile(features.parent, KNOWN)  # really the same device, so a remembered profile is taken
    known = rates_of(features, spill, os_io=TwoDevices())
    assert not known.is_one_device
    assert (known.write_bytes_per_s, known.pack_read_bytes_per_s) == (2e9, 1e9)
    found = rates_of(features, spill, os_io=TwoDevices(), refresh=True)
    assert not found.is_one_device
    assert found.pack_read_bytes_per_s != found.read_bytes_per_s
    assert list(spill.iterdir()) == []


def test_without_o_direct_the_page_cache_is_measured(features: Path, spill: Path) -> None:
    assert rates_of(features, spill, os_io=FaultyOS(refuse_flags=os.O_DIRECT)).read_bytes_per_s > 0
    profile = remembered_profile(features.parent)
    assert profile is not None
    assert not profile.is_direct


def test_without_io_uring_threads_measure(
    features: Path, spill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "io_uring is not allowed")

    monkeypatch.setattr("gloader.ssd_store.cost.device_probe.Uring", refuse)
    assert rates_of(features, spill).random_reads_per_s > 0
    assert remembered_profile(features.parent) is not None


def test_a_spill_folder_that_cannot_be_written_has_the_writes_of_a_modest_ssd(
    features: Path, spill: Path
) -> None:
    found = rates_of(features, spill, os_io=FaultyOS(refuse_flags=os.O_CREAT, refuse_error=errno.EROFS))
    assert found.write_bytes_per_s == DEFAULT_PROFILE.write_bytes_per_s
    assert found.random_reads_per_s != DEFAULT_PROFILE.random_reads_per_s


def test_a_home_that_cannot_be_written_does_not_matter(features: Path, spill: Path, home: Path) -> None:
    home.write_text("a file where a folder should be")
    assert rates_of(features, spill).random_reads_per_s > 0


def test_missing_files_have_the_rates_of_a_modest_ssd(tmp_path: Path) -> None:
    found = rates_of(tmp_path / "missing.npy", tmp_path / "nowhere")
    assert found.random_reads_per_s == DEFAULT_PROFILE.random_reads_per_s


@pytest.mark.parametrize("make", [FaultyOS, TwoDevices])
def test_whichever_call_fails_there_are_rates_and_no_file(
    make: Callable[..., FaultyOS], features: Path, spill: Path
) -> None:
    for n in range(1, 100):
        system = make(fail_at=n, error=errno.EIO)
        found = rates_of(features, spill, os_io=system, refresh=True)
        assert min(found.random_reads_per_s, found.read_bytes_per_s, found.write_bytes_per_s) > 0
        if not system.was_hit:
            break
        if system.history[n - 1] != "unlink":  # then the file that cannot be removed is there
            assert list(spill.iterdir()) == []
        for path in spill.iterdir():
            path.unlink()
    assert n > 5


def test_a_file_with_holes_is_read_where_its_bytes_are(
    features: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hole is read at the speed of memory, and says nothing about the device."""
    start, past = FILE_BYTES + 3 * 4096, 3 * FILE_BYTES - 4096
    with features.open("r+b") as file:
        file.seek(start)
        file.write(np.random.default_rng(1).bytes(past - start))
        file.truncate(4 * FILE_BYTES)
    seen: list[IdArray] = []
    load = device_probe.ReadLoad

    def watched(fd: int, extents: Extents, *how: Any, **named: Any) -> device_probe.ReadLoad:
        seen.append(extents.offset)
        assert (extents.offset >= start).all()
        assert (extents.offset + extents.length <= past).all()
        return load(fd, extents, *how, **named)

    monkeypatch.setattr(device_probe, "ReadLoad", watched)
    assert rates_of(features, span=(start, past)).read_bytes_per_s > 0
    assert len(seen) >= 4
    assert max(int(offset.max()) for offset in seen) > past - FILE_BYTES // 2  # up to the end of what is here
    assert rates_of(features, span=(start, start + FILE_BYTES - 4096), refresh=True) == rates_of(
        features, span=(0, 0), refresh=True
    )  # too little to measure


def test_what_a_new_file_said_is_measured_again_on_a_large_one(
    features: Path, spill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache in front of the device may have held the new file: writes are kept, reads are not."""
    remember_profile(features.parent, replace(KNOWN, read_bytes_per_s=3e9, is_scratch=True))
    monkeypatch.setattr(
        module, "probe_file", lambda *_: replace(KNOWN, write_bytes_per_s=0.0, random_reads_per_s=50_000.0)
    )
    monkeypatch.setattr(module, "probe_writes", no_probe)
    found = rates_of(features, spill)
    assert (found.random_reads_per_s, found.read_bytes_per_s, found.write_bytes_per_s) == (50_000, 1e9, 2e9)
    monkeypatch.setattr(module, "probe_file", no_probe)
    assert rates_of(features, spill) == found


def test_what_a_new_file_said_is_better_than_nothing(features: Path, spill: Path) -> None:
    remember_profile(features.parent, replace(KNOWN, is_scratch=True))
    os.truncate(features, FILE_BYTES - 1)
    assert rates_of(features, spill).random_reads_per_s == 80_000
    features.unlink()
    assert rates_of(features).random_reads_per_s == 80_000


def test_reads_and_writes_at_once_are_measured_where_packs_are_on_the_same_device(
    features: Path, spill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceProfile, "is_doubtful", False)
    monkeypatch.setattr(device_probe.ProbedFile, "mixed_writes", lambda *_, **__: 0.7)
    assert rates_of(features).mixed_writes == 1
    assert rates_of(features, spill).mixed_writes == 0.7
    assert rates_of(features, spill).mixed_writes == 0.7
    profile = remembered_profile(features.parent)
    assert profile is not None
    assert profile.mixed_writes == 0.7
    assert rates_of(features, spill, os_io=TwoDevices()).mixed_writes == 1


def test_rates_go_into_a_header_and_out_of_it(features: Path, spill: Path) -> None:
    remember_profile(features.parent, replace(KNOWN, latency_s=0.0001))
    found = rates_of(features, spill)
    plain = json.loads(json.dumps(asdict(found)))
    assert all(isinstance(value, float | bool) for value in plain.values())
    assert IoRates(**plain) == found
