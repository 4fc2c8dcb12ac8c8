"""Rates of the devices under the features and under the spill folder, for the cost model."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.core.aligned_memory import mapped_bytes
from gloader.errors import StoreOpenError
from gloader.ssd_store.cost.probe import (
    CHUNK_BYTES,
    WIDE_DEPTH,
    measure_random_reads,
    measure_sequential_reads,
    measure_writes,
    open_existing,
    open_scratch,
)
from gloader.ssd_store.cost.profile import DeviceProfile, remember_profile, remembered_profile
from gloader.ssd_store.cost.read_times import MEDIUM_BYTES, WIDE_BYTES
from gloader.ssd_store.cost.strategy import IoRates
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath, close_quietly
from gloader.ssd_store.read.lane import DEFAULT_DEPTH

if TYPE_CHECKING:
    import os

_LOG = logging.getLogger(__name__)

SMALLEST_PROBED_BYTES = 64 * 2**20  # a smaller file is read in a blink, and says nothing about its device
_PHASE_S, _SHORT_PHASE_S = 0.1, 0.05
_BLOCK_BYTES = 512  # in which a status counts, whatever the file system's own are
_WHOLE = 0.9  # of a file's bytes: with fewer it has holes, or is compressed
_WRITE_BYTES = 256 * 2**20

# A modest SSD, for files too small to measure and devices that cannot be measured.
DEFAULT_PROFILE = DeviceProfile(
    random_reads_per_s=50_000.0,
    read_bytes_per_s=0.5e9,
    write_bytes_per_s=0.4e9,
    queue_depth=DEFAULT_DEPTH,
    is_direct=True,
    medium_reads_per_s=30_000.0,
    wide_reads_per_s=7_500.0,
)


def rates_of(
    features: StrPath,
    spill_folder: StrPath | None = None,
    *,
    span: tuple[int, int] | None = None,
    os_io: OsIO = REAL_OS,
    refresh: bool = False,
) -> IoRates:
    """Return the rates at which ``features`` is read, and packs are written and read in ``spill_folder``.

    They come from the remembered profiles. One whose rates no idle SSD has is doubted: the device is probed again, at
    each call until two measurements in turn are alike. A device without one is probed, and remembered in the user's
    cache folder: reads of ``features`` itself take 0.8 s, and up to 2 s until they run steadily; writes of a new file
    without a name in the spill folder 0.2 s. Nothing is written beside the features, but for a file without a name
    beside those with holes, such as a mirror's: holes say nothing about a device. If a probe fails, or the file is too
    small for one, the rates are those of a modest SSD.

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
            spill, is_one_device = _spill_profile(path, Path(spill_folder), reads, os_io, refresh=refresh)
        except (OSError, StoreOpenError) as error:
            _LOG.info(
                "writes to %s cannot be measured, taking those of a modest SSD: %s", spill_folder, error
            )
    return IoRates(
        random_reads_per_s=reads.random_reads_per_s,
        read_bytes_per_s=reads.read_bytes_per_s,
        write_bytes_per_s=spill.write_bytes_per_s or DEFAULT_PROFILE.write_bytes_per_s,
        pack_read_bytes_per_s=spill.read_bytes_per_s,
        medium_reads_per_s=reads.medium_reads_per_s,
        wide_reads_per_s=reads.wide_reads_per_s,
        is_one_device=is_one_device,
    )


def _read_profile(
    features: Path, span: tuple[int, int] | None, os_io: OsIO, *, refresh: bool
) -> DeviceProfile:
    """Return the profile of the device under ``features``, or `DEFAULT_PROFILE` if it cannot be measured."""
    known = None if refresh else remembered_profile(features.parent)
    if known is not None and known.has_reads and not known.is_doubtful:
        return known
    try:
        status = os_io.stat(features)
        start, past = (0, status.st_size) if span is None else span
        if past - start < SMALLEST_PROBED_BYTES:
            return DEFAULT_PROFILE
        if span is None and _is_sparse(status):
            measured = _confirmed(_probe_folder(features.parent, os_io), known)
        else:
            measured = _confirmed(_probe_file(features, start, past - start, os_io), known)
    except OSError as error:
        _LOG.info("reads of %s cannot be measured, taking those of a modest SSD: %s", features, error)
        return DEFAULT_PROFILE
    remember_profile(features.parent, measured)
    return measured


