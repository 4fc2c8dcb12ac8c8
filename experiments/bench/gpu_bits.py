"""Whether every way of a row to the device keeps its bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from gpu_findings import GpuFinding, Sizes, compared, not_checked

from gloader.device import RowParts, RowTable, has_triton
from gloader.device.cuda import CudaDevice
from gloader.device.host_memory import pin_in_place
from gloader.device.row_gather import gather_rows, gather_rows_in_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_NODES, NUM_CACHED, NUM_ROWS = 5000, 2000, 3000
DIMS = (1, 100, 128, 602)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8)
INTERPRETED_DIMS = (1, 100)  # the interpreter takes its time


def check_bits(sizes: Sizes) -> Iterator[GpuFinding]:
    """Gather with the kernel and with torch, of every dtype, from every combination of places."""
    if not has_triton():
        yield not_checked("fused gather", "Triton is missing: pip install -e '.[gpu]' -c constraints.txt")
    for dtype in DTYPES:
        wrong = []
        for dim in DIMS if sizes.is_gpu else INTERPRETED_DIMS:
            ids, cases = _cases(dim, dtype, 1 if sizes.is_gpu else 10)
            for name, parts in cases.items():
                expected = torch.empty(len(ids), dim)
                gather_rows_in_torch(ids, parts, out=expected)
                wrong += [f"{name}, {dim} columns, {how}" for how in _differing(ids, parts, expected, sizes)]
        how = "kernel and torch on the device" if sizes.is_gpu else "kernel under the interpreter"
        yield compared(f"gather of {str(dtype).removeprefix('torch.')}: {how}", not wrong, "; ".join(wrong))


def check_pinning(sizes: Sizes) -> Iterator[GpuFinding]:
    """Pin features in place, read them with the kernel, and go on after a failure."""
    if not sizes.is_gpu:
        yield not_checked("features pinned in place", "there is no GPU")
        return
    features = np.arange(1_000_000 * 16, dtype=np.float32).reshape(-1, 16)
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    pinned = pin_in_place(features, runtime, chunk_bytes=1 << 24)
    if pinned is None:
        yield not_checked("features pinned in place", "the system does not let memory be pinned: ulimit -l")
        return
    ids = torch.randint(len(features), (50_000,), device=sizes.place)
    parts = RowParts(
        table=None, slot_of=None, host=RowTable(rows=torch.from_numpy(features)), is_host_by_id=True
    )
    out = torch.empty(len(ids), 16, device=sizes.place)
    gather_rows(ids, parts, out=out)
    yield compared("features pinned in place, in several pieces", _same(out, features[ids.cpu().numpy()]))
    again = CudaDevice(sizes.place).pin(features)
    yield compared("memory that cannot be pinned is left as it is", again is None)
    out.zero_()
    gather_rows(ids, parts, out=out)
    yield compared("gather after pinning failed", _same(out, features[ids.cpu().numpy()]))
    pinned.close()


def _cases(dim: int, dtype: torch.dtype, smaller: int) -> tuple[torch.Tensor, dict[str, RowParts]]:
    nodes, cached, rows = NUM_NODES // smaller, NUM_CACHED // smaller, NUM_ROWS // smaller
    generator = torch.Generator().manual_seed(dim)

    def table(num: int, kind: torch.dtype) -> RowTable:
        values = (20 * torch.randn(num, dim, generator=generator)).to(kind)
        return RowTable(
            rows=values, scale=torch.rand(num, generator=generator) if kind == torch.int8 else None
        )

    ids = torch.randperm(nodes, generator=generator)[:rows]
    slot_of = torch.full((nodes,), -1, dtype=torch.int32)
    slot_of[torch.randperm(nodes, generator=generator)[:cached]] = torch.arange(cached, dtype=torch.int32)
    some, every, staged = table(cached, dtype), table(nodes, dtype), table(rows, torch.float32)
    return ids, {
        "cached and staged": RowParts(table=some, slot_of=slot_of, host=staged),
        "cached and in place": RowParts(table=some, slot_of=slot_of, host=every, is_host_by_id=True),
        "all cached": RowParts(table=every, slot_of=None, host=None),
        "all in place": RowParts(table=None, slot_of=None, host=every, is_host_by_id=True),
    }


def _differing(ids: torch.Tensor, parts: RowParts, expected: torch.Tensor, sizes: Sizes) -> Iterator[str]:
    """Yield the ways of gathering whose result is another."""
    place = sizes.place
    out = torch.full(expected.shape, torch.nan, device=place)
    if not sizes.is_gpu:
        if has_triton():
            from gloader.device.triton_kernels import launch_gather

            launch_gather(ids, parts, out, 7)
            if not _same(out, expected):
                yield "kernel"
        return
    pinned = _placed(parts, place, host_place=None)
    gather_rows(ids.to(place), pinned, out=out)
    if not _same(out, expected):
        yield "kernel"
    out.fill_(torch.nan)
    gather_rows_in_torch(ids.to(place), _placed(parts, place, host_place=place), out=out)
    if not _same(out, expected):
        yield "torch"


def _placed(parts: RowParts, place: torch.device, host_place: torch.device | None) -> RowParts:
    """Return ``parts`` on the device, and the host's pinned, or on the device too for operations of torch."""

    def move(table: RowTable | None, where: torch.device | None) -> RowTable | None:
        if table is None:
            return None
        rows = table.rows.pin_memory() if where is None else table.rows.to(where)
        return RowTable(rows=rows, scale=None if table.scale is None else table.scale.to(place))

    return RowParts(
        table=move(parts.table, place),
        slot_of=None if parts.slot_of is None else parts.slot_of.to(place),
        host=move(parts.host, host_place),
        is_host_by_id=parts.is_host_by_id,
    )


def _same(found: torch.Tensor, expected: torch.Tensor | np.ndarray) -> bool:
    wanted = torch.from_numpy(expected) if isinstance(expected, np.ndarray) else expected
    return torch.equal(found.cpu().view(torch.int32), wanted.view(torch.int32))
