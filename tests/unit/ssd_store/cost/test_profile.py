"""The device profile: measured, remembered, forgotten when it is wrong."""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.errors import StoreOpenError
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.cost import device_probe
from gloader.ssd_store.cost import profile as module
from gloader.ssd_store.cost.device_profile import DeviceProfile, Known, Lesson
from gloader.ssd_store.cost.profile import (
    io_capabilities,
    probe_device,
    refresh_profile,
    remember_profile,
    remembered_profile,
)
from gloader.ssd_store.read import lane
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = DeviceProfile(
    random_reads_per_s=80_000.0,
    read_bytes_per_s=1e9,
    write_bytes_per_s=2e9,
    queue_depth=128,
    is_direct=True,
    medium_reads_per_s=50_000.0,
    wide_reads_per_s=14_000.0,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(device_probe, "_FILE_BYTES", 2**22)
    for phase in ("PHASE_S", "_MIXED_S"):
        monkeypatch.setattr(device_probe, phase, 0.005)
    return tmp_path / "home"


def test_a_sweep_reads_holes_that_pass_in_the_time_of_a_request() -> None:
    assert KNOWN.sweep_gap_bytes == 8192  # 12,500 bytes less the page itself, in whole pages
    slow_seeks = DeviceProfile(
        random_reads_per_s=100.0, read_bytes_per_s=1e8, write_bytes_per_s=1e8, queue_depth=1, is_direct=True
    )
    assert slow_seeks.sweep_gap_bytes == slow_seeks.row_gap_bytes(6528) == 65536


@pytest.mark.parametrize(("observed", "expected"), [(80_000, False), (55_000, False), (119_000, False)])
def test_a_third_more_or_less_is_still_agreement(observed: float, expected: bool) -> None:
    assert KNOWN.disagrees_with(random_reads_per_s=observed) is expected


@pytest.mark.parametrize("observed", [1.0, 53_000.0, 121_000.0])
def test_more_than_a_third_is_disagreement(observed: float) -> None:
    assert KNOWN.disagrees_with(random_reads_per_s=observed)


@pytest.mark.parametrize(("sequential", "expected"), [(0.7e9, False), (0.6e9, True), (1.6e9, True)])
def test_sequential_reads_count_as_well(sequential: float, expected: bool) -> None:
    assert KNOWN.disagrees_with(random_reads_per_s=80_000.0, read_bytes_per_s=sequential) is expected


@pytest.mark.parametrize("missing", ["write_bytes_per_s", "medium_reads_per_s", "wide_reads_per_s"])
def test_a_fresh_measurement_replaces_a_profile_that_lacks_a_rate(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember_profile(tmp_path, replace(KNOWN, **{missing: 0.0}))  # type: ignore[arg-type]
    monkeypatch.setattr(module, "probe_device", lambda *_, **__: KNOWN)
    refresh_profile(tmp_path)
    assert remembered_profile(tmp_path) == KNOWN


@pytest.mark.parametrize(
    ("found", "is_replaced"),
    [
        ({"random_reads_per_s": 119_000.0}, False),
        ({"random_reads_per_s": 50_000.0}, True),
        ({"read_bytes_per_s": 2e9}, True),
    ],
)
def test_a_fresh_measurement_replaces_a_profile_that_is_off_by_a_third(
    found: dict[str, float], is_replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = replace(KNOWN, **found)  # type: ignore[arg-type]
    for result in (KNOWN, measured):
        monkeypatch.setattr(module, "probe_device", lambda *_, result=result, **__: result)
        assert refresh_profile(tmp_path) == result
    assert remembered_profile(tmp_path) == (measured if is_replaced else KNOWN)


def test_a_store_is_read_by_the_profile_of_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, out = np.arange(0, 3200, 32), np.empty((100, 128), np.float32)  # a page in every four
    FeatureStore.create(tmp_path / "s", np.zeros((3200, 128), np.float32)).close()
    with FeatureStore.open(tmp_path / "s") as store:
        assert store.read_into(rows, out).requests == 100
    monkeypatch.setattr(module, "probe_device", lambda *_, **__: KNOWN)
    refresh_profile(tmp_path)
    with FeatureStore.open(tmp_path / "s") as store:  # holes of three pages cost less than a request now
        assert store.read_into(rows, out).requests < 10


def test_probing_measures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    found = probe_device(folder)
    assert min(found.random_reads_per_s, found.read_bytes_per_s, found.write_bytes_per_s) > 0
    assert found.is_complete
    assert found.queue_depth in device_probe.DEPTHS
    assert 0 < found.latency_s < 1
    assert min(found.mixed_reads, found.mixed_writes) > 0
    assert found.is_scratch
    assert list(folder.iterdir()) == []


RATES = {"random_reads_per_s": 1e4, "read_bytes_per_s": 1e9, "write_bytes_per_s": 1e9, "is_direct": True}


@pytest.mark.reliability("J10")
@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"version": 0}', "NaN", "\x00", '{"version": 3, "random_reads_per_s": -1}'),
        "[" * 4000,
        json.dumps({"version": 3, **RATES, "queue_depth": 1e308}).replace("1e+308", "1e999"),
        json.dumps({"version": 3, **RATES, "queue_depth": 64, "random_reads_per_s": 10**400}),
        json.dumps({"version": 3, **RATES, "queue_depth": 64, "random_reads_per_s": 5e-324}),
    ],
)
def test_an_unusable_memory_is_forgotten(text: str, tmp_path: Path, home: Path) -> None:
    refresh_profile(tmp_path)
    (file,) = (home / "devices").iterdir()
    file.write_text(text)
    assert remembered_profile(tmp_path) is None
    refresh_profile(tmp_path)
    assert remembered_profile(tmp_path) is not None


