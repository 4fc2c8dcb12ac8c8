"""Rates for the devices that hold the features and the spill folder: found for the cost model, corrected in a run.

Before a run, `find_rates` gets a device's profile: remembered from an earlier run, or measured now by a probe. The
profile also has lessons, which are the ratios of measured to predicted times in earlier runs. At the end of a run
`RateLearner` adds the run's lesson to the remembered profile. A superbatch is a number of batches that are planned
together; a sweep reads a file once, in order; a pack is a batch's rows in a file of the spill folder. `DeviceClock`
measures the time that a superbatch uses a device: it divides the device's time among simultaneous users.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from gloader.core.thread_times import core_wait_s
from gloader.errors import StoreOpenError
from gloader.ssd_store.cost.device_probe import probe_file, probe_folder, probe_writes
from gloader.ssd_store.cost.device_profile import (
    ACCESSES,
    OF_READS,
    OF_SPILL,
    Access,
    DeviceProfile,
    LearntRates,
    Lesson,
    Observation,
    lesson_of,
    rebased,
)
from gloader.ssd_store.cost.io_rates import IoRates
from gloader.ssd_store.cost.profile import remember_profile, remembered_profile
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath
from gloader.ssd_store.read.lane import DEFAULT_DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from gloader.ssd_store.cost.io_rates import Strategy
    from gloader.ssd_store.cost.strategy import MissCounts


_LOG = logging.getLogger(__name__)

SMALLEST_PROBED_BYTES: Final = 64 * 2**20  # reading a smaller file is too short to measure its device
_BLOCK_BYTES: Final = 512  # unit of st_blocks on every file system
_WHOLE: Final = 0.9  # share of a file's bytes on disk below which the file has holes, or is compressed
# Bytes per second at which a sweep copies rows to its batches, before any lesson. 0.6 to 1.6 GB/s were measured.
_DEALT_BYTES_PER_S: Final = 1e9

# A modest SSD, for files too small to measure and devices that cannot be measured.
DEFAULT_PROFILE: Final = DeviceProfile(
    random_reads_per_s=50_000.0,
    read_bytes_per_s=0.5e9,
    write_bytes_per_s=0.4e9,
    queue_depth=DEFAULT_DEPTH,
    is_direct=True,
    medium_reads_per_s=30_000.0,
    wide_reads_per_s=7_500.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRates:
    """A loader's device rates, as probed, and as corrected by all lessons."""

    probed: IoRates  # as probed, without lessons
    rates: IoRates  # corrected by all lessons
    features_folder: Path
    reads: DeviceProfile  # profile of the device that holds the features
    spill_folder: Path | None  # None without packs, or if they are on the features' device
    spill: DeviceProfile  # profile of the device that holds the packs

    @property
    def is_assumed(self) -> bool:
        """True if the rates are assumed, so that no lesson applies to them."""
        return self.probed.is_assumed


def rates_of(
    features: StrPath,
    spill_folder: StrPath | None = None,
    *,
    span: tuple[int, int] | None = None,
    os_io: OsIO = REAL_OS,
    refresh: bool = False,
) -> IoRates:
    """Return the corrected rates of `find_rates`, for callers that learn no rates; parameters as there."""
    return find_rates(features, spill_folder, span=span, os_io=os_io, refresh=refresh).rates


def find_rates(
    features: StrPath,
    spill_folder: StrPath | None = None,
    *,
    span: tuple[int, int] | None = None,
    os_io: OsIO = REAL_OS,
    refresh: bool = False,
) -> FoundRates:
    """Find the rates for reading ``features``, and for packs in ``spill_folder``.

    The rates come from the remembered profiles, corrected by the last runs' lessons. A device is probed if it has no
    profile, and its profile is remembered in the user's cache folder. A device is probed again if its rates are
    impossible for an idle SSD, and no second measurement has confirmed them. It is also probed again if its rates were
    measured on a small new file, and there is a large file now.

    Probing the reads takes 1.3 s, and up to 3 s until the rate is steady. The probe reads ``features`` itself. Only if
    the file has holes, as in a mirror, it writes and reads an unnamed file next to it. Probing the writes takes 0.6 s,
    on an unnamed file in the spill folder. If a probe fails, or the file is too small for a probe, the rates are a
    modest SSD's.

    Parameters
    ----------
    features : path
        The file with the feature rows.
    spill_folder : path, optional
        An existing folder. None means that nothing will be spilled.
    span : (int, int), optional
        The first byte to read in the file, a multiple of 4096, and the last plus one; defaults to the entire file. A
        hole in the file says nothing about its device.
    os_io : OsIO
        The system calls.
    refresh : bool
        True probes even if a profile is remembered.
    """
    path = Path(features)
    reads = _read_profile(path, span, os_io, refresh=refresh)
    spill, is_one_device = reads, True
    # The model compares reads with writes, so both are measured or both assumed.
    if spill_folder is not None and reads is not DEFAULT_PROFILE:
        try:
            spill, is_one_device = _spill_profile(
                path, Path(spill_folder), reads, span, os_io, refresh=refresh
            )
        except (OSError, StoreOpenError) as error:
            _LOG.info(
                "writes to %s cannot be measured, taking those of a modest SSD: %s", spill_folder, error
            )
    probed = _io_rates(reads, spill, is_one_device=is_one_device)
    return FoundRates(
        probed=probed,
        rates=spill.learnt.only(OF_SPILL).correct(reads.learnt.only(OF_READS).correct(probed)),
        features_folder=path.parent,
        reads=reads,
        spill_folder=None if spill_folder is None or is_one_device else Path(spill_folder),
        spill=spill,
    )


