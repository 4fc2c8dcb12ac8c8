"""Children that iterate a loader out of core and are interrupted or killed; prints one JSON line with the counts.

    ends_driver.py DATASET SPILL SEED COUNT

Three of eight children get a SIGINT after a random time: they must end by KeyboardInterrupt within 5 s and leave no
thread, descriptor or file. Three get a SIGKILL, and the next loader must remove what they left, and go on with the
batches of a loader that has all in memory. Two are programs that
handle no signal and close nothing, up to the end of their interpreter; one gets a SIGINT, one a SIGTERM, and neither
leaves a file.

It imports the package once and forks, which takes milliseconds where a new interpreter takes a second.
"""

from __future__ import annotations

import gc
import itertools
import json
import mmap
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gloader
from gloader.testing.resume import batch_digest

if TYPE_CHECKING:
    from collections.abc import Callable

_PROMPT_S = 5.0
_LONGEST_S = 0.25
_INTERRUPTED, _NOT_CLEAN = 42, 43
_NOWHERE = -1  # before the first batch
_RESUMED = 6  # batches: over the end of what a killed child had made, and over a superbatch's
_TOPOLOGIES = {"packed": "sweep", "staged": "ram", "direct": "sweep"}
_STRATEGIES = tuple(_TOPOLOGIES)
_IN_MEMORY: dict[str, Any] = {"features": "ram", "topology": "ram"}


def open_loader(dataset: Path, spill: Path, strategy: str) -> gloader.Loader | gloader.HeteroLoader:
    """Return a loader of a dataset of one node type or of several."""
    place: dict[str, Any] = {
        "features": "ssd",
        "cache": 10_000,
        "superbatch": 4,
        "io_strategy": strategy,
        "topology": _TOPOLOGIES.get(strategy),
        "spill_dir": spill,
        "spill_budget": "64MB",  # also where temporary files are in memory
    }
    opened = gloader.Dataset.open(dataset)
    kind = gloader.HeteroLoader if opened.kind == "hetero" else gloader.Loader
    return kind(
        opened,
        fanouts=[4, 3],
        batch_size=16,
        memory_budget="200MB",
        threads=2,
        **(_IN_MEMORY if strategy == "memory" else place),
    )


def iterate(
    dataset: Path,
    spill: Path,
    strategy: str,
    epochs: int | None = None,
    place: np.ndarray[Any, Any] | None = None,
) -> None:
    """Take batches; ``place`` is told of the epoch and the index of each, in one word."""
    with open_loader(dataset, spill, strategy) as loader:
        while epochs is None or loader.epoch < epochs:
            for batch in loader:
                if place is not None:
                    place[0] = batch.id.epoch << 32 | batch.id.index
                del batch


def batches_from(loader: gloader.Loader | gloader.HeteroLoader, place: int) -> list[str]:
    """Return the digests of some batches from a place on, which a state of this loader names."""
    loader.load_state_dict(loader.state_dict() | {"next": [place >> 32, place & 0xFFFFFFFF]})
    stream = itertools.chain.from_iterable(itertools.repeat(loader))
    return [batch_digest(batch) for batch, _ in zip(stream, range(_RESUMED), strict=False)]


def plain_loop(dataset: Path, spill: Path, strategy: str) -> None:
    loader = open_loader(dataset, spill, strategy)
    for _ in range(2):
        for batch in loader:
            del batch
    globals()["kept"] = loader  # until the end of the interpreter


def what_is_left(dataset: Path, spill: Path) -> list[str]:
    gc.collect()
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("gloader")]
    files = [path.name for path in spill.iterdir()]
    targets = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]  # noqa: PTH115
    ours = (str(dataset), str(spill), "io_uring")
    opened = [target for target in targets if any(part in target for part in ours)]
    return threads + files + opened


def until_interrupted(dataset: Path, spill: Path, strategy: str) -> int:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        iterate(dataset, spill, strategy)
    except KeyboardInterrupt:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    left = what_is_left(dataset, spill)
    if left:
        print("an interrupted child left", left, file=sys.stderr, flush=True)
    return _NOT_CLEAN if left else _INTERRUPTED