def test_a_home_that_cannot_be_written_does_not_matter(tmp_path: Path, home: Path) -> None:
    home.write_text("a file where a folder should be")
    assert refresh_profile(tmp_path).random_reads_per_s > 0


def test_a_file_system_without_o_direct_is_measured_and_named(tmp_path: Path) -> None:
    system = FaultyOS(refuse_flags=os.O_DIRECT)
    assert not probe_device(tmp_path, os_io=system).is_direct
    found = io_capabilities(tmp_path, os_io=system)
    assert (found.has_direct, found.direct_reason) == (
        False,
        f"the file system of {tmp_path} refuses O_DIRECT",
    )
    assert [p.name for p in tmp_path.iterdir()] == []


@pytest.mark.reliability("J17")
@pytest.mark.parametrize("refused", [0, os.O_DIRECT])
def test_a_link_at_the_name_of_the_temporary_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    monkeypatch.setattr(device_probe.secrets, "token_hex", lambda _: "guessed")
    (tmp_path / f".gloader-probe-{os.getpid()}-guessed").symlink_to(theirs)
    with pytest.raises(StoreOpenError, match="cannot make a temporary file"):
        io_capabilities(tmp_path, os_io=FaultyOS(refuse_flags=refused))
    assert theirs.read_text() == "precious"


def test_what_this_system_can_do(tmp_path: Path) -> None:
    found = io_capabilities(tmp_path)
    assert found.has_direct == (not found.direct_reason)
    assert found.has_uring == (not found.uring_reason)


def test_each_failing_call_is_a_typed_error_and_leaves_no_file(tmp_path: Path) -> None:
    for n in range(1, 100):
        system = FaultyOS(fail_at=n, error=errno.ENOSPC)
        try:
            probe_device(tmp_path, os_io=system)
        except StoreOpenError as error:
            assert str(tmp_path) in str(error)  # noqa: PT017 - either outcome is right
        except OSError:
            assert system.history[n - 1] in {"close", "unlink"}
        if not system.was_hit:
            break
    assert n > 3
    with pytest.raises(StoreOpenError, match="cannot make a temporary file to measure the device"):
        probe_device(tmp_path / "missing")


