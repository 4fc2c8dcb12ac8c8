"""Rates of the devices under the features and the spill folder: found for the cost model, then learnt in a run.

`RateLearner` learns from the superbatches that a run reads. `DeviceClock` shares the device's time among simultaneous
users.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
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

SMALLEST_PROBED_BYTES: Final = (
    64 * 2**20
)  # a smaller file is read in a blink, and says nothing about its device
_BLOCK_BYTES: Final = 512  # in which a status counts, whatever the file system's own are
_WHOLE: Final = 0.9  # of a file's bytes: with fewer it has holes, or is compressed
# Until runs have learnt it: sweeps copied rows at 0.6 to 1.6 GB/s while the disk had too little to do.
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
    """The rates of the devices that a loader uses: by their probes, and by all that is known."""

    probed: IoRates
    rates: IoRates
    features_folder: Path
    reads: DeviceProfile
    spill_folder: Path | None  # of another device; None: packs are on that of the features, or there are none
    spill: DeviceProfile

    @property
    def is_assumed(self) -> bool:
        """Whether nothing was measured, so that nothing can be learnt of it either."""
        return self.probed.is_assumed


def rates_of(
    features: StrPath,
    spill_folder: StrPath | None = None,
    *,
    span: tuple[int, int] | None = None,
    os_io: OsIO = REAL_OS,
    refresh: bool = False,
) -> IoRates:
    """Return the rates at which ``features`` is read, and packs are written and read in ``spill_folder``.

    As `find_rates`, for those who do not learn from what they read.
    """
    return find_rates(features, spill_folder, span=span, os_io=os_io, refresh=refresh).rates


def find_rates(
    features: StrPath,
    spill_folder: StrPath | None = None,
    *,
    span: tuple[int, int] | None = None,
    os_io: OsIO = REAL_OS,
    refresh: bool = False,
) -> FoundRates:
    """Return the rates at which ``features`` is read, and packs are written and read in ``spill_folder``.

    They come from the remembered profiles, corrected by what the last runs have learnt. A profile whose rates no idle
    SSD has is doubted, and so is one of a small new file once there is a large one: the device is probed again, of
    doubtful rates at each call until two measurements in turn are alike. A device without a profile is probed, and
    remembered in the user's cache folder: reads of ``features`` itself take 1.3 s, and up to 3 s until they run
    steadily; writes of a new file without a name in the spill folder 0.6 s. Nothing is written beside the features,
    but for files without a name beside those with holes, such as a mirror's: holes say nothing about a device. If a
    probe fails, or the file is too small for one, the rates are those of a modest SSD.

    Parameters
    ----------
    features : path
        The file of feature rows.
    spill_folder : path, optional
        An existing folder. None: nothing will be spilled.
    span : (int, int), optional
        The first byte of the file to be read, a multiple of 4096, and the byte behind the last; defaults to all of it.
        A hole of a file says nothing about its device.
    os_io : OsIO
        The system calls to make.
    refresh : bool
        Probe even if a profile is remembered.
    """
    path = Path(features)
    reads = _read_profile(path, span, os_io, refresh=refresh)
    spill, is_one_device = reads, True
    # Measured rates are compared with measured ones only: if the reads are assumed, so are the writes.
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
    """Return what the probes of the device of the features and of that of packs say. Pure."""
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
    """Return the profile of the device under ``features``, or `DEFAULT_PROFILE` if it cannot be measured."""
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
    found = _measured_again(known, measured, keeps_writes=not refresh)
    remember_profile(features.parent, found)
    return found


def _spill_profile(
    features: Path,
    folder: Path,
    reads: DeviceProfile,
    span: tuple[int, int] | None,
    os_io: OsIO,
    *,
    refresh: bool,
) -> tuple[DeviceProfile, bool]:
    """Return the profile of the device under ``folder``, and whether it is that of ``features``, ``reads``."""
    if os_io.stat(folder).st_dev == os_io.stat(features).st_dev:
        # A device without a rate of writes was probed by its features alone; its spill folder comes only now.
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
    """Return whether some of a file is holes, as of a mirror: these are read as fast as memory. Pure."""
    held = _BLOCK_BYTES * status.st_blocks
    return 0 < held < _WHOLE * status.st_size  # of none at all some network file systems tell nothing


def _swept(features: Path, span: tuple[int, int] | None, os_io: OsIO) -> tuple[Path, tuple[int, int]] | None:
    """Return what can be read of ``features`` beside writes; None: too little, or holes."""
    status = os_io.stat(features)
    start, past = (0, status.st_size) if span is None else span
    if past - start < SMALLEST_PROBED_BYTES or (span is None and _is_sparse(status)):
        return None
    return features, (start, past)


def _measured_again(
    known: DeviceProfile | None, measured: DeviceProfile, *, keeps_writes: bool
) -> DeviceProfile:
    """Return ``measured`` with what is left of what was known before: what was learnt, and rates of writes. Pure."""
    if known is None:
        return measured
    # Rates of no idle SSD may be those of a busy one, of which the writes are no better.
    if keeps_writes and measured.write_bytes_per_s == 0 and not known.is_doubtful:
        measured = replace(
            measured, write_bytes_per_s=known.write_bytes_per_s, mixed_writes=known.mixed_writes
        )
    is_alike = not known.disagrees_with(
        random_reads_per_s=measured.random_reads_per_s, read_bytes_per_s=measured.read_bytes_per_s
    )
    return replace(known.measured_again(measured), is_confirmed=is_alike)


_LEAST_S: Final = 0.02  # predicted of what is observed: shorter reads are mostly their own beginning and end
_MOST_OBSERVED: Final = 4096  # of a run: a longer one forgets its oldest superbatches


class RateLearner:
    """Observes the superbatches of a run, and adds what they say to the remembered profiles. Thread-safe.

    Whoever closes it adds to what is remembered by then; of two that do so at the same time one may be forgotten, and
    neither is damaged. A forked child of the process that made it adds nothing.

    Parameters
    ----------
    found : the rates that the run began with
    os_io : the system calls to make
    now : the seconds since 1970
    """

    def __init__(
        self, found: FoundRates, *, os_io: OsIO = REAL_OS, now: Callable[[], float] = time.time
    ) -> None:
        self._found = found
        self._os_io = os_io
        self._now = now
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._observations: list[Observation] = []

    @property
    def observations(self) -> tuple[Observation, ...]:
        """What was observed so far."""
        with self._lock:
            return tuple(self._observations)

    def observe(self, counts: MissCounts, strategy: Strategy, *, staged_s: float, read_s: float) -> None:
        """Take note of a superbatch that was read.

        Parameters
        ----------
        counts : of its missing rows
        strategy : by which they were read
        staged_s, read_s : that the disk was used before its first batch, and for its batches
        """
        found = observed(counts, strategy, self._found.probed, staged_s=staged_s, read_s=read_s)
        with self._lock:
            self._observations += found
            del self._observations[:-_MOST_OBSERVED]

    def close(self) -> None:
        """Remember what was learnt. Idempotent; a failure is only logged."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            seen, self._observations = self._observations, []
        if not seen or self._found.is_assumed:
            return
        lesson, found = lesson_of(seen, when=self._now()), self._found
        if found.spill_folder is None:
            self._remember(found.features_folder, found.reads, lesson, ACCESSES)
            return
        self._remember(found.features_folder, found.reads, lesson, OF_READS)
        self._remember(found.spill_folder, found.spill, lesson, OF_SPILL)

    def _remember(
        self, folder: Path, begun_with: DeviceProfile, lesson: Lesson, accesses: Collection[Access]
    ) -> None:
        """Add the part of ``lesson`` on ``accesses`` to what is remembered of the device of ``folder`` by now."""
        known = remembered_profile(folder)
        of_device = LearntRates(lessons=(lesson,)).only(accesses).lessons[0]
        # What cannot be remembered at the beginning of a run is no better known at its end.
        if known is None or not of_device.known:
            return
        # Somebody may have measured the device anew since this run began.
        of_device = rebased(of_device, begun_with.faster_in(known))
        remember_profile(folder, known.taught(of_device), os_io=self._os_io)