def _io_rates(reads: DeviceProfile, spill: DeviceProfile, *, is_one_device: bool) -> IoRates:
    """Return the rates from the features' device profile and the packs' device profile. Pure."""
    return IoRates(
        random_reads_per_s=reads.random_reads_per_s,
        read_bytes_per_s=reads.read_bytes_per_s,
        write_bytes_per_s=spill.write_bytes_per_s or DEFAULT_PROFILE.write_bytes_per_s,
        pack_read_bytes_per_s=spill.read_bytes_per_s,
        medium_reads_per_s=reads.medium_reads_per_s,
        wide_reads_per_s=reads.wide_reads_per_s,
        is_one_device=is_one_device,
        latency_s=reads.latency_s,
        dealt_bytes_per_s=_DEALT_BYTES_PER_S,
        mixed_writes=spill.mixed_writes if is_one_device else 1.0,
        mixed_reads=reads.mixed_reads,
        is_assumed=reads is DEFAULT_PROFILE,
    )


def _read_profile(
    features: Path, span: tuple[int, int] | None, os_io: OsIO, *, refresh: bool
) -> DeviceProfile:
    """Return the profile for the device under ``features``, or `DEFAULT_PROFILE` if it cannot be measured."""
    known = remembered_profile(features.parent)
    usable = known if known is not None and known.has_reads and not known.is_doubtful else None
    if usable is not None and not usable.is_scratch and not refresh:
        return usable
    try:
        status = os_io.stat(features)
        start, past = (0, status.st_size) if span is None else span
        if past - start < SMALLEST_PROBED_BYTES:
            return usable or DEFAULT_PROFILE
        if span is None and _is_sparse(status):
            if usable is not None and not refresh:
                return usable
            measured = probe_folder(features.parent, os_io)
        else:
            measured = probe_file(features, start, past - start, os_io)
    except OSError as error:
        _LOG.info("reads of %s cannot be measured: %s", features, error)
        return usable or DEFAULT_PROFILE
    profile = _measured_again(known, measured, keeps_writes=not refresh)
    remember_profile(features.parent, profile)
    return profile


def _spill_profile(
    features: Path,
    folder: Path,
    reads: DeviceProfile,
    span: tuple[int, int] | None,
    os_io: OsIO,
    *,
    refresh: bool,
) -> tuple[DeviceProfile, bool]:
    """Return the profile for the device under ``folder``, and True if ``features`` with profile ``reads`` is on it."""
    if os_io.stat(folder).st_dev == os_io.stat(features).st_dev:
        # A profile without write rates comes from feature reads only, so the writes are probed now.
        if reads.write_bytes_per_s == 0:
            rate, mixed = probe_writes(folder, _swept(features, span, os_io), os_io)
            reads = replace(reads, write_bytes_per_s=rate, mixed_writes=mixed)
            remember_profile(folder, reads)
        return reads, True
    known = remembered_profile(folder)
    if refresh or known is None or known.write_bytes_per_s == 0 or known.is_doubtful:
        known = _measured_again(known, probe_folder(folder, os_io), keeps_writes=False)
        remember_profile(folder, known)
    return known, False


def _is_sparse(status: os.stat_result) -> bool:
    """Return True if the file has holes, as in a mirror. Holes are read without the device. Pure."""
    bytes_on_disk = _BLOCK_BYTES * status.st_blocks
    return 0 < bytes_on_disk < _WHOLE * status.st_size  # some network file systems report 0 blocks


