"""Rates of rows to the device: rows that it holds, rows of the host, and both in one batch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from gpu_findings import GpuFinding, bounded, not_checked, reported
from gpu_place import gather_by
from gpu_sizes import seconds_of

from gloader.device import RowParts, RowTable, open_device
from gloader.device.cuda import gather_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpu_sizes import Clock, Sizes

SHAPES: Final = ((128, torch.float32), (100, torch.float32), (768, torch.float16), (128, torch.int8))
# Of the whole device; the first shape, and all that is read in place, is swept over them beside what gloader takes.
PROGRAMS: Final = (8, 16, 24, 32, 64, 132, 528, 2112)
CACHED_SHARE, SORTED_SHARE, SAMPLED_SHARE, STAGED_SHARE = 80.0, 75.0, 65.0, 75.0  # percent, see `_ways`
DEVICE_RATES = {"H200": 4200.0, "H100": 2900.0}  # GB/s, read and written
LINK_RATE = 50.0  # GB/s of Gen5 x16
_ID_SETS: Final = 8  # fresh ids for each repeat: 8 x 200 MB are more than any cache holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A table larger than any cache, the same rows on the host, and the ids of several batches."""

    dim: int
    dtype: torch.dtype
    table: torch.Tensor
    host: torch.Tensor  # pinned where there is a GPU
    ids: Sequence[torch.Tensor]  # on the device
    out: torch.Tensor  # (U, F) float32

    @property
    def name(self) -> str:
        """The shape and dtype of a row."""
        return f"{self.dim} x {str(self.dtype).removeprefix('torch.')}"

    @property
    def read_bytes(self) -> int:
        """Bytes of a batch's rows as they are stored."""
        return len(self.out) * self.dim * self.dtype.itemsize

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.out.nbytes