def observed(
    counts: MissCounts, strategy: Strategy, rates: IoRates, *, staged_s: float, read_s: float
) -> Sequence[Observation]:
    """Return what a superbatch says of the rates of a probe: seconds of each kind of access, and what they took. Pure.

    Parameters
    ----------
    counts : of its missing rows
    strategy : by which they were read
    rates : of the probe
    staged_s, read_s : that the disk was used before its first batch, and for its batches
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
    seconds = rates.read_seconds(counts.direct_requests, counts.direct_bytes, calls=counts.num_batches)
    return _by_size(rates, counts.direct_requests, counts.direct_bytes, seconds)


def _swept_observation(counts: MissCounts, rates: IoRates) -> dict[Access, float]:
    seconds = rates.read_seconds(counts.sweep_requests, counts.sweep_bytes)
    return _by_size(rates, counts.sweep_requests, counts.sweep_bytes, seconds)


def _packing(counts: MissCounts, rates: IoRates) -> dict[Access, float]:
    """Return the seconds of a sweep that writes packs, by what they are spent on."""
    read, write = _swept_observation(counts, rates), counts.pack_bytes / rates.write_bytes_per_s
    read_s = sum(read.values())
    found: dict[Access, float] = {**read, "write": write}
    if not rates.is_one_device:  # then the faster of them leaves no trace
        found = read if read_s > write else {"write": write}
    faster = rates.packing_seconds(read_s, write) / max(sum(found.values()), 1e-300)
    parts = {access: seconds * faster for access, seconds in found.items()}
    return {**parts, "dealt": rates.dealing_seconds(counts.pack_bytes)}


def _by_size(rates: IoRates, requests: int, num_bytes: int, seconds: float) -> dict[Access, float]:
    """Return the ``seconds`` of reads, by the rates that they follow from."""
    found: dict[Access, float] = {}
    for access, share in rates.times.shares(num_bytes / max(requests, 1)).items():
        found[access] = share * seconds
    return found


# Of a wait for a core: what the device stands still. It works on for as long as it has requests; in 186 superbatches on
# two busy cores 0.7 to 0.8 of the waits came on top of what the same reads took while the cores were idle.
_LOST: Final = 0.75


class DeviceUse:
    """The seconds of one use of the device: a fair share of the time in which others used it as well."""

    def __init__(self) -> None:
        self.seconds = 0.0


class DeviceClock:
    """Shares out the time of a device among those who use it: n at a time get an n-th each. Thread-safe.

    The shares add up to the time in which anybody used it, less the time in which a user had no core to ask it for
    more: a device cannot be faster or slower by that. So what a sweep and the reads that run beside it took can be
    compared with what a cost model says about each alone.

    Parameters
    ----------
    now : the seconds of a clock
    waited : the seconds that the calling thread has waited for a core so far
    """

    def __init__(
        self, *, now: Callable[[], float] = time.perf_counter, waited: Callable[[], float] = core_wait_s
    ) -> None:
        self._now = now
        self._waited = waited
        self._lock = threading.Lock()
        self._num_users = 0
        self._last = 0.0
        self._share = 0.0  # what somebody who had used the device all along would have got

    @contextmanager
    def using(self) -> Iterator[DeviceUse]:
        """Count the block as a use; its seconds are complete when it ends."""
        use = DeviceUse()
        waited, (began, share) = self._waited(), self._advance(1)
        try:
            yield use
        finally:
            ended, share_then = self._advance(-1)
            waited = self._waited() - waited
            use.seconds = (share_then - share) * _working(waited, ended - began)

    def _advance(self, change: int) -> tuple[float, float]:
        """Account for the time since the last change of users; return the time, and the share so far."""
        with self._lock:
            # Everybody's share grows at the same pace, so one running sum serves all: a use is a difference of it.
            # The clock is read inside the lock, or time would seem to run backwards for the second of two threads.
            now = self._now()
            if self._num_users > 0:
                self._share += (now - self._last) / self._num_users
            self._last = now
            self._num_users += change
            return now, self._share


def _working(waited: float, seconds: float) -> float:
    """Return the share of the ``seconds`` of a use that is left without what was lost to waits for a core. Pure."""
    return 1 - _LOST * min(max(waited / seconds, 0.0), 1.0) if seconds > 0 else 1.0
