"""Children that own spill folders and are killed; run as a program, prints one JSON line with what was found.

    spill_driver.py FOLDER SEED COUNT ROUNDS

Every owner makes a pack of a store in FOLDER and reads it back, as runs do.

points: SIGKILL at each named point of a folder's life; random: SIGKILL after random times, COUNT of them, a live
owner beside; race: owners that live and die, and remove the dead, at once, in ROUNDS.

It imports the package once and forks, which takes milliseconds where a new interpreter takes a second.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gloader.core.signals import NEVER
from gloader.ssd_store import FeatureStore, Packer
from gloader.ssd_store.os_io import KILL_AT_VARIABLE
from gloader.ssd_store.spill.claim import KILL_POINTS, remove_dead_spills
from gloader.ssd_store.spill.folder import SpillFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.ssd_store.miss_sources import PackedMisses

POINTS = (*KILL_POINTS, "pack.in_sweep", "pack.after_sweep")
BUDGET = 10**8
FEATURES = np.arange(30_000, dtype=np.float32).reshape(300, 100)
MISSES = [np.arange(start, 300, 2 + start) for start in range(3)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def owner(parent: Path) -> Iterator[tuple[SpillFolder, PackedMisses]]:
    """Own a folder with a pack in it. Neither threads nor rings: they do not survive the forks."""
    with (
        SpillFolder(parent, budget_bytes=BUDGET) as spill,
        FeatureStore.open(parent.parent / "store", io="buffered") as store,
        Packer(store, spill, memory_bytes=2**21) as packer,
    ):
        yield spill, packer.pack(MISSES, superbatch=0, cancellation=NEVER)


def is_right(pack: PackedMisses) -> bool:
    for batch, rows in enumerate(MISSES):
        out = np.zeros((len(rows), FEATURES.shape[1]), np.float32)
        pack.read_into(batch, rows, out, at=np.arange(len(rows)))
        if not np.array_equal(out, FEATURES[rows]):
            return False
    return True


def fork(action: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = action()
        finally:
            os._exit(code)
    return child


def end_of(child: int) -> str:
    _, status = os.waitpid(child, 0)
    return "killed" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


def age(folder: Path) -> None:
    """Make what a dead child left an hour old."""
    then = time.time() - 3600
    for path in folder.iterdir():
        os.utime(path, (then, then))


def live(parent: Path) -> int:
    """Own a folder, make a pack and read it; 0 if all was right."""
    with owner(parent) as (_, pack):
        return 0 if is_right(pack) else 3


def live_for_ever(parent: Path) -> int:
    while live(parent) == 0:
        pass
    return 3


def kill_at_points(parent: Path) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for point in POINTS:

        def action(point: str = point) -> int:
            os.environ[KILL_AT_VARIABLE] = point
            return live(parent)

        end = end_of(fork(action))
        left = [names(path) for path in parent.iterdir()]
        fresh = len(remove_dead_spills(parent))
        age(parent)
        found[point] = [end, left, fresh, len(remove_dead_spills(parent)), names(parent)]
    return found


def kill_at_random_times(parent: Path, seed: int, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    draw = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    began = time.perf_counter()
    live(parent)
    life_s = time.perf_counter() - began
    with owner(parent) as (mine, pack):
        for _ in range(count):
            child = fork(lambda: live_for_ever(parent))
            time.sleep(draw.random() * 3 * life_s)
            os.kill(child, signal.SIGKILL)
            found[end_of(child)] += 1
            found["left a folder"] += len(names(parent)) > 1
            age(parent)
            remove_dead_spills(parent)
            found["removed" if names(parent) == [mine.path.name] else f"left {names(parent)}"] += 1
            found["live owner untouched" if is_right(pack) else "DAMAGED"] += 1
    found["clean" if not names(parent) else f"left {names(parent)}"] += 1
    return found


def race(parent: Path, rounds: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in range(rounds):
        reader, gate = os.pipe()

        def action(reader: int = reader, gate: int = gate) -> int:
            os.close(gate)
            os.read(reader, 1)  # ends when the parent closes the gate
            return max(live(parent) for _ in range(5))

        children = [fork(action) for _ in range(4)]
        doomed = [fork(lambda: live_for_ever(parent)) for _ in range(2)]
        os.close(reader)
        os.close(gate)
        for child in doomed:
            time.sleep(0.003)
            os.kill(child, signal.SIGKILL)
            end_of(child)
        found.update(end_of(child) for child in children)
        age(parent)
        remove_dead_spills(parent)
        found["clean" if not names(parent) else f"left {names(parent)}"] += 1
    return found


if __name__ == "__main__":
    parent = Path(sys.argv[1]) / "spills"
    parent.mkdir()
    FeatureStore.create(parent.parent / "store", FEATURES).close()
    seed, kills, rounds = map(int, sys.argv[2:])
    live(parent)  # loads the kernels
    found = {
        "points": kill_at_points(parent),
        "random": kill_at_random_times(parent, seed, kills),
        "race": race(parent, rounds),
    }
    print(json.dumps(found))