def fork_program(dataset: Path, spill: Path, strategy: str) -> int:
    """Start a plain loop in a child that ends as every program does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    child = os.fork()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    if child == 0:
        plain_loop(dataset, spill, strategy)
        sys.exit()
    return child


def fork(action: Callable[[], int]) -> int:
    """Start ``action`` in a child that cannot be interrupted before it says so."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = action()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    return child


def end_of(child: int, within_s: float = _PROMPT_S) -> str:
    """Wait for a child that was signalled; say how it ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return "killed" if os.WIFSIGNALED(status) else f"exit {os.waitstatus_to_exitcode(status)}"
        time.sleep(0.002)
    os.kill(child, signal.SIGABRT)  # with faulthandler, the stacks go to stderr
    os.waitpid(child, 0)
    return "did not end"


def age(folder: Path) -> None:
    """Make what a dead child left an hour old: a folder without an owner is removed when it is old."""
    then = time.time() - 3600
    for path in folder.iterdir():
        os.utime(path, (then, then))


def main() -> None:
    dataset, spill = map(Path, sys.argv[1:3])
    seed, count = map(int, sys.argv[3:])
    draw = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    for strategy in (*_STRATEGIES, "memory"):
        iterate(dataset, spill, strategy, epochs=2)  # loads the kernels
    # What is imported is not collected again by each child: touching it would copy hundreds of MB.
    gc.collect()
    gc.freeze()
    found: Counter[str] = Counter()
    place = np.frombuffer(mmap.mmap(-1, 8), np.int64)  # shared with children
    begun = time.monotonic()
    os.waitpid(fork_program(dataset, spill, "packed"), 0)
    whole_s = time.monotonic() - begun
    for number in range(count):
        strategy = draw.choice(_STRATEGIES)
        after_s = draw.random() * _LONGEST_S
        if number % 8 >= 6:
            child = fork_program(dataset, spill, strategy)
            time.sleep(draw.random() * whole_s)
            os.kill(child, signal.SIGINT if number % 8 == 6 else signal.SIGTERM)
            end = end_of(child, within_s=4 * _PROMPT_S)  # torch's finalizers among it
            left = [path.name for path in spill.iterdir()]
            found[
                "program ended, nothing left" if end in ("exit 0", "killed") and not left else f"{end} {left}"
            ] += 1
            continue
        if number % 2 == 0:
            child = fork(lambda s=strategy: until_interrupted(dataset, spill, s))  # type: ignore[misc]
            time.sleep(after_s)
            os.kill(child, signal.SIGINT)
            end = end_of(child)
            found["interrupted, nothing left" if end == f"exit {_INTERRUPTED}" else f"SIGINT: {end}"] += 1
            continue
        place[0] = _NOWHERE
        child = fork(lambda s=strategy: iterate(dataset, spill, s, place=place) or 1)  # type: ignore[misc,func-returns-value]
        if number % 4 == 1:  # in the midst of passes; else at any time, opening among them
            deadline = time.monotonic() + _PROMPT_S
            while place[0] <= 0 and time.monotonic() < deadline:
                time.sleep(0.001)
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
        found[end_of(child)] += 1
        found["left a spill folder"] += any(spill.iterdir())
        age(spill)
        begin = max(int(place[0]), 0)
        found["resumed behind the first batches"] += begin > 0
        with open_loader(dataset, spill, strategy) as loader:
            resumed = batches_from(loader, begin)
        left = [path.name for path in spill.iterdir()]
        with open_loader(dataset, spill, "memory") as loader:
            is_same = resumed == batches_from(loader, begin)
        found["resumed with the same batches" if is_same else "resumed with other batches"] += 1
        found["removed by the next start" if not left else f"not removed: {left}"] += 1
    print(json.dumps(found))


if __name__ == "__main__":
    import faulthandler

    faulthandler.enable()
    main()
