"""Pinned memory: what the CUDA runtime and torch's allocator do with it, and whether the kernel reads it in place."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from gpu_findings import GpuFinding, bounded, compared, not_checked, reported, required

from gloader.device import RowParts, RowTable, open_device
from gloader.device.cuda import CudaHostMemory, pin_in_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes
    from numpy.typing import NDArray

_ALREADY_REGISTERED: Final = 712


def check_pinned(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Register memory of every kind, read it, and go on after what is refused."""
    if not sizes.is_gpu:
        yield not_checked("features pinned in place")
        return
    for check in clock.each((_registered, _memfd, _rate, _buffer, _in_place), lambda each: each.__name__):
        yield from check(sizes)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _registered(sizes: Sizes) -> Iterator[GpuFinding]:
    runtime = _runtime()
    memory = np.ones(1 << 26, dtype=np.uint8)
    statuses = [int(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) for _ in range(2)]
    yield required("registering once", statuses[0] == 0, "0", note=str(statuses[0]), predicted="0")
    as_expected = statuses[1] == _ALREADY_REGISTERED
    yield required("registering twice", as_expected, "712", note=str(statuses[1]), predicted="712")
    try:
        torch.zeros(1, device=sizes.place)
        left = "nothing"
    except RuntimeError as error:
        left = str(error).splitlines()[0]
    yield reported(
        "error that is left for the next kernel", None, note=left, predicted="one, which gloader swallows"
    )
    torch.zeros(1, device=sizes.place)  # where one was left, it is gone now
    is_pinned = torch.from_numpy(memory).is_pinned()
    yield required("torch knows registered memory as pinned", is_pinned, "yes", note=str(is_pinned))
    runtime.cudaHostUnregister(memory.ctypes.data)


def _memfd(_sizes: Sizes) -> Iterator[GpuFinding]:
    runtime, num_bytes = _runtime(), 1 << 26
    fd = os.memfd_create("gloader-check", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, num_bytes)
    shared = np.frombuffer(
        mmap.mmap(fd, num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE), dtype=np.uint8
    )
    status = int(runtime.cudaHostRegister(shared.ctypes.data, num_bytes, 0))
    yield required("registering a memfd", status == 0, "0", note=str(status), predicted="0")
    if status == 0:
        runtime.cudaHostUnregister(shared.ctypes.data)
    os.close(fd)


def _rate(sizes: Sizes) -> Iterator[GpuFinding]:
    runtime, memory = _runtime(), np.ones(min(1 << 31, sizes.table_bytes), dtype=np.uint8)
    began = time.perf_counter()
    status = int(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
    rate = memory.nbytes / (time.perf_counter() - began) / 1e9
    yield reported("registering", rate, "GB/s", note=f"status {status}", predicted="2 to 12")
    if status == 0:
        runtime.cudaHostUnregister(memory.ctypes.data)


def _buffer(sizes: Sizes) -> Iterator[GpuFinding]:
    """Compare what a buffer of the ring takes of the host with what was asked for."""
    name, before, resident = "pinned memory of a buffer", _locked_bytes(), _resident_bytes()
    asked = min(1 << 28, sizes.table_bytes) + 1  # a power of two and a byte more
    buffer: NDArray[Any] = open_device(sizes.place).host_buffer(asked)
    buffer[:] = 1
    yield required(f"{name}: is pinned", torch.from_numpy(buffer).is_pinned(), "yes")
    address = buffer.ctypes.data % 4096
    yield required(f"{name}: on a page", address == 0, "at byte 0 of a page", note=f"at byte {address}")
    taken = (_locked_bytes() - before) / asked
    yield bounded(
        name, taken, "of what was asked for", most=1.05, note="of torch's own allocator", predicted="0"
    )

    del buffer
    left = (_resident_bytes() - resident) / asked
    yield bounded(f"{name}: kept when nobody uses it", left, "of it", most=0.1, predicted="0")


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * mmap.PAGESIZE


def _locked_bytes() -> int:
    """Return what torch's own allocator of pinned memory took from the system."""
    found = torch.cuda.host_memory_stats()
    return int(found.get("allocated_bytes.current", 0))


def _in_place(sizes: Sizes) -> Iterator[GpuFinding]:
    features = np.arange(1_000_000 * 16, dtype=np.float32).reshape(-1, 16)
    pinned = pin_in_place(features, CudaHostMemory(sizes.place), chunk_bytes=1 << 24)
    if pinned is None:
        yield not_checked(
            "features pinned in place", "the system does not let memory be pinned; the log says why"
        )
        return
    ids = torch.randint(len(features), (50_000,), device=sizes.place)
    rows = RowTable(rows=torch.from_numpy(features))
    parts = RowParts(table=None, slot_of=None, host=rows, is_host_by_id=True)
    out, device = torch.empty(len(ids), 16, device=sizes.place), open_device(sizes.place)
    expected = torch.from_numpy(features[ids.cpu().numpy()])
    device.gather(ids, parts, out)
    yield compared("features pinned in place, in several pieces", torch.equal(out.cpu(), expected))
    again = device.pin(features)
    yield compared("memory that cannot be pinned is left as it is", again is None)
    out.zero_()
    device.gather(ids, parts, out)
    yield compared("gather after pinning failed", torch.equal(out.cpu(), expected))
    pinned.close()
