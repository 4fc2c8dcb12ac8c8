"""One run of the edge benchmark, in a process of its own; prints its figures as one JSON line.

topology_child.py '{"way": "sweep", "dataset": ..., "loader": {...}, ...}'
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain, count, islice, pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader import Dataset, Loader
from gloader.core.order import EpochOrder
from gloader.samplers import CscGraph, make_sampler
from gloader.ssd_store.cost.strategy import ramp
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray

_MEGA = 1e6
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What this process had used when it had been given so many batches."""

    batches: int
    seconds: float  # since the loader was called
    cpu_s: float
    thread_cpu_s: dict[str, float]  # of the threads that are alive, by their names without numbers
    bytes_read: int  # by the disk
    bytes_written: int


def moment(batches: int, called: float) -> Moment:
    """Return what this process has used."""
    moved = proc_io()
    return Moment(
        batches=batches,
        seconds=time.perf_counter() - called,
        cpu_s=time.process_time(),
        thread_cpu_s=thread_cpu_seconds(),
        bytes_read=moved["read_bytes"],
        bytes_written=moved["write_bytes"],
    )


def proc_io() -> dict[str, int]:
    """Return what this process had the disk do, and what its system calls moved."""
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def thread_cpu_seconds() -> dict[str, float]:
    """Return the processor seconds of every thread of this process that is alive, added up by name without number."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    seconds: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        name = re.sub(r"[-_]\d+$", "", names.get(int(task.name), "others"))
        seconds[name] += (int(fields[11]) + int(fields[12])) / _TICKS  # type: ignore[assignment]
    return dict(seconds)


def between(first: Moment, last: Moment) -> dict[str, Any]:
    """Return what a batch took between two moments. Pure."""
    batches = last.batches - first.batches
    threads = {
        name: (seconds - first.thread_cpu_s.get(name, 0.0)) / batches
        for name, seconds in last.thread_cpu_s.items()
    }
    return {
        "batches": batches,
        "first": first.batches,
        "batch_s": (last.seconds - first.seconds) / batches,
        "cpu_s": (last.cpu_s - first.cpu_s) / batches,
        "thread_cpu_s": {name: seconds for name, seconds in sorted(threads.items()) if seconds > 0},
        "bytes_read": (last.bytes_read - first.bytes_read) / batches,
        "bytes_written": (last.bytes_written - first.bytes_written) / batches,
    }


def loader_run(job: dict[str, Any]) -> dict[str, Any]:
    """Take batches of a `Loader`; where it sweeps, from one end of a topology superbatch to another."""
    dataset = Dataset.open(job["dataset"])
    called = time.perf_counter()
    with Loader(dataset, **job["loader"]) as loader:
        constructed = time.perf_counter() - called
        size = superbatch_of(loader)
        found = watched(endless(loader), job, called, size)
        return found | {
            "construction_s": constructed,
            "topology_superbatch": size,
            "passes": passes_of(loader) if job["loader"].get("trace") else [],
            "explain": loader.explain(),
            "planned_bytes": loader.memory_plan.total_bytes,
            "num_batches": len(loader),
        }


def superbatch_of(loader: Loader) -> int | None:
    """Return S_t; None where edges are not swept."""
    sweep = getattr(loader.memory_plan, "sweeps", None)
    return None if sweep is None else int(sweep.num_batches)


def borders(size: int | None, num_hops: int, job: dict[str, Any]) -> Iterator[int]:
    """Yield after how many batches to look: behind ``warm``, or where it sweeps at the ends of superbatches. Pure."""
    if size is None:
        yield from count(job["warm"], max(job["batches"] // 4, 1))
        return
    # As many small superbatches as there are hops, while the wavefront fills.
    yield from accumulate(chain(islice(ramp(size), num_hops), repeat(size)))


def steady_window(moments: Sequence[Moment], size: int | None) -> tuple[Moment, Moment, bool]:
    """Return the moments between which the pipeline was full, and whether it ever was; else the last two. Pure."""
    # Full once a whole superbatch was handed out while the next one was read.
    full = [one for one in moments if one.batches >= 2 * (size or 0)]
    if len(full) > 1:
        return full[0], full[-1], True
    return moments[-2], moments[-1], False


def endless(loader: Loader) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    while True:
        yield from loader


def watched(
    stream: Iterator[Any], job: dict[str, Any], called: float, size: int | None = None
) -> dict[str, Any]:
    """Take batches until enough lie between two looks at a full pipeline, or the time is over; return the figures.

    Parameters
    ----------
    stream : of batches
    job : ``batches`` that are wanted, ``deadline_s``, ``sink``, ``warm`` and the loader's settings
    called : when the clock began
    size : S_t; None where edges are not swept
    """
    sink = SINKS[job["sink"]]
    looks = borders(size, len(job["loader"]["fanouts"]), job)
    moments: list[Moment] = []
    stamps: list[float] = []
    look = next(looks)
    while True:
        sink(next(stream))
        stamps.append(time.perf_counter() - called)
        if len(stamps) < look:
            continue
        look = next(looks)
        moments.append(moment(len(stamps), called))
        if len(moments) < 2:
            continue
        first, last, is_full = steady_window(moments, size)
        if stamps[-1] > job["deadline_s"] or (is_full and last.batches - first.batches >= job["batches"]):
            break
    return {
        **between(first, last),
        "is_full": is_full,
        "first_batch_s": stamps[0],
        "batch_seconds_of_looks": {
            two.batches: between(one, two)["batch_s"] for one, two in pairwise(moments)
        },
        "start_s": first.seconds,
        "seconds": stamps[-1],
        "mapped_files": mapped_files(Path(job["dataset"])),
        "peak_resident_bytes": status_bytes("VmHWM"),
    }


def passes_of(loader: Loader) -> list[dict[str, Any]]:
    """Return the passes that the timeline of ``loader`` shows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        loader.write_trace(path)
        events = json.loads(path.read_text())["traceEvents"]
    return [
        {"seconds": event["dur"] / _MEGA, **event.get("args", {})}
        for event in events
        if event.get("ph") == "X" and event["name"].startswith("sweep")
    ]


