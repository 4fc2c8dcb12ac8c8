"""What a storage device can do, measured in about a second and remembered."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import StoreOpenError
from gloader.folders import home_dir
from gloader.ssd_store.delivery import Delivery
from gloader.ssd_store.engine import staging_memory
from gloader.ssd_store.extents import ALIGNMENT, Extents
from gloader.ssd_store.format import open_error
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath, close_quietly, is_unsupported
from gloader.ssd_store.preadpool import PreadPool
from gloader.ssd_store.rowcopy import make_target
from gloader.ssd_store.uring import Uring, probe_uring

if TYPE_CHECKING:
    from gloader.ssd_store.backend import Backend
    from gloader.types import IdArray

_LOG = logging.getLogger(__name__)

PROFILE_VERSION = 1
DEPTHS = (16, 64, 128, 256)
MIN_GAP_BYTES, MAX_GAP_BYTES = 4096, 65536
DISAGREEMENT = 1 / 3  # a rate this far off makes a remembered profile worthless
_FILE_BYTES = 128 * 2**20
_CHUNK_BYTES = 4 * 2**20
_SEQUENTIAL_BYTES = 256 * 1024
_PHASE_S = 0.12
_BATCH = 1024  # random reads between two looks at the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """The rates of one device, as one process can get them."""

    random_reads_per_s: float  # of 4 KiB
    read_bytes_per_s: float  # sequential
    write_bytes_per_s: float  # sequential
    queue_depth: int  # the smallest that reaches the random rate
    is_direct: bool  # False: measured through the page cache, good for nothing but proportions

    @property
    def gap_bytes(self) -> int:
        """Longest hole that is cheaper to read through than to skip: bytes/s over requests/s."""
        gap = self.read_bytes_per_s / self.random_reads_per_s
        return int(min(max(gap, MIN_GAP_BYTES), MAX_GAP_BYTES)) // ALIGNMENT * ALIGNMENT

    def disagrees_with(self, *, random_reads_per_s: float, read_bytes_per_s: float | None = None) -> bool:
        """Return whether a rate seen since is off by more than a third, so that this is worthless. Pure."""
        ratios = [random_reads_per_s / self.random_reads_per_s]
        if read_bytes_per_s is not None:
            ratios.append(read_bytes_per_s / self.read_bytes_per_s)
        return not all(1 - DISAGREEMENT <= ratio <= 1 / (1 - DISAGREEMENT) for ratio in ratios)


@dataclass(frozen=True, slots=True, kw_only=True)
class IoCapabilities:
    """What the operating system allows; the reasons are empty where it does."""

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
    fd, is_direct = _open_scratch(Path(folder), os_io)
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
    more than a third; a closer one is left alone, so that noise does not change how stores are read.

    Raises
    ------
    StoreOpenError
        As `probe_device`.
    """
    measured = probe_device(folder, os_io=os_io)
    remembered = remembered_profile(folder)
    if remembered is None or remembered.disagrees_with(
        random_reads_per_s=measured.random_reads_per_s, read_bytes_per_s=measured.read_bytes_per_s
    ):
        _remember(Path(folder), measured)
    return measured


def remembered_profile(folder: StrPath) -> DeviceProfile | None:
    """Return the remembered profile of the device under ``folder``, or None. Measures nothing."""
    try:
        body = json.loads(_profile_path(Path(folder)).read_text("utf-8"))
        return _parse(body)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        _LOG.info("the remembered device profile is unusable and will be measured again: %s", error)
        return None


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
    memory = staging_memory(max(_CHUNK_BYTES, max(DEPTHS) * ALIGNMENT))
    fd, is_direct = _open_scratch(folder, os_io)
    try:
        size, write_rate = _fill(fd, memory, os_io)
        best_rate, best_depth = 0.0, DEPTHS[0]
        for depth in DEPTHS:
            rate = _rate(fd, memory, depth, _random_extents(size), _BATCH)
            if rate > best_rate * 1.05:
                best_rate, best_depth = rate, depth
        batch = size // _SEQUENTIAL_BYTES
        read_rate = _rate(fd, memory, 16, _sequential_extents(size), batch) * _SEQUENTIAL_BYTES
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
    )


def _open_scratch(folder: Path, os_io: OsIO) -> tuple[int, bool]:
    """Return the descriptor of a new file without a name, and whether it is open with O_DIRECT."""
    path = folder / f".gloader-probe-{os.getpid()}-{secrets.token_hex(4)}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    is_direct = True
    try:
        try:
            fd = os_io.open(path, flags | os.O_DIRECT, 0o600)
        except OSError as error:
            if not is_unsupported(error):
                raise
            is_direct = False
            # A refused O_DIRECT may leave the file that O_CREAT made.
            fd = os_io.open(path, flags & ~os.O_EXCL, 0o600)
        try:
            os_io.unlink(path)
            os_io.set_blocking(fd)
        except BaseException:
            close_quietly(fd, os_io=os_io)
            raise
    except OSError as error:
        message = f"cannot make a temporary file to measure the device: {error.strerror}"
        raise StoreOpenError(error.errno, message, str(folder)) from error
    return fd, is_direct