def _swept(features: Path, span: tuple[int, int] | None, os_io: OsIO) -> tuple[Path, tuple[int, int]] | None:
    """Return a range in ``features`` to read in parallel to writes, or None if it is too small or has holes."""
    status = os_io.stat(features)
    start, past = (0, status.st_size) if span is None else span  # ``past`` is the last byte plus one
    if past - start < SMALLEST_PROBED_BYTES or (span is None and _is_sparse(status)):
        return None
    return features, (start, past)


def _measured_again(
    known: DeviceProfile | None, measured: DeviceProfile, *, keeps_writes: bool
) -> DeviceProfile:
    """Return the profile ``measured`` with the lessons of the earlier profile ``known``, and perhaps its write rates.

    Pure.

    Parameters
    ----------
    known : the remembered profile; None without one
    measured : the new profile
    keeps_writes : True takes the remembered write rates if no writes were measured and ``known`` is not doubtful
    """
    if known is None:
        return measured
    # Impossible rates may come from a busy SSD, and then its write rates are wrong too.
    if keeps_writes and measured.write_bytes_per_s == 0 and not known.is_doubtful:
        measured = replace(
            measured, write_bytes_per_s=known.write_bytes_per_s, mixed_writes=known.mixed_writes
        )
    is_alike = not known.disagrees_with(
        random_reads_per_s=measured.random_reads_per_s, read_bytes_per_s=measured.read_bytes_per_s
    )
    return replace(known.measured_again(measured), is_confirmed=is_alike)


_LEAST_S: Final = 0.02  # shortest predicted time to observe; shorter reads mostly measure their start and end
_MOST_OBSERVED: Final = 4096  # observations in a run; a longer run drops its oldest superbatches


