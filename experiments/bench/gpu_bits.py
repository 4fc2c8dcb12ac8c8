"""Checks that every way of a row to the device keeps its bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from gpu_findings import GpuFinding, compared, not_checked
from gpu_place import device_of

from gloader.device import RowParts, RowTable, has_triton, open_device
from gloader.device.cuda import gather_kernel
from gloader.device.row_table import gather_rows_in_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes

NUM_NODES, NUM_CACHED, NUM_ROWS = 5000, 2000, 3000
DIMS = (1, 100, 602)  # each is compiled by itself, for every dtype and combination of places: 0.6 s each
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8)
INTERPRETED_DIMS = (1, 100)  # the interpreter takes its time
# Bits of a NaN with a payload, a signalling one, both infinities, -0, the smallest, a middle and the largest subnormal.
SPECIAL: Final = {
    torch.float32: (
        np.uint32,
        (0x7FC12345, 0x7F812345, 0x7F800000, 0xFF800000, 1 << 31, 1, 0x80012345, 0x007FFFFF),
    ),
    torch.float16: (np.uint16, (0x7E12, 0x7C12, 0x7C00, 0xFC00, 0x8000, 1, 0x8123, 0x03FF)),
    torch.bfloat16: (np.uint16, (0x7FD2, 0x7F92, 0x7F80, 0xFF80, 0x8000, 1, 0x8012, 0x007F)),
}


def check_bits(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Gather with the kernel and with torch, of every dtype, from every combination of places."""
    if not has_triton() or (sizes.is_gpu and gather_kernel(sizes.place) is None):
        yield not_checked("fused gather", "Triton is missing or cannot launch: the log says why")
    how = "kernel and torch on the device" if sizes.is_gpu else "kernel under the interpreter"
    for where in clock.each(("device", "host")):
        yield _far_rows(sizes, where)
    for dtype in clock.each(DTYPES):
        wrong = []
        for dim in clock.each(DIMS if sizes.is_gpu else INTERPRETED_DIMS, lambda dim: f"{dim} columns"):
            ids, cases = _cases(dim, dtype, sizes)
            for name, parts in cases.items():
                expected = torch.empty(len(ids), dim)
                gather_rows_in_torch(ids, parts, out=expected)
                # A GPU's conversion gives every NaN of float16 the same bits.
                ways = _differing(ids, parts, expected, sizes, any_nan=dtype == torch.float16)
                wrong += [f"{name}, {dim} columns, {way}" for way in ways]
        yield compared(f"gather of {_name(dtype)}: {how}", not wrong, "; ".join(wrong))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cases(dim: int, dtype: torch.dtype, sizes: Sizes) -> tuple[torch.Tensor, dict[str, RowParts]]:
    smaller = 1 if sizes.is_gpu else 25  # the interpreter takes its time
    nodes, cached, rows = NUM_NODES // smaller, NUM_CACHED // smaller, NUM_ROWS // smaller
    generator = torch.Generator().manual_seed(dim)

    def table(num: int, kind: torch.dtype) -> RowTable:
        values = (20 * torch.randn(num, dim, generator=generator)).to(kind)
        if kind == torch.int8:
            scale = torch.rand(num, generator=generator)
            scale[::7] *= 1e-42  # a subnormal factor
            return RowTable(rows=values, scale=scale)
        bits, special = SPECIAL[kind]
        chosen = np.resize(np.array(special, dtype=bits), len(values[::3]))
        values[::3, 0] = torch.from_numpy(chosen.view(f"i{chosen.itemsize}")).view(kind)
        return RowTable(rows=values)

    ids = torch.randperm(nodes, generator=generator)[:rows]
    slot_of = torch.full((nodes,), -1, dtype=torch.int32)
    slot_of[torch.randperm(nodes, generator=generator)[:cached]] = torch.arange(cached, dtype=torch.int32)
    some, every, staged = table(cached, dtype), table(nodes, dtype), table(rows, torch.float32)
    # Factors of the host's part are by node, whichever way it has the rows.
    stored = RowTable(rows=table(rows, dtype).rows, scale=every.scale)
    return ids, {
        "cached and staged": RowParts(table=some, slot_of=slot_of, host=staged),
        "cached and in place": RowParts(table=some, slot_of=slot_of, host=every, is_host_by_id=True),
        "all cached": RowParts(table=every, slot_of=None, host=None),
        "all in place": RowParts(table=None, slot_of=None, host=every, is_host_by_id=True),
        "cached and staged as stored": RowParts(table=some, slot_of=slot_of, host=stored),
        "all staged as stored": RowParts(table=None, slot_of=None, host=stored),
    }


