"""Profiles for storage devices: measured in one to three seconds, and remembered with the runs' lessons.

A `DeviceProfile` has a device's rates from a probe, and lessons: the ratios of measured to predicted times in later
runs. Each device's profile is a JSON file in the user's cache folder. `device_rates.find_rates` and the command line's
machine check write it. Readers take their defaults from it: the longest hole between needed bytes that a read covers in
place of a second request, and the number of reads in flight.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gloader.core.malformed import MALFORMED
from gloader.core.paths import home_dir
from gloader.errors import StoreOpenError
from gloader.ssd_store.cost.device_probe import open_scratch, probe_folder
from gloader.ssd_store.cost.device_profile import (
    DeviceProfile,
    parse_profile,
)
from gloader.ssd_store.format.format import open_error
from gloader.ssd_store.os_io import REAL_OS, Descriptor, OsIO, StrPath, close_quietly, make_folders, read_full
from gloader.ssd_store.read.extents import ALIGNMENT
from gloader.ssd_store.read.lane import DEFAULT_DEPTH
from gloader.ssd_store.read.uring import probe_uring
from gloader.ssd_store.write.atomic_file import write_atomically

_LOG = logging.getLogger(__name__)

# Longest hole that a read bridges, without a profile: on every measured SSD two pages cost less than another request.
DEFAULT_GAP_BYTES: Final = 8192
_MAX_PROFILE_BYTES: Final = 16_384  # longest profile file that is read


@dataclass(frozen=True, slots=True, kw_only=True)
class IoCapabilities:
    """The kinds of I/O that the operating system allows."""

    has_direct: bool  # O_DIRECT, reads without the page cache
    direct_reason: str  # the reason why not; empty if allowed
    has_uring: bool  # io_uring
    uring_reason: str  # the reason why not; empty if allowed


def io_capabilities(folder: StrPath, *, os_io: OsIO = REAL_OS) -> IoCapabilities:
    """Test if files in ``folder`` can be read with O_DIRECT, and if io_uring can be used.

    Raises
    ------
    StoreOpenError
        No temporary file can be made in ``folder``.
    """
    uring_reason = probe_uring() or ""
    fd, is_direct = open_scratch(Path(folder), os_io)
    close_quietly(fd, os_io=os_io)
    return IoCapabilities(
        has_direct=is_direct,
        direct_reason="" if is_direct else f"the file system of {folder} refuses O_DIRECT",
        has_uring=not uring_reason,
        uring_reason=uring_reason,
    )


def refresh_profile(folder: StrPath, *, os_io: OsIO = REAL_OS) -> DeviceProfile:
    """Probe the device under ``folder`` and return its current rates, with the lessons of earlier runs.

    The measurement replaces a remembered profile that lacks a rate, or whose random or sequential read rate is off by
    more than a third. A closer profile is kept, so that noise does not change the reads. The lessons stay.

    Raises
    ------
    StoreOpenError
        See `probe_device`.
    """
    measured = probe_device(folder, os_io=os_io)
    remembered = remembered_profile(folder)
    if remembered is not None:
        measured = remembered.measured_again(measured)
    if (
        remembered is None
        or not remembered.is_complete
        or remembered.disagrees_with(
            random_reads_per_s=measured.random_reads_per_s, read_bytes_per_s=measured.read_bytes_per_s
        )
    ):
        remember_profile(folder, measured)
    return measured


def remembered_profile(folder: StrPath) -> DeviceProfile | None:
    """Return the remembered profile for the device under ``folder``, or None. Measures nothing."""
    try:
        with Descriptor(_profile_path(Path(folder))) as fd:  # never waits for a pipe at this path
            content = bytearray(_MAX_PROFILE_BYTES)
            count = read_full(fd, memoryview(content), 0)
        profile = parse_profile(json.loads(content[:count]))
    except FileNotFoundError:
        return None
    # A malformed file must not stop every loader on the machine.
    except (OSError, *MALFORMED) as error:
        _LOG.info("the remembered device profile is unusable and will be measured again: %r", error)
        return None
    return profile.at(time.time())


def default_sweep_gap_bytes(folder: Path) -> int:
    """Return the longest hole between two needed pages that a sweep bridges on ``folder``'s device."""
    profile = remembered_profile(folder)
    return profile.sweep_gap_bytes if profile else DEFAULT_GAP_BYTES


def default_row_gap_bytes(folder: Path, row_bytes: int) -> int:
    """Return the longest hole between two rows that a read bridges on ``folder``'s device."""
    profile = remembered_profile(folder)
    if profile is None:
        return DEFAULT_GAP_BYTES if row_bytes < ALIGNMENT else 0
    return profile.row_gap_bytes(row_bytes)


def ring_depth(folder: Path) -> int:
    """Return the number of reads to keep in flight on ``folder``'s device."""
    profile = remembered_profile(folder)
    return DEFAULT_DEPTH if profile is None else profile.ring_depth


def probe_device(folder: StrPath, *, os_io: OsIO = REAL_OS) -> DeviceProfile:
    """Measure the device under ``folder`` with new files, up to 320 MiB in total, in two to three seconds.

    The files have no names, so nothing is left behind. A device cache (the host's, or the drive's own) may make the
    rates too high for large files. They are measured again on the first large file that a loader reads.

    Raises
    ------
    StoreOpenError
        No file can be created in ``folder``, or its disk is full.
    """
    try:
        return probe_folder(Path(folder), os_io)
    except StoreOpenError:
        raise
    except OSError as error:
        raise open_error(Path(folder), error) from error


def remember_profile(folder: StrPath, profile: DeviceProfile, *, os_io: OsIO = REAL_OS) -> None:
    """Keep ``profile`` for the device under ``folder``, in the user's cache folder; a failure is only logged."""
    try:
        path = _profile_path(Path(folder))
        make_folders(path.parent, os_io=os_io)
        write_atomically(path, json.dumps(profile.to_json()).encode(), os_io=os_io)
    except OSError as error:
        _LOG.info("the device profile cannot be remembered: %s", error)


def _profile_path(folder: Path) -> Path:
    """Return the file for the profile of the device under ``folder``; OSError if the folder is missing."""
    root = home_dir()
    device = folder.stat().st_dev
    blocks = os.statvfs(folder).f_blocks  # in the name too, because device numbers may change at a boot
    return root / "devices" / f"{os.major(device)}-{os.minor(device)}-{blocks}.json"