def _fill(fd: int, memory: Any, os_io: OsIO) -> tuple[int, float]:
    """Write the file for as long as a phase lasts, fsync included; return its size and the rate."""
    chunk = memory[:_CHUNK_BYTES]
    chunk[:] = np.random.default_rng(0).integers(0, 256, _CHUNK_BYTES, dtype=np.uint8)
    size, start = 0, time.perf_counter()
    while size < _FILE_BYTES and (size == 0 or time.perf_counter() - start < 2 * _PHASE_S):
        count = os_io.pwrite(fd, chunk.data, size)
        if count < ALIGNMENT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size += count // ALIGNMENT * ALIGNMENT
    os_io.fsync(fd)
    return size, size / (time.perf_counter() - start)


def _random_extents(size: int) -> Extents:
    pages = np.random.default_rng(1).permutation(size // ALIGNMENT)
    return _bare_extents(pages * ALIGNMENT, ALIGNMENT)


def _sequential_extents(size: int) -> Extents:
    return _bare_extents(np.arange(size // _SEQUENTIAL_BYTES) * _SEQUENTIAL_BYTES, _SEQUENTIAL_BYTES)


def _bare_extents(offset: IdArray, length: int) -> Extents:
    """Return reads that no row wants: the bytes are fetched and dropped."""
    nothing = np.zeros(offset.shape[0], np.int64)
    return Extents(offset=offset, length=np.full_like(nothing, length), row_begin=nothing, row_end=nothing)


def _rate(fd: int, memory: Any, depth: int, extents: Extents, batch: int) -> float:
    """Return the reads per second at ``depth`` over one phase."""
    backend: Backend
    try:
        backend = Uring(depth, memory)
    except OSError:
        backend = PreadPool(min(depth, 32))
    try:
        backend.read(fd, _work(extents, memory, 0, 1), 0)  # compiles the kernel outside the timing
        done, start = 0, time.perf_counter()
        while time.perf_counter() - start < _PHASE_S:
            first = done % len(extents)
            backend.read(fd, _work(extents, memory, first, first + batch), 0)
            done += min(batch, len(extents) - first)
        return done / (time.perf_counter() - start)
    finally:
        backend.close()


def _work(extents: Extents, memory: Any, first: int, last: int) -> Delivery:
    out = np.empty((0, 1), np.uint8)
    nobody = np.empty(0, np.int64)
    return Delivery(
        offset=extents.offset[first:last],
        length=extents.length[first:last],
        row_begin=extents.row_begin[first:last],
        row_end=extents.row_end[first:last],
        data_offset=0,
        checksums=np.empty(0, np.uint64),
        staged=memory,
        staged_halves=memory.view(np.uint16),
        staged_words=memory.view(np.uint64),
        slot_bytes=int(extents.length[0]),
        target=make_target(nobody, nobody, out, dtype=out.dtype),
    )


def _profile_path(folder: Path) -> Path:
    root = home_dir()
    device = folder.stat().st_dev
    blocks = os.statvfs(folder).f_blocks  # device numbers are handed out anew at boot
    return root / "devices" / f"{os.major(device)}-{os.minor(device)}-{blocks}.json"


def _remember(folder: Path, profile: DeviceProfile) -> None:
    try:
        path = _profile_path(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps({"version": PROFILE_VERSION, **asdict(profile)}), "utf-8")
        draft.replace(path)
    except OSError as error:
        _LOG.info("the device profile cannot be remembered: %s", error)


def _parse(body: dict[str, Any]) -> DeviceProfile:
    if body["version"] != PROFILE_VERSION:
        raise ValueError(f"version {body['version']}")
    rates = [float(body[key]) for key in ("random_reads_per_s", "read_bytes_per_s", "write_bytes_per_s")]
    depth = int(body["queue_depth"])
    if not all(np.isfinite(rate) and rate > 0 for rate in rates) or not 1 <= depth <= 4096:
        raise ValueError(f"rates {rates}, queue depth {depth}")
    return DeviceProfile(
        random_reads_per_s=rates[0],
        read_bytes_per_s=rates[1],
        write_bytes_per_s=rates[2],
        queue_depth=depth,
        is_direct=bool(body["is_direct"]),
    )