def _differing(
    ids: torch.Tensor, parts: RowParts, expected: torch.Tensor, sizes: Sizes, *, any_nan: bool
) -> Iterator[str]:
    """Yield the ways of gathering whose result is another.

    Parameters
    ----------
    ids, parts : a batch on the host
    expected : its rows
    sizes : say where to
    any_nan : one that is none is as good as any other
    """
    place = sizes.place
    out = torch.full(expected.shape, torch.nan, device=place)
    if not sizes.is_gpu:
        if has_triton():
            from gloader.device.triton_kernels import launch_gather

            launch_gather(ids, parts, out, 7)
            if not _same(out, expected, any_nan=any_nan):
                yield "kernel"
        return
    launch = gather_kernel(place)
    if launch is not None:
        launch(ids.to(place), _placed(parts, place, host_place=None), out, None)
        if not _same(out, expected, any_nan=any_nan):
            yield "kernel"
    out.fill_(torch.nan)
    gather_rows_in_torch(ids.to(place), _placed(parts, place, host_place=place), out=out)
    if not _same(out, expected, any_nan=any_nan):
        yield "torch"


def _placed(parts: RowParts, place: torch.device, host_place: torch.device | None) -> RowParts:
    """Return ``parts`` on the device, and the host's pinned, or on the device too for operations of torch."""

    def move(table: RowTable | None, where: torch.device | None) -> RowTable | None:
        if table is None:
            return None
        rows = _pinned(table.rows, place) if where is None else table.rows.to(where)
        return RowTable(rows=rows, scale=None if table.scale is None else table.scale.to(place))

    return RowParts(
        table=move(parts.table, place),
        slot_of=None if parts.slot_of is None else parts.slot_of.to(place),
        host=move(parts.host, host_place),
        is_host_by_id=parts.is_host_by_id,
    )


def _pinned(rows: torch.Tensor, place: torch.device) -> torch.Tensor:
    """Return a copy of ``rows`` in memory as that of the ring."""
    buffer = torch.from_numpy(open_device(place).host_buffer(rows.nbytes))
    return buffer.view(rows.dtype).view(rows.shape).copy_(rows)


def _far_rows(sizes: Sizes, where: str) -> GpuFinding:
    """Gather the last rows of a table whose offsets, in bytes and in elements, exceed 32 bits."""
    dim = 100
    num_nodes = sizes.table_bytes // dim
    # On the host the memory is not filled but by the rows that are read: pages of zeros cost nothing to make.
    table = torch.zeros(num_nodes, dim, dtype=torch.int8, device=sizes.place if where == "device" else "cpu")
    ids = torch.cat([torch.arange(8), num_nodes // 2 + torch.arange(8), num_nodes - 1 - torch.arange(8)])
    for number, node in enumerate(ids.tolist()):
        table[node] = number - 12
    rows, device = RowTable(rows=table, scale=torch.ones(num_nodes, device=sizes.place)), device_of(sizes)
    pinned = device.pin(table.numpy()) if where == "host" else None
    if where == "host":
        parts = RowParts(table=None, slot_of=None, host=rows, is_host_by_id=True)
    else:
        parts = RowParts(table=rows, slot_of=None, host=None)
    out = torch.full((len(ids), dim), torch.nan, device=sizes.place)
    device.gather(ids.to(sizes.place), parts, out)
    device.mark().wait()
    expected = (torch.arange(len(ids)) - 12).float()[:, None].expand(-1, dim)
    is_same = torch.equal(out.cpu(), expected)
    if pinned is not None:
        pinned.close()
    return compared(f"first and last rows of {table.nbytes / 1e9:,.1f} GB on the {where}", is_same)


def _same(found: torch.Tensor, expected: torch.Tensor, *, any_nan: bool) -> bool:
    found = found.cpu()
    free = torch.isnan(found) & torch.isnan(expected) & any_nan
    bits = (each.view(torch.int32).masked_fill(free, 0) for each in (found, expected))
    return torch.equal(*bits)
