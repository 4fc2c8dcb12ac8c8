"""Profiles of storage devices: the rates of each, measured in about a second and remembered."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gloader.core.aligned_memory import mapped_bytes
from gloader.core.malformed import MALFORMED
from gloader.core.paths import home_dir
from gloader.ssd_store.cost.probe import (
    CHUNK_BYTES,
    WIDE_DEPTH,
    measure_random_reads,
    measure_sequential_reads,
    measure_writes,
    open_scratch,
)
from gloader.ssd_store.cost.read_times import MEDIUM_BYTES, WIDE_BYTES, ReadTimes
from gloader.ssd_store.format.format import open_error
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath, close_quietly, make_folders
from gloader.ssd_store.read.extents import ALIGNMENT, mean_extent_bytes
from gloader.ssd_store.read.uring import probe_uring
from gloader.ssd_store.write.atomic_file import write_atomically

_LOG = logging.getLogger(__name__)

PROFILE_VERSION = 2  # 1 held the rates of bursts
DEPTHS = (16, 64, 128, 256)
# A probe that went wrong must not make every page a request of its own, or read everything in between.
MIN_GAP_BYTES, MAX_GAP_BYTES = 4096, 65536
DEFAULT_GAP_BYTES = 8192  # of small rows: two pages cost less than another request on every SSD measured
DISAGREEMENT = 1 / 3  # a rate this far off makes a remembered profile worthless
# Bytes in file order in the time of one at random, in reads of 4 KiB: 4 to 20 of SSDs, 61 of a cloud's volumes. Above
# it is a hard disk, or an SSD that was busy with other work while it was measured.
_MOST_SEQUENTIAL = 100.0
_MAX_PROFILE_BYTES = 4096
_MAX_RATE = 1e15  # bytes or requests a second
_FILE_BYTES = 128 * 2**20
_PHASE_S = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """The rates of one device, as one process can get them."""

    random_reads_per_s: float  # of 4 KiB
    read_bytes_per_s: float  # sequential
    write_bytes_per_s: float  # sequential; 0: only reads were measured
    queue_depth: int  # the smallest that reaches the random rate
    is_direct: bool  # False: measured through the page cache, good for nothing but proportions
    medium_reads_per_s: float = 0.0  # random, of `MEDIUM_BYTES`; 0: not measured
    wide_reads_per_s: float = 0.0  # random, of `WIDE_BYTES`; 0: not measured
    is_confirmed: bool = False  # reads were measured twice, with rates alike

    @property
    def times(self) -> ReadTimes:
        """How long reads take by their size."""
        return ReadTimes(
            small_per_s=self.random_reads_per_s,
            medium_per_s=self.medium_reads_per_s,
            wide_per_s=self.wide_reads_per_s,
            bytes_per_s=self.read_bytes_per_s,
        )

    @property
    def sweep_gap_bytes(self) -> int:
        """Longest hole between two wanted pages that a sweep reads through."""
        return max(self.times.sweep_gap_bytes(most=MAX_GAP_BYTES), MIN_GAP_BYTES)

    def row_gap_bytes(self, row_bytes: int) -> int:
        """Return the longest hole between two wanted rows that a batch reads through. Pure."""
        return self.times.gap_bytes(mean_extent_bytes(row_bytes), most=MAX_GAP_BYTES)

    @property
    def is_complete(self) -> bool:
        """Whether every rate was measured."""
        return self.write_bytes_per_s > 0 and self.has_reads

    @property
    def has_reads(self) -> bool:
        """Whether the rates of all reads were measured."""
        return self.medium_reads_per_s > 0 and self.wide_reads_per_s > 0

    @property
    def is_doubtful(self) -> bool:
        """Whether no idle SSD has such rates, and nothing confirmed them: the device may have been busy meanwhile.

        Reads of more bytes do not come more often than those of fewer, and reads in file order bring about as many
        bytes as long ones at random.
        """
        small, medium, wide = self.random_reads_per_s, self.medium_reads_per_s, self.wide_reads_per_s
        in_order = self.read_bytes_per_s / WIDE_BYTES
        most = 1 / (1 - DISAGREEMENT)
        is_odd = (
            medium > most * small
            or wide > most * medium
            or wide > most * in_order
            or self.read_bytes_per_s > _MOST_SEQUENTIAL * ALIGNMENT * small
        )
        return is_odd and self.has_reads and not self.is_confirmed

    def disagrees_with(self, *, random_reads_per_s: float, read_bytes_per_s: float | None = None) -> bool:
        """Return whether a rate seen since is off by more than a third, so that this is worthless. Pure."""
        ratios = [random_reads_per_s / self.random_reads_per_s]
        if read_bytes_per_s is not None:
            ratios.append(read_bytes_per_s / self.read_bytes_per_s)
        return not all(1 - DISAGREEMENT <= ratio <= 1 / (1 - DISAGREEMENT) for ratio in ratios)


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
    """Probe the device under ``folder`` and return what it does now.

    The measurement replaces a remembered profile whose rates, of random or of sequential reads, are off by
    more than a third, or that lacks a rate; a closer one is left alone, so that noise does not change
    how stores are read.

    Raises
    ------
    StoreOpenError
        As `probe_device`.
    """
    measured = probe_device(folder, os_io=os_io)
    remembered = remembered_profile(folder)
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
        with _profile_path(Path(folder)).open("rb") as file:
            return _parse(json.loads(file.read(_MAX_PROFILE_BYTES)))
    except FileNotFoundError:
        return None
    # A file of anybody's making must not stop every loader of the machine.
    except (OSError, *MALFORMED) as error:
        _LOG.info("the remembered device profile is unusable and will be measured again: %r", error)
        return None


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


def probe_device(folder: StrPath, *, os_io: OsIO = REAL_OS) -> DeviceProfile:
    """Measure the device under ``folder`` with a temporary file of 128 MiB, in about a second.

    The file has no name while it is used, so nothing stays behind. A cache in front of the device (a host's,
    or the drive's own) makes the rates better than they are for large files.

    Raises
    ------
    StoreOpenError
        No file can be made in ``folder``, or it has no room.
    """
    folder = Path(folder)
    memory = mapped_bytes(max(CHUNK_BYTES, max(DEPTHS) * MEDIUM_BYTES, WIDE_DEPTH * WIDE_BYTES))
    fd, is_direct = open_scratch(folder, os_io)
    try:
        size, write_rate = measure_writes(
            fd, memory, seconds=2 * _PHASE_S, max_bytes=_FILE_BYTES, os_io=os_io
        )
        best_rate, best_depth = 0.0, DEPTHS[0]
        for depth in DEPTHS:
            rate = measure_random_reads(fd, size, memory, depth=depth, seconds=_PHASE_S)
            # A deeper queue must gain 5%: otherwise noise would choose among depths that are all enough.
            if rate > best_rate * 1.05:
                best_rate, best_depth = rate, depth
        medium_rate = measure_random_reads(
            fd, size, memory, depth=best_depth, seconds=_PHASE_S, read_bytes=MEDIUM_BYTES
        )
        wide_rate = measure_random_reads(
            fd, size, memory, depth=WIDE_DEPTH, seconds=_PHASE_S, read_bytes=WIDE_BYTES
        )
        read_rate = measure_sequential_reads(fd, size, memory, seconds=_PHASE_S)
    except OSError as error:
        raise open_error(folder, error) from error
    finally:
        close_quietly(fd, os_io=os_io)
    return DeviceProfile(
        random_reads_per_s=best_rate,
        read_bytes_per_s=read_rate,
        write_bytes_per_s=write_rate,
        queue_depth=best_depth,
        is_direct=is_direct,
        medium_reads_per_s=medium_rate,
        wide_reads_per_s=wide_rate,
    )


def _profile_path(folder: Path) -> Path:
    root = home_dir()
    device = folder.stat().st_dev
    blocks = os.statvfs(folder).f_blocks  # device numbers are handed out anew at boot
    return root / "devices" / f"{os.major(device)}-{os.minor(device)}-{blocks}.json"


def remember_profile(folder: StrPath, profile: DeviceProfile, *, os_io: OsIO = REAL_OS) -> None:
    """Keep ``profile`` for the device under ``folder``, in the user's cache folder; a failure is only logged."""
    try:
        path = _profile_path(Path(folder))
        make_folders(path.parent, os_io=os_io)
        content = json.dumps({"version": PROFILE_VERSION, **asdict(profile)}).encode()
        write_atomically(path, content, os_io=os_io)
    except OSError as error:
        _LOG.info("the device profile cannot be remembered: %s", error)


def _parse(body: dict[str, Any]) -> DeviceProfile:
    if body["version"] != PROFILE_VERSION:
        raise ValueError(f"version {body['version']}")
    rates = [float(body[key]) for key in ("random_reads_per_s", "read_bytes_per_s", "write_bytes_per_s")]
    medium, wide = float(body.get("medium_reads_per_s", 0.0)), float(body.get("wide_reads_per_s", 0.0))
    depth = int(body["queue_depth"])
    # Wide enough for every device there is; a rate of 1e-300 makes times that no float holds.
    needed, extra = all(1 <= rate <= _MAX_RATE for rate in rates[:2]), (rates[2], medium, wide)
    is_possible = needed and all(rate == 0 or 1 <= rate <= _MAX_RATE for rate in extra)
    if not is_possible or not 1 <= depth <= 4096:
        raise ValueError(f"rates {rates}, queue depth {depth}")
    return DeviceProfile(
        random_reads_per_s=rates[0],
        read_bytes_per_s=rates[1],
        write_bytes_per_s=rates[2],
        queue_depth=depth,
        is_direct=bool(body["is_direct"]),
        medium_reads_per_s=medium,
        wide_reads_per_s=wide,
        is_confirmed=bool(body.get("is_confirmed", False)),
    )
