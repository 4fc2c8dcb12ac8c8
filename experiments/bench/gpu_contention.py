"""The slowdown of a model on the device while host rows are gathered."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Final

import torch
from gpu_findings import GpuFinding, bounded, not_checked
from gpu_place import factor_of, gather_by
from gpu_rates import pinned

from gloader.device import RowParts, RowTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes

DIM: Final = 128
PROGRAMS: Final = (8, 16, 24, 32, 64, 132, 528)
MOST = 5.0  # percent that a multiplication may take longer, at the least programs with nearly all of the link
FULL_RATE = 0.95  # of the best
_GATHERS, _PRODUCTS = 12, 60


def check_contention(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Multiply matrices beside gathers of more and more programs, with both priorities of a stream."""
    for priority in clock.each((0, -1), lambda priority: f"priority {priority}"):
        name = f"slow-down of a multiplication beside the gather, priority {priority}"
        if not sizes.is_gpu:
            yield not_checked(name, must_be=f"at most {MOST:g} %")
            continue
        found = dict(_sweep(sizes, clock, priority))
        if not found:
            yield not_checked(name, "no time was left")
            continue
        best = max(rate for rate, _ in found.values())
        programs = min(each for each, (rate, _) in found.items() if rate >= FULL_RATE * best)
        swept = ", ".join(f"{n}: {rate:.0f} GB/s {slow:.0f} %" for n, (rate, slow) in found.items())
        yield bounded(
            name,
            found[programs][1],
            "%",
            most=MOST,
            note=f"with {programs} programs, the least that reach {100 * FULL_RATE:g} % of the rate; {swept}",
            predicted="528 programs: 15 to 40 %, 24 to 32: under 5 %",
        )


def _sweep(sizes: Sizes, clock: Clock, priority: int) -> Iterator[tuple[int, tuple[float, float]]]:
    """Yield for each number of programs the GB/s of the gather, and how much longer a product takes, in percent."""
    host = RowTable(rows=pinned((sizes.table_bytes // (4 * DIM), DIM), torch.float32, sizes.place).fill_(1))
    ids = [torch.randint(len(host.rows), (sizes.batch_rows,), device=sizes.place) for _ in range(_GATHERS)]
    out = torch.empty(sizes.batch_rows, DIM, device=sizes.place)
    parts = RowParts(table=None, slot_of=None, host=host, is_host_by_id=True)
    factor = factor_of(sizes).bfloat16()
    gather_by(PROGRAMS[0], ids[0], parts, out)  # compiled before anything is timed
    _products(factor, sizes)
    alone = _products(factor, sizes)
    new_stream: Any = torch.cuda.Stream
    new_event: Any = torch.cuda.Event
    side = new_stream(sizes.place, priority=priority)
    for programs in clock.each(PROGRAMS, lambda programs: f"{programs} programs"):
        torch.cuda.synchronize(sizes.place)
        begin, end = new_event(enable_timing=True), new_event(enable_timing=True)
        with torch.cuda.stream(side):
            begin.record()
            for each in itertools.islice(itertools.cycle(ids), _GATHERS):
                gather_by(programs, each, parts, out)
            end.record()
        beside = _products(factor, sizes)
        torch.cuda.synchronize(sizes.place)
        rate = _GATHERS * out.nbytes / begin.elapsed_time(end) / 1e6
        yield programs, (rate, 100 * (beside / alone - 1))


def _products(factor: torch.Tensor, sizes: Sizes) -> float:
    began = time.perf_counter()
    for _ in range(_PRODUCTS):
        torch.mm(factor, factor)
    torch.cuda.current_stream(sizes.place).synchronize()
    return time.perf_counter() - began
