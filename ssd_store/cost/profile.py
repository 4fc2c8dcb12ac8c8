"""Profiles of storage devices: measured in one to three seconds, and remembered with what runs learn."""

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

DEFAULT_GAP_BYTES: Final = (
    8192  # of small rows: two pages cost less than another request on every SSD measured
)
_MAX_PROFILE_BYTES: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class IoCapabilities:
    """What the operating system allows; the reasons are empty if it does."""

    has_direct: bool
    direct_reason: str
    has_uring: bool
    uring_reason: str


def io_capabilities(folder: StrPath, *, os_io: OsIO = REAL_OS) -> IoCapabilities:
    """Find out whether files in ``folder`` can be read with O_DIRECT, and whether io_uring can be used.

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
    """Probe the device under ``folder`` and return what it does now, beside what runs have learnt of it.

    The measurement replaces a remembered profile whose rates, of random or of sequential reads, are off by
    more than a third, or that lacks a rate; a closer one is left alone, so that noise does not change
    how stores are read. What was learnt stays.

    Raises
    ------
    StoreOpenError
        As `probe_device`.
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
    """Return the remembered profile of the device under ``folder``, or None. Measures nothing."""
    try:
        with Descriptor(_profile_path(Path(folder))) as fd:  # which waits for no pipe in its place
            content = bytearray(_MAX_PROFILE_BYTES)
            count = read_full(fd, memoryview(content), 0)
        found = parse_profile(json.loads(content[:count]))
    except FileNotFoundError:
        return None
    # A file of anybody's making must not stop every loader of the machine.
    except (OSError, *MALFORMED) as error:
        _LOG.info("the remembered device profile is unusable and will be measured again: %r", error)
        return None
    return found.at(time.time())


def default_sweep_gap_bytes(folder: Path) -> int:
    """Return the longest hole that a sweep reads through on the device of ``folder``, as far as it is known."""
    profile = remembered_profile(folder)
    return profile.sweep_gap_bytes if profile else DEFAULT_GAP_BYTES


def default_row_gap_bytes(folder: Path, row_bytes: int) -> int:
    """Return the longest hole between two rows worth reading through on the device of ``folder``."""
    profile = remembered_profile(folder)
    if profile is None:
        return DEFAULT_GAP_BYTES if row_bytes < ALIGNMENT else 0
    return profile.row_gap_bytes(row_bytes)


def ring_depth(folder: Path) -> int:
    """Return the reads to hold in flight on the device of ``folder``, as far as it is known."""
    profile = remembered_profile(folder)
    return DEFAULT_DEPTH if profile is None else profile.ring_depth


def probe_device(folder: StrPath, *, os_io: OsIO = REAL_OS) -> DeviceProfile:
    """Measure the device under ``folder`` with new files of up to 320 MiB in all, in two to three seconds.

    The files have no names while they are used, so nothing stays behind. A cache in front of the device (a host's,
    or the drive's own) may make the rates better than they are for large files: they are measured again on the first
    large file that a loader reads.

    Raises
    ------
    StoreOpenError
        No file can be made in ``folder``, or it has no room.
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
    root = home_dir()
    device = folder.stat().st_dev
    blocks = os.statvfs(folder).f_blocks  # device numbers are handed out anew at boot
    return root / "devices" / f"{os.major(device)}-{os.minor(device)}-{blocks}.json"
