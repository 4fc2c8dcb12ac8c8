"""Probes of a device: its rates, measured in one to three seconds on a file that is there, or a new one."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gloader.core.aligned_memory import mapped_bytes
from gloader.ssd_store.cost.device_profile import DeviceProfile
from gloader.ssd_store.cost.probe import (
    CHUNK_BYTES,
    DEPTHS,
    WIDE_DEPTH,
    measure_depth,
    measure_latency,
    measure_mixed_reads,
    measure_mixed_writes,
    measure_random_reads,
    measure_sequential_reads,
    measure_writes,
    noise,
    open_existing,
    open_scratch,
)
from gloader.ssd_store.cost.probe_loads import WriteLoad
from gloader.ssd_store.cost.read_times import MEDIUM_BYTES, WIDE_BYTES
from gloader.ssd_store.os_io import OsIO, close_quietly
from gloader.ssd_store.read.extents import ALIGNMENT
from gloader.ssd_store.read.lane import DEFAULT_DEPTH

if TYPE_CHECKING:
    from pathlib import Path

# A fifth of a second of a load says what the next five seconds bring to 7% (median; 19% in one case in ten) on a
# virtual disk whose rate wanders by a third within half a minute; 0.8 s say it to 6%. Runs learn what takes longer.
PHASE_S: Final = 0.08
_MIXED_S: Final = 0.06
_FILE_BYTES: Final = 256 * 2**20  # of a new file
_BESIDE_BYTES: Final = 64 * 2**20  # of another, which is overwritten beside a sweep over the first


def probe_file(path: Path, start: int, num_bytes: int, os_io: OsIO) -> DeviceProfile:
    """Measure reads of a file; its device has no rate of writes.

    Parameters
    ----------
    path : the file
    start, num_bytes : where in it, multiples of 4096

    Raises
    ------
    OSError
        It cannot be read.
    """
    file, is_direct = open_existing(path, os_io)
    with file as fd:
        return _measured(fd, num_bytes, start=start, is_direct=is_direct)


def probe_folder(folder: Path, os_io: OsIO) -> DeviceProfile:
    """Measure writes of, and reads from, a new file.

    Raises
    ------
    StoreOpenError
        No file can be made in ``folder``.
    OSError
        The device failed, or is full.
    """
    memory = mapped_bytes(2 * CHUNK_BYTES)
    fd, is_direct = open_scratch(folder, os_io)
    try:
        size, write_rate = _fill(fd, memory, os_io)
        found = _measured(fd, size, start=0, is_direct=is_direct)
        beside, _ = open_scratch(folder, os_io)
        try:
            writes = WriteLoad(beside, noise(memory), os_io=os_io)
            filled, _ = writes.fill(seconds=PHASE_S, max_bytes=min(_BESIDE_BYTES, _FILE_BYTES))
            mixed = _mixed_writes(fd, (0, size), beside, filled, memory, os_io)
        finally:
            close_quietly(beside, os_io=os_io)
    finally:
        close_quietly(fd, os_io=os_io)
    return replace(found, write_bytes_per_s=write_rate, mixed_writes=mixed, is_scratch=True)


def probe_writes(
    folder: Path, swept: tuple[Path, tuple[int, int]] | None, os_io: OsIO
) -> tuple[float, float]:
    """Return the bytes per second that a new file in ``folder`` takes, and `DeviceProfile.mixed_writes`.

    Parameters
    ----------
    folder : the file's
    swept : another file on the same device, and the bytes of it that are read beside writes; None: there is none

    Raises
    ------
    StoreOpenError
        No file can be made in ``folder``.
    OSError
        The device failed, or is full.
    """
    memory = mapped_bytes(2 * CHUNK_BYTES)
    fd, _ = open_scratch(folder, os_io)
    try:
        size, rate = _fill(fd, memory, os_io)
        if swept is None:
            return rate, 1.0
        file, _ = open_existing(swept[0], os_io)
        with file as read_from:
            return rate, _mixed_writes(read_from, swept[1], fd, size, memory, os_io)
    finally:
        close_quietly(fd, os_io=os_io)


def _fill(fd: int, memory: Any, os_io: OsIO) -> tuple[int, float]:
    return measure_writes(fd, memory, seconds=2 * PHASE_S, max_bytes=_FILE_BYTES, os_io=os_io)


def _mixed_writes(fd: int, span: tuple[int, int], beside: int, size: int, memory: Any, os_io: OsIO) -> float:
    """Return what a sweep over ``span`` of one file and writes to another do at once, over what they do in turns."""
    writes = WriteLoad(beside, noise(memory), size=size, os_io=os_io)
    start, past = span
    swept = memory[CHUNK_BYTES:]
    return measure_mixed_writes(fd, past - start, swept, writes, seconds=_MIXED_S, start=start)


def _measured(fd: int, num_bytes: int, *, start: int, is_direct: bool) -> DeviceProfile:
    """Measure the reads of ``num_bytes`` of an open file, from ``start`` on."""
    deep, wide = max(DEPTHS) * ALIGNMENT, WIDE_DEPTH * WIDE_BYTES
    memory = mapped_bytes(max(deep, DEFAULT_DEPTH * MEDIUM_BYTES, wide, 2 * CHUNK_BYTES))
    rate, depth = measure_depth(fd, num_bytes, memory, seconds=PHASE_S, start=start)
    random = partial(measure_random_reads, fd, num_bytes, memory, seconds=PHASE_S, start=start)
    in_order = partial(measure_sequential_reads, fd, num_bytes, memory, seconds=PHASE_S, start=start)
    found = DeviceProfile(
        random_reads_per_s=rate,
        medium_reads_per_s=random(depth=DEFAULT_DEPTH, read_bytes=MEDIUM_BYTES),
        wide_reads_per_s=random(depth=WIDE_DEPTH, read_bytes=WIDE_BYTES),
        read_bytes_per_s=in_order(),
        write_bytes_per_s=0.0,
        queue_depth=depth,
        is_direct=is_direct,
        latency_s=measure_latency(fd, num_bytes, memory, start=start),
        mixed_reads=measure_mixed_reads(fd, num_bytes, memory, seconds=_MIXED_S, start=start),
        measured_at=time.time(),
    )
    # A burst of a second or two is over by now.
    return found.slowed(random_reads_per_s=random(depth=depth), read_bytes_per_s=in_order())
