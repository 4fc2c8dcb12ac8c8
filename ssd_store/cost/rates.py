"""Rates of the devices under the features and under the spill folder, for the cost model."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gloader.errors import StoreOpenError
from gloader.ssd_store.cost.device_probe import probe_file, probe_folder, probe_writes
from gloader.ssd_store.cost.io_rates import IoRates
from gloader.ssd_store.cost.learnt import OF_READS, OF_SPILL
from gloader.ssd_store.cost.profile import DeviceProfile, remember_profile, remembered_profile
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath
from gloader.ssd_store.read.lane import DEFAULT_DEPTH

if TYPE_CHECKING:
    import os

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
