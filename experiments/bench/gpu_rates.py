"""How fast rows reach the device: those it holds, and those of the host; beside what others do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from gpu_findings import GpuFinding, Sizes, not_checked, promised, seconds_of

from gloader.device import RowParts, RowTable, gather_rows, has_triton
from gloader.device.row_gather import PROGRAMS_PER_MULTIPROCESSOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPES = ((128, torch.float32), (100, torch.float32), (768, torch.float16))
PROGRAMS = (1, 2, 4, 8, 16)  # a multiprocessor
CACHED_SHARE, HOST_SHARE = 80.0, 85.0  # percent of the device's copies, of the link's rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A table larger than any cache, the same rows on the host, and the ids of a batch."""

    dim: int
    dtype: torch.dtype
    table: torch.Tensor
    host: torch.Tensor  # pinned where there is a GPU
    ids: torch.Tensor  # on the device
    out: torch.Tensor  # (U, F) float32

    @property
    def name(self) -> str:
        """The shape and dtype of a row."""
        return f"{self.dim} x {str(self.dtype).removeprefix('torch.')}"

    @property
    def read_bytes(self) -> int:
        """Bytes of the rows as they are stored."""
        return len(self.ids) * self.dim * self.dtype.itemsize

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.out.nbytes


def check_rates(sizes: Sizes) -> Iterator[GpuFinding]:
    """Time the gather of cached rows beside a copy, and that of host rows beside the link."""
    copy_rate, link_rate = _copy_rate(sizes), _link_rate(sizes)
    yield _plain("copy within the device", copy_rate / 1e9, "GB/s, read and written")
    yield _plain(
        "copy from pinned memory" if sizes.is_gpu else "copy to the host itself", link_rate / 1e9, "GB/s"
    )
    if not sizes.is_gpu:
        yield not_checked("gather of cached rows", "there is no GPU", promise=f"at least {CACHED_SHARE:g} %")
        yield not_checked("gather of host rows", "there is no GPU", promise=f"at least {HOST_SHARE:g} %")
    for dim, dtype in SHAPES:
        inputs = _inputs(sizes, dim, dtype)
        if sizes.is_gpu and has_triton():
            yield from _kernel_rates(inputs, copy_rate, link_rate)
        yield from _others(inputs, sizes)


def _kernel_rates(inputs: Inputs, copy_rate: float, link_rate: float) -> Iterator[GpuFinding]:
    place = inputs.ids.device
    table, host = RowTable(rows=inputs.table), RowTable(rows=inputs.host)
    slot_of = torch.arange(len(inputs.table), dtype=torch.int32, device=place)
    in_order = torch.sort(inputs.ids).values
    staged = RowTable(rows=torch.empty_like(inputs.out, device="cpu").pin_memory())
    all_cached = RowParts(table=table, slot_of=None, host=None)
    by_the_map = RowParts(table=table, slot_of=slot_of, host=staged)
    in_place = RowParts(table=None, slot_of=None, host=host, is_host_by_id=True)
    all_staged = RowParts(table=None, slot_of=None, host=staged)
    for name, ids, parts in (
        ("cached", inputs.ids, all_cached),
        ("cached, by the map", inputs.ids, by_the_map),
    ):
        rates = _sweep(inputs, ids, parts, inputs.moved_bytes / copy_rate)
        yield _swept(f"gather of {inputs.name} rows, {name}", rates, "% of a copy", CACHED_SHARE)
    for name, ids, parts, num_bytes in (
        ("in place, sorted", in_order, in_place, inputs.read_bytes),
        ("in place, as sampled", inputs.ids, in_place, inputs.read_bytes),
        ("staged", inputs.ids, all_staged, inputs.out.nbytes),
    ):
        rates = _sweep(inputs, ids, parts, num_bytes / link_rate)
        yield _swept(f"gather of {inputs.name} rows, {name}", rates, "% of the link", HOST_SHARE)


