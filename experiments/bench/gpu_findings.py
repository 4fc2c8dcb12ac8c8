"""What `gpu_check.py` finds, and how large its inputs are."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

Verdict = Literal["ok", "wrong", "short of it", "for comparison", "not checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFinding:
    """One thing that was checked or measured."""

    name: str
    verdict: Verdict
    value: float | None = None
    unit: str = ""
    promise: str = ""
    note: str = ""

    @property
    def measured(self) -> str:
        """The value and what there is to say about it."""
        value = "" if self.value is None else f"{self.value:,.4g} {self.unit}".strip()
        return f"{value} ({self.note})" if value and self.note else value or self.note

    @property
    def row(self) -> str:
        """The finding as a row of a Markdown table."""
        return f"| {self.name} | {self.measured} | {self.promise} | {self.verdict} |"

    @property
    def line(self) -> str:
        """The finding as a line of text."""
        promise = f", promised {self.promise}" if self.promise else ""
        return f"{self.verdict:>14}  {self.name}: {self.measured}{promise}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Inputs that a device works on for a while."""

    place: torch.device
    name: str
    table_bytes: int  # larger than any cache of the device
    batch_rows: int
    graph_nodes: int
    graph_edges: int
    batch_size: int
    workdir: Path

    @property
    def is_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.place.type == "cuda"


def sizes_of(is_gpu: bool, *, workdir: Path | None, scale: float) -> Sizes:
    """Return what suits the GPU, or the CPU in its place."""
    folder = Path(tempfile.gettempdir()) if workdir is None else workdir
    if not is_gpu:
        return Sizes(
            place=torch.device("cpu"),
            name="the CPU, without a GPU",
            table_bytes=int(scale * 2**24),
            batch_rows=int(scale * 20_000),
            graph_nodes=int(scale * 50_000),
            graph_edges=int(scale * 750_000),
            batch_size=256,
            workdir=folder,
        )
    return Sizes(
        place=torch.device("cuda", torch.cuda.current_device()),
        name=torch.cuda.get_device_name(),
        table_bytes=int(scale * 2**32),
        batch_rows=int(scale * 400_000),
        graph_nodes=int(scale * 4_000_000),
        graph_edges=int(scale * 60_000_000),
        batch_size=1024,
        workdir=folder,
    )


def promised(
    name: str,
    value: float,
    *,
    unit: str,
    least: float | None = None,
    most: float | None = None,
    note: str = "",
) -> GpuFinding:
    """Return a measurement beside what it should be at least, or at most."""
    keeps = (least is None or value >= least) and (most is None or value <= most)
    promise = f"at least {least:g} {unit}" if least is not None else f"at most {most:g} {unit}"
    return GpuFinding(
        name=name,
        verdict="ok" if keeps else "short of it",
        value=value,
        unit=unit,
        promise=promise,
        note=note,
    )


def not_checked(name: str, why: str, *, promise: str = "") -> GpuFinding:
    """Return that something could not be checked."""
    return GpuFinding(name=name, verdict="not checked", note=why, promise=promise)


def compared(name: str, is_same: bool, note: str = "") -> GpuFinding:
    """Return whether two results are the same bits."""
    return GpuFinding(
        name=name,
        verdict="ok" if is_same else "wrong",
        note=note or ("the same bits" if is_same else "other bits"),
        promise="the same bits as the CPU",
    )


def seconds_of(
    work: Callable[[], object], place: torch.device, *, repeats: int = 20, warm_up: int = 3
) -> float:
    """Return the seconds of one call: the median of ``repeats``, by the device's own clock where it has one."""
    for _ in range(warm_up):
        work()
    if place.type != "cuda":
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
        return sorted(times)[len(times) // 2]
    new_event: Any = torch.cuda.Event
    marks = [(new_event(enable_timing=True), new_event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in marks:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize(place)
    return float(sorted(begin.elapsed_time(end) for begin, end in marks)[len(marks) // 2]) / 1e3