def test_what_was_learnt_survives_another_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe of a burst is replaced by one without: what runs have seen of the disk is as true as before."""
    known = Known(ratio=2.0, share=1.0, times=8.0)
    taught = replace(KNOWN, read_bytes_per_s=3e9).taught(Lesson(when=time.time(), known={"in_order": known}))
    remember_profile(tmp_path, taught)
    monkeypatch.setattr(module, "probe_device", lambda *_, **__: KNOWN)
    assert refresh_profile(tmp_path).read_bytes_per_s == 1e9
    found = remembered_profile(tmp_path)
    assert found is not None
    assert found.read_bytes_per_s == 1e9
    assert taught.times.bytes_per_s == 1.5e9
    assert found.times.bytes_per_s == pytest.approx(1.5e9, rel=1e-3)


def test_a_profile_of_an_older_version_is_measured_again(tmp_path: Path, home: Path) -> None:
    remember_profile(tmp_path, KNOWN)
    (file,) = (home / "devices").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": 2}))
    assert remembered_profile(tmp_path) is None
    assert refresh_profile(tmp_path).measured_at > 0
    assert remembered_profile(tmp_path) is not None


def test_all_of_a_profile_is_remembered(tmp_path: Path) -> None:
    known = Known(ratio=2.0, share=0.5, times=8.0)
    profile = replace(
        KNOWN,
        latency_s=0.0001,
        mixed_writes=1.2,
        mixed_reads=0.8,
        is_confirmed=True,
        is_scratch=True,
        measured_at=1e9,
    ).taught(Lesson(when=float(round(time.time())), known={"small": known, "pack_read": known}))
    remember_profile(tmp_path, profile)
    assert remembered_profile(tmp_path) == profile


def test_the_lessons_of_a_month_ago_are_not_remembered(tmp_path: Path) -> None:
    known = Known(ratio=2.0, share=1.0, times=8.0)
    for days in (31, 29):
        when = time.time() - days * 86_400
        remember_profile(tmp_path, KNOWN.taught(Lesson(when=when, known={"small": known})))
        found = remembered_profile(tmp_path)
        assert found is not None
        assert len(found.learnt.lessons) == (days < 30)


@pytest.mark.parametrize(
    "wrong",
    [
        {"latency_s": -1.0},
        {"latency_s": "soon"},
        {"mixed_writes": 0.0},
        {"mixed_reads": 1e9},
        {"measured_at": -5.0},
        {"learnt": [{"when": 1.0, "small": [100.0, 1.0, 1.0]}]},
        {"learnt": 3},
    ],
)
def test_a_profile_with_a_number_that_cannot_be_is_forgotten(
    wrong: dict[str, object], tmp_path: Path, home: Path
) -> None:
    remember_profile(tmp_path, KNOWN)
    (file,) = (home / "devices").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), **wrong}))
    assert remembered_profile(tmp_path) is None


@pytest.mark.parametrize(
    ("rate", "latency_s", "probed", "depth"),
    [
        (3_000.0, 0.001, 64, 64),  # a volume of a cloud: more would only make others wait
        (60_000.0, 0.0001, 64, 256),
        (60_000.0, 0.0001, 1024, 1024),  # it was measured to need them
        (500_000.0, 0.0001, 256, 1024),
    ],
)
def test_a_queue_holds_what_is_read_while_a_thread_has_no_core(
    rate: float, latency_s: float, probed: int, depth: int
) -> None:
    profile = replace(KNOWN, random_reads_per_s=rate, latency_s=latency_s, queue_depth=probed)
    assert profile.ring_depth == depth


def test_a_store_has_as_many_reads_in_flight_as_its_device_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.ring_depth(tmp_path) == 256
    remember_profile(tmp_path, replace(KNOWN, queue_depth=64, random_reads_per_s=3_000.0))
    assert module.ring_depth(tmp_path) == 64
    depths: list[int] = []
    ring = lane.Uring

    def watched(depth: int, *how: Any) -> lane.Uring:
        depths.append(depth)
        return ring(depth, *how)

    FeatureStore.create(tmp_path / "s", np.zeros((8, 4), np.float32)).close()
    monkeypatch.setattr(lane, "Uring", watched)
    with FeatureStore.open(tmp_path / "s", io="uring"), FeatureStore.open(tmp_path / "s", queue_depth=7):
        pass
    assert depths == [64, 7]


def test_a_burst_that_is_over_at_the_end_of_a_probe_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, in_order = iter([50_000.0, 14_000.0, 40_000.0]), iter([3e9, 1.2e9])
    monkeypatch.setattr(device_probe.ProbedFile, "best_depth", lambda *_, **__: (80_000.0, 256))
    monkeypatch.setattr(device_probe.ProbedFile, "random_reads", lambda *_, **__: next(small))
    monkeypatch.setattr(device_probe.ProbedFile, "sequential_reads", lambda *_, **__: next(in_order))
    found = probe_device(tmp_path)
    assert (found.random_reads_per_s, found.medium_reads_per_s, found.wide_reads_per_s) == (
        40_000,
        25_000,
        7_000,
    )
    assert found.read_bytes_per_s == 1.2e9


def test_a_rate_that_has_fallen_since_is_the_lower_one() -> None:
    slower = KNOWN.slowed(random_reads_per_s=40_000.0, read_bytes_per_s=0.9e9)
    assert (slower.random_reads_per_s, slower.medium_reads_per_s, slower.wide_reads_per_s) == (
        40_000,
        25_000,
        7_000,
    )
    assert slower.read_bytes_per_s == 1e9  # a tenth less is noise
    assert KNOWN.slowed(random_reads_per_s=90_000.0, read_bytes_per_s=0.5e9).read_bytes_per_s == 0.5e9


@pytest.mark.reliability("B12")
def test_a_pipe_in_the_place_of_a_profile_is_not_waited_for(tmp_path: Path, home: Path) -> None:
    path = module._profile_path(tmp_path)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert remembered_profile(tmp_path) is None