def _sweep(inputs: Inputs, ids: torch.Tensor, parts: RowParts, ideal_s: float) -> dict[int, float]:
    """Return the percentage of the ideal rate with each number of programs a multiprocessor."""
    count = torch.cuda.get_device_properties(ids.device).multi_processor_count

    def gather(programs: int) -> Callable[[], None]:
        return lambda: gather_rows(ids, parts, out=inputs.out, max_programs=programs)

    return {each: 100 * ideal_s / seconds_of(gather(each * count), ids.device) for each in PROGRAMS}


def _swept(name: str, rates: dict[int, float], unit: str, least: float) -> GpuFinding:
    sweep = ", ".join(f"{each}: {rate:.0f}" for each, rate in rates.items())
    note = f"by programs a multiprocessor, {sweep}"
    return promised(name, rates[PROGRAMS_PER_MULTIPROCESSOR], unit=unit, least=least, note=note)


def _others(inputs: Inputs, sizes: Sizes) -> Iterator[GpuFinding]:
    """Time what is usually done instead."""
    on_host = inputs.ids.cpu()

    def index_and_copy() -> None:
        inputs.host[on_host].to(sizes.place).float()

    seconds = seconds_of(index_and_copy, sizes.place, repeats=5, warm_up=1)
    yield _plain(f"x[ids].to(device), {inputs.name}", inputs.read_bytes / seconds / 1e9, "GB/s of rows")
    ours = RowParts(table=None, slot_of=None, host=RowTable(rows=inputs.host), is_host_by_id=True)
    seconds = seconds_of(lambda: gather_rows(inputs.ids, ours, out=inputs.out), sizes.place, repeats=5)
    yield _plain(
        f"gather_rows from the host, {inputs.name}", inputs.read_bytes / seconds / 1e9, "GB/s of rows"
    )
    yield _dgl(inputs, sizes)


def _dgl(inputs: Inputs, sizes: Sizes) -> GpuFinding:
    name = f"dgl.utils.gather_pinned_tensor_rows, {inputs.name}"
    if not sizes.is_gpu:
        return not_checked(name, "there is no GPU")
    try:
        from dgl.utils import gather_pinned_tensor_rows, pin_memory_inplace
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being imported
        return not_checked(name, f"DGL is not there: {type(error).__name__}")
    try:
        host = inputs.host.clone()
        handle = pin_memory_inplace(host)
        seconds = seconds_of(lambda: gather_pinned_tensor_rows(host, inputs.ids), sizes.place)
        del handle
    except Exception as error:  # noqa: BLE001 - a build without CUDA says so in its own way
        return not_checked(name, f"DGL cannot: {type(error).__name__}")
    return _plain(name, inputs.read_bytes / seconds / 1e9, "GB/s of rows")


def _inputs(sizes: Sizes, dim: int, dtype: torch.dtype) -> Inputs:
    num_nodes = sizes.table_bytes // (dim * dtype.itemsize)
    num_rows = min(sizes.batch_rows, num_nodes)
    table = torch.randn(
        num_nodes, dim, dtype=torch.float32 if not sizes.is_gpu else dtype, device=sizes.place
    )
    table = table.to(dtype)
    host = table.cpu().pin_memory() if sizes.is_gpu else table
    ids = torch.randperm(num_nodes)[:num_rows].to(sizes.place)
    out = torch.empty(num_rows, dim, device=sizes.place)
    return Inputs(dim=dim, dtype=dtype, table=table, host=host, ids=ids, out=out)


def _copy_rate(sizes: Sizes) -> float:
    source = torch.ones(sizes.table_bytes // 4, dtype=torch.float32, device=sizes.place)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), sizes.place)


def _link_rate(sizes: Sizes) -> float:
    num_floats = min(sizes.table_bytes, 1 << 30) // 4
    source = torch.ones(num_floats, dtype=torch.float32, pin_memory=sizes.is_gpu)
    target = torch.empty(num_floats, dtype=torch.float32, device=sizes.place)
    return source.nbytes / seconds_of(lambda: target.copy_(source, non_blocking=True), sizes.place)


def _plain(name: str, value: float, unit: str) -> GpuFinding:
    return GpuFinding(name=name, verdict="for comparison", value=value, unit=unit)