def mapped_run(job: dict[str, Any]) -> dict[str, Any]:
    """Sample over a mapping of the edges: with our sampler, or hop by hop with numpy alone."""
    dataset = Dataset.open(job["dataset"])
    settings = job["loader"]
    called = time.perf_counter()
    indptr, indices = np.asarray(open_mapped(dataset, "indptr")), open_mapped(dataset, "indices")
    order = EpochOrder(
        seeds=dataset.train, num_nodes=dataset.num_nodes, batch_size=settings["batch_size"], seed=0
    )
    sample: Callable[[BatchId, IdArray], object]
    if job["way"] == "mapped":
        graph = CscGraph(indptr=indptr, indices=indices, validate=False)
        sample = make_sampler("neighbor", graph, tuple(settings["fanouts"]), 0).sample
    else:

        def sample(batch_id: BatchId, seeds: IdArray) -> object:
            return sample_memmap(indptr, indices, seeds, settings["fanouts"], batch_id)

    with in_threads(sample, order, job["threads"]) as stream:
        return watched(stream, job, called)


def open_mapped(dataset: Dataset, name: str) -> NDArray[Any]:
    """Return an array of ``dataset``, mapped."""
    return np.load(dataset.root / dataset.arrays[name].file, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]


def sample_memmap(
    indptr: NDArray[Any], indices: NDArray[Any], seeds: IdArray, fanouts: Sequence[int], batch_id: BatchId
) -> IdArray:
    """Return the nodes of a batch, ascending, as numpy users find them: each hop indexes the mapped edges once.

    All nodes so far draw in each hop, as in DGL. Positions ascend, which suits the kernel's read-ahead better than the
    order of a hash table does; a draw that repeats counts once; no blocks are made. This is less than a sampler does.
    """
    random = np.random.default_rng((batch_id.epoch, batch_id.index))
    nodes = np.sort(seeds)
    for fanout in fanouts:
        starts = indptr[nodes].astype(np.int64)
        degrees = indptr[nodes + 1] - starts
        drawn = starts[:, None] + (random.random((len(nodes), fanout)) * degrees[:, None]).astype(np.int64)
        all_of_them = starts[:, None] + np.arange(fanout)
        positions = np.where(degrees[:, None] <= fanout, all_of_them, drawn)
        wanted = np.arange(fanout) < degrees[:, None]
        nodes = np.union1d(nodes, indices[np.unique(positions[wanted])])
    return nodes


@contextmanager
def in_threads(
    sample: Callable[[BatchId, IdArray], object], order: EpochOrder, num_threads: int
) -> Iterator[Iterator[object]]:
    """Yield the batches of ``order`` in order, sampled by some threads that are as far ahead as those of a loader."""
    with ThreadPoolExecutor(num_threads, thread_name_prefix="bench-sample") as pool:
        waiting: deque[Any] = deque()

        def stream() -> Iterator[object]:
            for epoch in count():
                positions = order.epoch_positions(epoch)
                for index in range(order.num_batches):
                    seeds = order.seeds[order.batch_seeds(positions, index)]
                    waiting.append(pool.submit(sample, BatchId(epoch=epoch, index=index), seeds))
                    if len(waiting) > num_threads + 2:
                        yield waiting.popleft().result()

        try:
            yield stream()
        finally:
            for future in waiting:
                future.cancel()


def mapped_files(folder: Path) -> list[str]:
    """Return the files of ``folder`` that this process maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({Path(line.split(maxsplit=5)[5]).name for line in lines if f"{folder.resolve()}/" in line})


def status_bytes(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def touch(batch: Any) -> None:
    """Look at a number of every row."""
    float(batch.x[:, 0].sum())


SINKS: dict[str, Callable[[Any], None]] = {"null": lambda _: None, "touch": touch}


def main() -> None:
    """Run the job of the command line."""
    job = json.loads(sys.argv[1])
    run = mapped_run if job["way"] in {"mapped", "memmap"} else loader_run
    print(json.dumps(run(job)))


if __name__ == "__main__":
    main()
