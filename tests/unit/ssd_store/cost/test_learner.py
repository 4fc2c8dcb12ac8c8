"""A run that learns: what its superbatches say of the disk is what the next loader begins with."""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from forking import in_child

from gloader.ssd_store.cost import device_rates as rates_module
from gloader.ssd_store.cost.device_profile import DeviceProfile
from gloader.ssd_store.cost.device_rates import FoundRates, RateLearner, find_rates, observed, rates_of
from gloader.ssd_store.cost.io_rates import IoRates, Strategy
from gloader.ssd_store.cost.profile import remember_profile, remembered_profile
from gloader.ssd_store.cost.strategy import MissCounts, predict_seconds
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from pathlib import Path

FILE_BYTES = 2**22
PROBED = DeviceProfile(
    random_reads_per_s=80_000.0,
    read_bytes_per_s=3e9,  # of a burst
    write_bytes_per_s=2e9,
    queue_depth=256,
    is_direct=True,
    medium_reads_per_s=60_000.0,
    wide_reads_per_s=24_000.0,
)
# Rows of 512 B in 8 batches: a sweep reads all of a file in reads of 256 KiB.
COUNTS = MissCounts(
    num_batches=8,
    rows=400_000,
    unique_rows=300_000,
    row_bytes=512,
    direct_requests=300_000,
    direct_bytes=300_000 * 4096,
    sweep_requests=2_000,
    sweep_bytes=2_000 * 262_144,
    pack_bytes=400_000 * 512,
)


class Disk:
    """A rehearsed device: it does what ``truth`` says, whatever its probe said."""

    def __init__(self, truth: IoRates) -> None:
        self.truth = truth

    def run(self, learner: RateLearner, strategy: Strategy, counts: MissCounts, times: int = 6) -> None:
        for _ in range(times):
            seconds = predict_seconds(counts, self.truth)[strategy]
            back = counts.pack_bytes / self.truth.pack_read_bytes_per_s if strategy == "packed" else 0.0
            learner.observe(counts, strategy, staged_s=seconds - back, read_s=back)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(rates_module, "SMALLEST_PROBED_BYTES", FILE_BYTES)
    return tmp_path / "home"


