"""What a run learns of its devices from the superbatches that it reads."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

from gloader.ssd_store.cost.learnt import (
    ACCESSES,
    OF_READS,
    OF_SPILL,
    Access,
    LearntRates,
    Lesson,
    Observation,
    lesson_of,
    rebased,
)
from gloader.ssd_store.cost.profile import remember_profile, remembered_profile
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from gloader.ssd_store.cost.calibration import Strategy
    from gloader.ssd_store.cost.device_profile import DeviceProfile
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.ssd_store.cost.miss_counts import MissCounts
    from gloader.ssd_store.cost.rates import FoundRates

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
        pairs = [({**_swept(counts, rates), "dealt": dealt}, staged_s + read_s)]
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


def _swept(counts: MissCounts, rates: IoRates) -> dict[Access, float]:
    seconds = rates.read_seconds(counts.sweep_requests, counts.sweep_bytes)
    return _by_size(rates, counts.sweep_requests, counts.sweep_bytes, seconds)


def _packing(counts: MissCounts, rates: IoRates) -> dict[Access, float]:
    """Return the seconds of a sweep that writes packs, by what they are spent on."""
    read, write = _swept(counts, rates), counts.pack_bytes / rates.write_bytes_per_s
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
