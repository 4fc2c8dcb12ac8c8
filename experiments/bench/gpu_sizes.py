"""Input sizes of `gpu_check.py`, and time limits of its parts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

T = TypeVar("T")


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
    small_nodes: int  # of the graph that correctness is checked on, with fifteen edges a node
    streamed: int  # batches whose bits are checked behind a slow computation
    factor_side: int  # of the square matrices whose products keep the device busy
    hidden: int
    workdir: Path

    @property
    def is_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.place.type == "cuda"


def sizes_of(is_gpu: bool, *, workdir: Path, scale: float) -> Sizes:
    """Return what suits the GPU, or the CPU in its place.

    Parameters
    ----------
    is_gpu : whether there is one
    workdir : an empty folder
    scale : of tables and batches
    """
    if not is_gpu:
        return Sizes(
            place=torch.device("cpu"),
            name="the CPU, without a GPU",
            table_bytes=int(scale * 2**24),
            batch_rows=int(scale * 20_000),
            graph_nodes=int(scale * 50_000),
            graph_edges=int(scale * 750_000),
            batch_size=64,
            small_nodes=2000,
            streamed=8,
            factor_side=16,
            hidden=16,
            workdir=workdir,
        )
    free = torch.cuda.mem_get_info()[0]
    return Sizes(
        place=torch.device("cuda", torch.cuda.current_device()),
        name=torch.cuda.get_device_name(),
        table_bytes=min(int(scale * 5 * 2**30), free // 4),  # offsets beyond 32 bits
        batch_rows=int(scale * 400_000),
        graph_nodes=int(scale * 2_000_000),
        graph_edges=int(scale * 30_000_000),
        batch_size=1024,
        small_nodes=200_000,
        streamed=400,
        factor_side=4096,
        hidden=256,
        workdir=workdir,
    )


def _in_words(item: object) -> str:
    return ", ".join(map(str, item)) if isinstance(item, tuple) else str(item)


class Clock:
    """The time of one part: what it has no time for it leaves out, and says so.

    Parameters
    ----------
    seconds : from now on
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.left_out: list[str] = []

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(self._end - time.monotonic(), 0.0)

    def each(self, items: Iterable[T], name: Callable[[T], str] = _in_words) -> Iterator[T]:
        """Yield ``items`` while there is time, and note the ``name`` of each that is left out."""
        for item in items:
            if self.left_s > 0:
                yield item
            else:
                self.left_out.append(name(item))


def seconds_of(
    work: Callable[[], object], place: torch.device, *, repeats: int = 20, warm_up: int = 3
) -> float:
    """Return the seconds of one call: the median of ``repeats``, by the device's own clock where it has one.

    Parameters
    ----------
    work : called again and again; it brings other inputs each time where a cache would help it otherwise
    place : where it computes
    repeats, warm_up : calls that count, and calls before them
    """
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