@pytest.fixture
def features(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "features.npy"
    path.parent.mkdir()
    path.write_bytes(os.urandom(FILE_BYTES))
    remember_profile(path.parent, PROBED)
    return path


@pytest.fixture
def spill(tmp_path: Path) -> Path:
    (tmp_path / "spill").mkdir()
    return tmp_path / "spill"


def taught(found: FoundRates, disk: Disk, strategy: Strategy, counts: MissCounts = COUNTS) -> None:
    learner = RateLearner(found)
    disk.run(learner, strategy, counts)
    learner.close()


@pytest.mark.parametrize("strategy", ["direct", "staged", "packed"])
def test_the_first_superbatch_of_the_next_run_is_predicted_right(
    strategy: Strategy, features: Path, spill: Path
) -> None:
    begun = find_rates(features, spill)
    slow = replace(
        begun.probed,
        random_reads_per_s=40_000.0,
        medium_reads_per_s=30_000.0,
        wide_reads_per_s=12_000.0,
        read_bytes_per_s=1.2e9,
        write_bytes_per_s=0.8e9,
        pack_read_bytes_per_s=1.2e9,
        dealt_bytes_per_s=0.4e9,
    )
    disk = Disk(slow)
    before, truth = predict_seconds(COUNTS, begun.rates)[strategy], predict_seconds(COUNTS, slow)[strategy]
    assert before < 0.6 * truth
    taught(begun, disk, strategy)
    after = predict_seconds(COUNTS, rates_of(features, spill))[strategy]
    assert after == pytest.approx(truth, rel=0.01)
    for _ in range(3):  # and it does not move on from there
        taught(find_rates(features, spill), disk, strategy)
    assert predict_seconds(COUNTS, rates_of(features, spill))[strategy] == pytest.approx(truth, rel=0.01)


def test_a_probe_of_a_busy_disk_is_corrected_as_well(features: Path) -> None:
    begun = find_rates(features)
    taught(begun, Disk(replace(begun.probed, random_reads_per_s=800_000.0)), "direct")
    assert rates_of(features).random_reads_per_s == pytest.approx(800_000, rel=0.01)


def test_holes_and_queues_follow_what_was_learnt(features: Path) -> None:
    begun = find_rates(features)
    known = remembered_profile(features.parent)
    assert known is not None
    gap, depth = known.row_gap_bytes(512), known.ring_depth
    # Requests became ten times as dear, bytes did not.
    slow = replace(
        begun.probed, random_reads_per_s=8_000.0, medium_reads_per_s=6_000.0, wide_reads_per_s=2_400.0
    )
    taught(begun, Disk(slow), "direct")
    known = remembered_profile(features.parent)
    assert known is not None
    assert known.row_gap_bytes(512) > gap
    assert known.ring_depth < depth


def test_of_two_devices_each_learns_its_own(
    features: Path, spill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = replace(find_rates(features, spill), spill_folder=spill)
    told: dict[str, set[str]] = {}

    def remember(folder: Path, profile: DeviceProfile, **_: object) -> None:
        told[folder.name] = set(profile.learnt.lessons[0].known)

    monkeypatch.setattr("gloader.ssd_store.cost.device_rates.remember_profile", remember)
    taught(begun, Disk(begun.probed), "packed")
    assert told == {"data": {"in_order", "dealt"}, "spill": {"write", "pack_read"}}


def test_a_superbatch_is_told_apart_by_what_it_did() -> None:
    rates = IoRates(
        random_reads_per_s=1e4, read_bytes_per_s=1e9, write_bytes_per_s=1e9, pack_read_bytes_per_s=1e9
    )
    (direct,) = observed(COUNTS, "direct", rates, staged_s=1.0, read_s=2.0)
    assert (set(direct.predicted), direct.measured_s) == ({"small"}, 3.0)
    (staged,) = observed(COUNTS, "staged", replace(rates, dealt_bytes_per_s=1e9), staged_s=1.0, read_s=2.0)
    assert (set(staged.predicted), staged.measured_s) == ({"in_order", "dealt"}, 3.0)
    packing, back = observed(COUNTS, "packed", rates, staged_s=1.0, read_s=2.0)
    assert (packing.measured_s, back.measured_s) == (1.0, 2.0)
    assert set(back.predicted) == {"pack_read"}
    assert sum(packing.predicted.values()) == pytest.approx(
        COUNTS.sweep_bytes / 1e9 + COUNTS.pack_bytes / 1e9
    )


def test_what_is_observed_adds_up_to_what_is_predicted() -> None:
    rates = replace(some_rates(), mixed_writes=1.3, dealt_bytes_per_s=1e9)
    for strategy in ("direct", "staged", "packed"):
        found = observed(COUNTS, strategy, rates, staged_s=1.0, read_s=1.0)
        total = sum(sum(one.predicted.values()) for one in found)
        assert total == pytest.approx(predict_seconds(COUNTS, rates)[strategy])


def some_rates() -> IoRates:
    return IoRates(
        random_reads_per_s=5e4,
        read_bytes_per_s=1.5e9,
        write_bytes_per_s=2e9,
        pack_read_bytes_per_s=1.2e9,
        medium_reads_per_s=4e4,
        wide_reads_per_s=1e4,
    )


def test_a_blink_teaches_nothing() -> None:
    """Of a few reads most of the time is no device's: it would look many times slower than it is."""
    few = replace(COUNTS, direct_requests=900, direct_bytes=900 * 4096)
    assert observed(few, "direct", some_rates(), staged_s=0.0, read_s=0.4) == []
    assert (
        len(observed(replace(few, direct_requests=1100), "direct", some_rates(), staged_s=0.0, read_s=0.4))
        == 1
    )
    nothing = replace(COUNTS, direct_requests=0, direct_bytes=0, rows=0)
    assert observed(nothing, "direct", some_rates(), staged_s=1.0, read_s=1.0) == []


def test_nothing_is_written_for_a_run_that_read_nothing(features: Path, home: Path) -> None:
    (file,) = (home / "devices").iterdir()
    before = file.read_bytes(), file.stat().st_mtime_ns
    RateLearner(find_rates(features)).close()
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before


def test_of_rates_that_were_assumed_nothing_is_learnt(tmp_path: Path, home: Path) -> None:
    found = find_rates(tmp_path / "missing.npy")
    assert found.is_assumed
    taught(found, Disk(found.probed), "direct")
    assert not home.exists()


def test_closing_twice_learns_once(features: Path) -> None:
    learner = RateLearner(find_rates(features))
    Disk(some_rates()).run(learner, "direct", COUNTS)
    learner.close()
    learner.close()
    known = remembered_profile(features.parent)
    assert known is not None
    assert len(known.learnt.lessons) == 1


def test_a_forked_child_leaves_the_lesson_to_its_parent(features: Path, home: Path) -> None:
    learner = RateLearner(find_rates(features))
    Disk(some_rates()).run(learner, "direct", COUNTS)
    (file,) = (home / "devices").iterdir()
    before = file.read_bytes()
    assert in_child(learner.close) == 0
    assert file.read_bytes() == before
    learner.close()
    assert file.read_bytes() != before


def test_a_probe_that_was_made_meanwhile_is_learnt_of(features: Path) -> None:
    """Ratios are of the probe that the run began with; the file has another one by now."""
    begun = find_rates(features)
    disk = Disk(replace(begun.probed, read_bytes_per_s=1.0e9, dealt_bytes_per_s=0.5e9))
    learner = RateLearner(begun)
    disk.run(learner, "staged", COUNTS)
    remember_profile(features.parent, replace(PROBED, read_bytes_per_s=1.5e9))
    learner.close()
    truth = predict_seconds(COUNTS, disk.truth)["staged"]
    assert predict_seconds(COUNTS, begun.rates)["staged"] < 0.6 * truth
    assert predict_seconds(COUNTS, rates_of(features))["staged"] == pytest.approx(truth, rel=0.05)


def test_a_profile_that_was_removed_meanwhile_stays_away(features: Path, home: Path) -> None:
    learner = RateLearner(find_rates(features))
    Disk(some_rates()).run(learner, "direct", COUNTS)
    (file,) = (home / "devices").iterdir()
    file.unlink()
    learner.close()
    assert list((home / "devices").iterdir()) == []


def test_a_damaged_profile_is_neither_mended_nor_an_error(features: Path, home: Path) -> None:
    learner = RateLearner(find_rates(features))
    Disk(some_rates()).run(learner, "direct", COUNTS)
    (file,) = (home / "devices").iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    learner.close()
    assert remembered_profile(features.parent) is None


@pytest.mark.reliability("J10")
def test_a_home_that_cannot_be_written_does_not_matter(features: Path, home: Path) -> None:
    begun = find_rates(features)
    (file,) = (home / "devices").iterdir()
    before = file.read_bytes()
    for n in range(1, 50):
        system = FaultyOS(fail_at=n, error=errno.EROFS, repeat=1000)
        learner = RateLearner(begun, os_io=system)
        Disk(begun.probed).run(learner, "direct", COUNTS)
        learner.close()
        if not system.was_hit:
            break
        if file.read_bytes() != before:
            break  # what failed came after the new profile was there
    assert n > 2
    assert [path.name for path in (home / "devices").iterdir()] == [file.name]
    assert remembered_profile(features.parent) is not None


def test_two_runs_that_end_together_leave_a_profile_of_one_or_both(features: Path, home: Path) -> None:
    begun = find_rates(features)
    learners = [RateLearner(begun, now=lambda k=k: 1e9 + k) for k in range(8)]  # type: ignore[misc]
    for learner in learners:
        Disk(begun.probed).run(learner, "direct", COUNTS)
    threads = [
        threading.Thread(target=learner.close, name=f"closes-{k}") for k, learner in enumerate(learners)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (file,) = (home / "devices").iterdir()
    lessons = json.loads(file.read_text())["learnt"]
    assert 1 <= len(lessons) <= 8
    assert len({lesson["when"] for lesson in lessons}) == len(lessons)
