"""Processes of their own: two ranks that share a loader on one device, and ends by signals with work in flight."""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.append(str(Path(__file__).resolve().parents[2]))

from gpu_findings import GpuFinding, bounded, required
from gpu_place import batch_digest, cache_bytes, loader_on, small_graph
from gpu_sizes import Sizes, sizes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock

    from gloader import Dataset

_SETTINGS: Final[dict[str, Any]] = {
    "threads": 1,
    "batch_size": 32,
    "fanouts": (10, 5),
    "memory_budget": "1GB",
}
_BATCHES: Final = 6
_END_S: Final = 5.0  # by which a signal has ended it
# For children to start, compile with numba and end, also where the clock gives less: what takes longer hangs.
_LEAST_S: Final = 60.0
_CRASHES: Final = (-signal.SIGABRT, -signal.SIGSEGV)


def check_ranks(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Let two ranks share a loader on one device, whose batches must be those of a private one on the CPU."""
    small_graph(sizes)
    deadline = _deadline(clock)
    children = [_start(sizes, "rank", str(rank)) for rank in (0, 1)]
    try:
        for rank, child in enumerate(children):
            out, err = _outcome(child, deadline)
            log = [line for line in err.splitlines() if "pinned" in line]
            said = out.strip() or err.strip()[-300:] or "not a word"
            note = f"{_status(child)}, {said}, {log or 'no fault of pinning'}"
            is_right = child.returncode == 0 and json.loads(out or "{}").get("same") is True and not log
            name = f"rank {rank} of two on one device that share a loader"
            yield required(name, is_right, "status 0, the CPU's batches, pinned", note=note, predicted="so")
    finally:
        _end(children)


def check_ends(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Interrupt a loader while batches are under way."""
    small_graph(sizes)
    for number in clock.each((signal.SIGINT, signal.SIGTERM), lambda number: number.name):
        name = f"{number.name} with work in flight"
        child = _start(sizes, "endless")
        try:
            assert child.stdout is not None  # noqa: S101 - by Popen
            deadline = _deadline(clock)
            if not _has_begun(child, deadline):
                note = _outcome(child, deadline)[1][-300:]
                yield required(name, False, "batches", note=f"{_status(child)} before the first one: {note}")
                continue
            threading.Thread(target=child.stdout.read, daemon=True).start()
            time.sleep(0.5)
            child.send_signal(number)
            began = time.perf_counter()
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                yield required(name, False, "an end", note="it went on for 30 s")
                continue
            took = time.perf_counter() - began
            note = f"status {child.returncode}"
            crashed = child.returncode in _CRASHES
            yield required(f"{name}: no crash", not crashed, "no -6 and no -11", note=note, predicted="so")
            yield bounded(name, took, "s", most=_END_S, is_right=False, note=note, predicted="under 5 s")
        finally:
            _end([child])


def _start(sizes: Sizes, *words: str) -> subprocess.Popen[str]:
    place = "gpu" if sizes.is_gpu else "cpu"
    return subprocess.Popen(
        [sys.executable, __file__, place, str(sizes.workdir), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _deadline(clock: Clock) -> float:
    return time.monotonic() + max(clock.left_s, _LEAST_S)


def _has_begun(child: subprocess.Popen[str], deadline: float) -> bool:
    """Return whether ``child`` printed its first line in time."""
    assert child.stdout is not None  # noqa: S101 - by Popen
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        came = selector.select(max(deadline - time.monotonic(), 0))
    return bool(came and child.stdout.readline())


def _outcome(child: subprocess.Popen[str], deadline: float) -> tuple[str, str]:
    try:
        return child.communicate(timeout=max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate()


def _status(child: subprocess.Popen[str]) -> str:
    is_ended = child.returncode == -signal.SIGKILL
    return "ended by us, as it hung" if is_ended else f"status {child.returncode}"


def _end(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        child.kill()
        child.wait()
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def _rank(sizes: Sizes, dataset: Dataset, rank: int) -> None:
    """Compare a rank's batches with those of a private loader on the CPU."""
    from torch import distributed

    store = f"file://{sizes.workdir}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    found = []
    for settings in (
        {"device_cache": cache_bytes(dataset, 0.1), "sharing": "shared"},
        {"device": "cpu", "device_cache": 0, "sharing": "private"},
    ):
        with loader_on(sizes, dataset, **_SETTINGS, **settings) as loader:
            found.append([batch_digest(batch) for batch in islice(loader, _BATCHES)])
    print(json.dumps({"same": found[0] == found[1], "batches": len(found[0])}), flush=True)
    distributed.destroy_process_group()


def _endless(sizes: Sizes, dataset: Dataset) -> None:
    """Load for ever, with the rows of each batch still being added up when the next is asked for."""
    with loader_on(
        sizes, dataset, **_SETTINGS, device_cache=cache_bytes(dataset, 0.1), features="ram"
    ) as loader:
        while True:
            for batch in loader:
                batch.x.sum()
                print("batch", flush=True)


def _child(place: str, workdir: str, what: str, *rest: str) -> None:
    sizes = sizes_of(place == "gpu", workdir=Path(workdir), scale=1.0)
    dataset = small_graph(sizes)
    if what == "rank":
        _rank(sizes, dataset, int(rest[0]))
    else:
        _endless(sizes, dataset)


if __name__ == "__main__":
    _child(*sys.argv[1:])