def check_rates(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Time the gather of cached rows beside a copy, that of host rows beside the link, and both together."""
    copy_rate, link_rate = _copy_rate(sizes), _link_rate(sizes)
    if sizes.is_gpu:
        least = next((rate for name, rate in DEVICE_RATES.items() if name in sizes.name), 0.0)
        yield bounded("copy within the device", copy_rate / 1e9, "GB/s", least=least, note="read and written")
        note = "bound of Gen5 x16, Gen4 has 24"
        yield bounded("copy from pinned memory", link_rate / 1e9, "GB/s", least=LINK_RATE, note=note)
    else:
        yield reported("copy within the host", copy_rate / 1e9, "GB/s", note="read and written")
        yield not_checked("gather of cached rows", must_be=f"at least {CACHED_SHARE:g} % of a copy")
        yield not_checked("gather of host rows", must_be=f"at least {SAMPLED_SHARE:g} % of the link")
    if sizes.is_gpu and gather_kernel(sizes.place) is None:
        yield not_checked("rates of the kernel", "the kernel does not run: the log says why")
        return
    for number, shape in enumerate(clock.each(SHAPES)):
        inputs = inputs_of(sizes, *shape)
        for way in clock.each(_ways(inputs, copy_rate, link_rate), lambda way: way[0]):
            yield from _timed(inputs, sizes, *way, is_swept=number == 0 and sizes.is_gpu)
        yield from _mixed(inputs, sizes, clock, link_rate)


Way = tuple[str, "Sequence[torch.Tensor]", RowParts, float, str, float]


def _ways(inputs: Inputs, copy_rate: float, link_rate: float) -> Iterator[Way]:
    """Yield name, ids, places, seconds of an ideal gather, what that is, and the percentage of it that is asked for."""
    place = inputs.out.device
    table, host = RowTable(rows=inputs.table), RowTable(rows=inputs.host)
    slot_of = torch.arange(len(inputs.table), dtype=torch.int32, device=place)
    in_order = [torch.sort(ids).values for ids in inputs.ids]
    staged = RowTable(rows=pinned((len(inputs.out), inputs.dim), torch.float32, place))
    copied_s, read_s = inputs.moved_bytes / copy_rate, inputs.read_bytes / link_rate
    by_id = RowParts(table=None, slot_of=None, host=host, is_host_by_id=True)
    by_map = RowParts(table=table, slot_of=slot_of, host=staged)
    all_cached = RowParts(table=table, slot_of=None, host=None)
    yield "cached", inputs.ids, all_cached, copied_s, "a copy", CACHED_SHARE
    yield "cached, by the map", inputs.ids, by_map, copied_s, "a copy", CACHED_SHARE
    yield "in place, sorted", in_order, by_id, read_s, "the link", SORTED_SHARE
    yield "in place, as sampled", inputs.ids, by_id, read_s, "the link", SAMPLED_SHARE
    alone = RowParts(table=None, slot_of=None, host=staged)
    yield "staged", inputs.ids, alone, inputs.out.nbytes / link_rate, "the link", STAGED_SHARE


def _timed(  # noqa: PLR0913 - a way is a row of a table
    inputs: Inputs,
    sizes: Sizes,
    name: str,
    ids: Sequence[torch.Tensor],
    parts: RowParts,
    ideal_s: float,
    what: str,
    least: float,
    *,
    is_swept: bool,
) -> Iterator[GpuFinding]:
    def share(programs: int | None) -> float:
        work = in_turn(ids, partial(_gather, programs, parts, inputs.out))
        return 100 * ideal_s / _seconds(work, sizes)

    title, found = f"gather of {inputs.name} rows, {name}", share(None)
    if not sizes.is_gpu:
        yield not_checked(title)
        return
    # Also of narrow rows, of which a program asks for fewer bytes at a time.
    is_swept = is_swept or parts.is_host_by_id
    sweep = ", ".join(f"{programs}: {share(programs):.0f}" for programs in PROGRAMS) if is_swept else ""
    note = f"by programs, {sweep}" if sweep else ""
    yield bounded(
        title, found, f"% of {what}", least=least, note=note, predicted="85 %" if what == "a copy" else "so"
    )


def _seconds(work: Callable[[], Any], sizes: Sizes) -> float:
    """Return the seconds of a gather; without a GPU, where they mean nothing, it runs once."""
    repeats, warm_up = (_ID_SETS, 3) if sizes.is_gpu else (1, 0)
    return seconds_of(work, sizes.place, repeats=repeats, warm_up=warm_up)


def _gather(programs: int | None, parts: RowParts, out: torch.Tensor, ids: torch.Tensor) -> None:
    gather_by(programs, ids, parts, out)


def _mixed(inputs: Inputs, sizes: Sizes, clock: Clock, link_rate: float) -> Iterator[GpuFinding]:
    """Time batches of which a part is on the device and the others are read in place."""
    num_nodes = len(inputs.table)
    for hits in clock.each((0.2, 0.5, 0.8), lambda hits: f"{inputs.name}, {hits:.0%} cached"):
        cached = int(hits * num_nodes)
        slot_of = torch.full((num_nodes,), -1, dtype=torch.int32, device=sizes.place)
        slot_of[:cached] = torch.arange(cached, dtype=torch.int32, device=sizes.place)
        table, host = RowTable(rows=inputs.table[:cached]), RowTable(rows=inputs.host)
        parts = RowParts(table=table, slot_of=slot_of, host=host, is_host_by_id=True)
        work = in_turn(inputs.ids, partial(_gather, None, parts, inputs.out))
        share = 100 * (1 - hits) * inputs.read_bytes / link_rate / _seconds(work, sizes)
        title = f"gather of {inputs.name} rows, {hits:.0%} cached, others in place"
        yield reported(title, share, "% of the link for the others") if sizes.is_gpu else not_checked(title)


def in_turn(ids: Sequence[torch.Tensor], work: Callable[[torch.Tensor], Any]) -> Callable[[], Any]:
    """Return a call of ``work`` that takes the next of ``ids`` each time."""
    turns = itertools.cycle(ids)
    return lambda: work(next(turns))


def inputs_of(sizes: Sizes, dim: int, dtype: torch.dtype) -> Inputs:
    """Return a table of ``dtype``, on the device and on the host, and ids.

    Parameters
    ----------
    sizes : of the table and the batch
    dim : columns
    dtype : of the rows
    """
    num_nodes = sizes.table_bytes // (dim * dtype.itemsize)
    num_rows = min(sizes.batch_rows, num_nodes)
    table = torch.empty(num_nodes, dim, dtype=dtype, device=sizes.place)
    table = table.normal_() if dtype.is_floating_point else table.random_(-99, 99)
    host = pinned((num_nodes, dim), dtype, sizes.place) if sizes.is_gpu else table
    if sizes.is_gpu:
        host.copy_(table)
    ids = [torch.randint(num_nodes, (num_rows,), device=sizes.place) for _ in range(_ID_SETS)]
    out = torch.empty(num_rows, dim, device=sizes.place)
    return Inputs(dim=dim, dtype=dtype, table=table, host=host, ids=ids, out=out)


def pinned(shape: tuple[int, int], dtype: torch.dtype, place: torch.device) -> torch.Tensor:
    """Return memory as that of the ring.

    Parameters
    ----------
    shape, dtype : of its rows
    place : the device that reads it
    """
    num_bytes = shape[0] * shape[1] * dtype.itemsize
    return torch.from_numpy(open_device(place).host_buffer(num_bytes)).view(dtype).view(shape)


def _copy_rate(sizes: Sizes) -> float:
    source = torch.ones(sizes.table_bytes // 8, dtype=torch.float32, device=sizes.place)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), sizes.place)


def _link_rate(sizes: Sizes) -> float:
    num_floats = min(sizes.table_bytes, 1 << 30) // 4
    source = torch.ones(num_floats, dtype=torch.float32, pin_memory=sizes.is_gpu)
    target = torch.empty(num_floats, dtype=torch.float32, device=sizes.place)
    return source.nbytes / seconds_of(lambda: target.copy_(source, non_blocking=True), sizes.place)