def _spill_profile(
    features: Path, folder: Path, reads: DeviceProfile, os_io: OsIO, *, refresh: bool
) -> tuple[DeviceProfile, bool]:
    """Return the profile of the device under ``folder``, and whether it is that of ``features``, ``reads``."""
    if os_io.stat(folder).st_dev == os_io.stat(features).st_dev:
        # A device without a rate of writes was probed by its features alone; its spill folder comes only now.
        if reads.write_bytes_per_s == 0:
            reads = replace(reads, write_bytes_per_s=_probe_writes(folder, os_io))
            remember_profile(folder, reads)
        return reads, True
    known = None if refresh else remembered_profile(folder)
    if known is None or known.write_bytes_per_s == 0 or known.is_doubtful:
        known = _confirmed(_probe_folder(folder, os_io), known)
        remember_profile(folder, known)
    return known, False


def _is_sparse(status: os.stat_result) -> bool:
    """Return whether some of a file is holes, as of a mirror: these are read as fast as memory. Pure."""
    held = _BLOCK_BYTES * status.st_blocks
    return 0 < held < _WHOLE * status.st_size  # of none at all some network file systems tell nothing


def _confirmed(measured: DeviceProfile, known: DeviceProfile | None) -> DeviceProfile:
    """Return ``measured``, as confirmed where the reads ``known`` before were alike. Pure."""
    is_alike = known is not None and not known.disagrees_with(
        random_reads_per_s=measured.random_reads_per_s, read_bytes_per_s=measured.read_bytes_per_s
    )
    return replace(measured, is_confirmed=is_alike)


def _probe_file(path: Path, start: int, num_bytes: int, os_io: OsIO) -> DeviceProfile:
    """Measure reads of an existing file; its device has no rate of writes."""
    file, is_direct = open_existing(path, os_io)
    with file as fd:
        return _measured(fd, num_bytes, write_rate=0.0, is_direct=is_direct, seconds=_PHASE_S, start=start)


def _probe_folder(folder: Path, os_io: OsIO) -> DeviceProfile:
    """Measure writes of, and reads from, a new file without a name."""
    fd, is_direct = open_scratch(folder, os_io)
    try:
        size, write_rate = _write_rate(fd, os_io)
        return _measured(fd, size, write_rate=write_rate, is_direct=is_direct, seconds=_SHORT_PHASE_S)
    finally:
        close_quietly(fd, os_io=os_io)


def _probe_writes(folder: Path, os_io: OsIO) -> float:
    fd, _ = open_scratch(folder, os_io)
    try:
        return _write_rate(fd, os_io)[1]
    finally:
        close_quietly(fd, os_io=os_io)


def _measured(
    fd: int, num_bytes: int, *, write_rate: float, is_direct: bool, seconds: float, start: int = 0
) -> DeviceProfile:
    """Measure the reads of ``num_bytes`` of an open file, from ``start`` on."""
    memory = mapped_bytes(max(DEFAULT_DEPTH * MEDIUM_BYTES, WIDE_DEPTH * WIDE_BYTES))
    random = partial(measure_random_reads, fd, num_bytes, memory, seconds=seconds, start=start)
    return DeviceProfile(
        random_reads_per_s=random(depth=DEFAULT_DEPTH),
        medium_reads_per_s=random(depth=DEFAULT_DEPTH, read_bytes=MEDIUM_BYTES),
        wide_reads_per_s=random(depth=WIDE_DEPTH, read_bytes=WIDE_BYTES),
        read_bytes_per_s=measure_sequential_reads(fd, num_bytes, memory, seconds=seconds, start=start),
        write_bytes_per_s=write_rate,
        queue_depth=DEFAULT_DEPTH,
        is_direct=is_direct,
    )


def _write_rate(fd: int, os_io: OsIO) -> tuple[int, float]:
    memory = mapped_bytes(CHUNK_BYTES)
    return measure_writes(fd, memory, seconds=_PHASE_S, max_bytes=_WRITE_BYTES, os_io=os_io)