class RateLearner:
    """Observes a run's superbatches, and adds their lesson to the remembered profiles. Thread-safe.

    `close` reads the remembered profile again and adds the lesson. If two processes close at the same time, one lesson
    may be lost, but the profile stays valid. A forked child of the creating process adds nothing.

    Parameters
    ----------
    found : the rates at the run's start
    os_io : the system calls
    now : returns seconds since 1970
    """

    def __init__(
        self, found: FoundRates, *, os_io: OsIO = REAL_OS, now: Callable[[], float] = time.time
    ) -> None:
        self._found = found
        self._os_io = os_io
        self._now = now
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards the observations: several threads may read superbatches
        self._observations: list[Observation] = []

    @property
    def observations(self) -> tuple[Observation, ...]:
        """The observations so far."""
        with self._lock:
            return tuple(self._observations)

    def observe(self, counts: MissCounts, strategy: Strategy, *, staged_s: float, read_s: float) -> None:
        """Record a superbatch that was read.

        Parameters
        ----------
        counts : counts of the superbatch's missing rows
        strategy : the strategy that read the rows
        staged_s, read_s : seconds of disk use before the first batch, and while the batches were read
        """
        observations = observed(counts, strategy, self._found.probed, staged_s=staged_s, read_s=read_s)
        with self._lock:
            self._observations += observations
            del self._observations[:-_MOST_OBSERVED]

    def close(self) -> None:
        """Remember the lesson. Idempotent. A failure is only logged."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            observations, self._observations = self._observations, []
        if not observations or self._found.is_assumed:
            return
        lesson, found = lesson_of(observations, when=self._now()), self._found
        if found.spill_folder is None:
            self._remember(found.features_folder, found.reads, lesson, ACCESSES)
            return
        self._remember(found.features_folder, found.reads, lesson, OF_READS)
        self._remember(found.spill_folder, found.spill, lesson, OF_SPILL)

    def _remember(
        self, folder: Path, first_profile: DeviceProfile, lesson: Lesson, accesses: Collection[Access]
    ) -> None:
        """Add the lesson's part about ``accesses`` to the remembered profile for the folder's device.

        ``first_profile`` is the device's profile at the run's start, to which the lesson's ratios refer.
        """
        known = remembered_profile(folder)
        device_lesson = LearntRates(lessons=(lesson,)).only(accesses).lessons[0]
        # A device that could not be measured has no profile. The run may have no lesson about this device.
        if known is None or not device_lesson.known:
            return
        # Another process may have measured the device again since this run began.
        device_lesson = rebased(device_lesson, first_profile.faster_in(known))
        remember_profile(folder, known.taught(device_lesson), os_io=self._os_io)


def observed(
    counts: MissCounts, strategy: Strategy, rates: IoRates, *, staged_s: float, read_s: float
) -> Sequence[Observation]:
    """Return a superbatch's observations: predicted seconds for each kind of access, and the measured seconds. Pure.

    Parameters
    ----------
    counts : counts of the superbatch's missing rows
    strategy : the strategy that read the rows
    rates : the probe's rates
    staged_s, read_s : seconds of disk use before the first batch, and while the batches were read
    """
    if strategy == "direct":
        pairs = [(_direct(counts, rates), staged_s + read_s)]
    elif strategy == "staged":
        dealt = rates.dealing_seconds(counts.unique_rows * counts.row_bytes)
        pairs = [({**_swept_observation(counts, rates), "dealt": dealt}, staged_s + read_s)]
    else:
        back: dict[Access, float] = {"pack_read": counts.pack_bytes / rates.pack_read_bytes_per_s}
        pairs = [(_packing(counts, rates), staged_s), (back, read_s)]
    return [
        Observation(predicted=predicted, measured_s=seconds)
        for predicted, seconds in pairs
        if sum(predicted.values()) > _LEAST_S
    ]


def _direct(counts: MissCounts, rates: IoRates) -> dict[Access, float]:
    """Return the predicted seconds for reads batch by batch, by kind of access."""
    seconds = rates.read_seconds(counts.direct_requests, counts.direct_bytes, calls=counts.num_batches)
    return _by_size(rates, counts.direct_requests, counts.direct_bytes, seconds)


def _swept_observation(counts: MissCounts, rates: IoRates) -> dict[Access, float]:
    """Return the predicted seconds for the reads of a sweep, by kind of access."""
    seconds = rates.read_seconds(counts.sweep_requests, counts.sweep_bytes)
    return _by_size(rates, counts.sweep_requests, counts.sweep_bytes, seconds)


def _packing(counts: MissCounts, rates: IoRates) -> dict[Access, float]:
    """Return the predicted seconds for a sweep that writes packs, by kind of access."""
    read, write = _swept_observation(counts, rates), counts.pack_bytes / rates.write_bytes_per_s
    read_s = sum(read.values())
    separate: dict[Access, float] = {**read, "write": write}  # seconds of each load run separately
    if not rates.is_one_device:  # the faster load has no effect on the time
        separate = read if read_s > write else {"write": write}
    scale = rates.packing_seconds(read_s, write) / max(sum(separate.values()), 1e-300)
    parts = {access: seconds * scale for access, seconds in separate.items()}
    return {**parts, "dealt": rates.dealing_seconds(counts.pack_bytes)}


def _by_size(rates: IoRates, requests: int, num_bytes: int, seconds: float) -> dict[Access, float]:
    """Divide the ``seconds`` for reads of equal size among the rates that determine them."""
    divided: dict[Access, float] = {}
    for access, share in rates.times.shares(num_bytes / max(requests, 1)).items():
        divided[access] = share * seconds
    return divided


# Share of a thread's wait for a core in which the device is idle. At first the device still has queued requests.
# In 186 superbatches on two busy cores, reads took longer than with idle cores by 0.7 to 0.8 of the waits.
_LOST: Final = 0.75


class DeviceUse:
    """One use of a device, with its seconds: a fair share of the time shared with other users."""

    def __init__(self) -> None:
        self.seconds = 0.0


class DeviceClock:
    """Divides a device's time among its users: each of n simultaneous users gets an n-th. Thread-safe.

    The shares add up to the time in which any user used the device. Times in which a user had no core to issue requests
    are subtracted: a wait for a core must not make the device look slower. The times of a sweep and of parallel reads
    are then comparable with the cost model's times for each load run separately.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        self._last = 0.0  # clock time at which the number of users last changed
        self._share = 0.0  # running sum of the seconds that each user gets

    @contextmanager
    def using(self) -> Iterator[DeviceUse]:
        """Count the block as a use; its seconds are complete at the block's end."""
        use = DeviceUse()
        waited, (began, share) = core_wait_s(), self._advance(1)
        try:
            yield use
        finally:
            ended, share_then = self._advance(-1)
            waited = core_wait_s() - waited
            use.seconds = (share_then - share) * _working(waited, ended - began)

    def _advance(self, change: int) -> tuple[float, float]:
        """Add the time since the last change of users; return the current time and the share so far."""
        with self._lock:
            # All users' shares grow at the same pace, so one running sum serves all: a use is a difference of the sum.
            # The clock is read inside the lock. Otherwise time could seem to run backwards for one of two threads.
            now = perf_counter()
            if self._num_users > 0:
                self._share += (now - self._last) / self._num_users
            self._last = now
            self._num_users += change
            return now, self._share


def _working(waited: float, seconds: float) -> float:
    """Return the share of a use's ``seconds`` that remains after waits for a core. Pure."""
    return 1 - _LOST * min(max(waited / seconds, 0.0), 1.0) if seconds > 0 else 1.0
