"""Children that pack and are killed; run as a program, prints one JSON line with what was found at each point.

    pack_driver.py STORE PARENT

For each named point: how the child ended, what it left, how many folders the next run removed, and what is left then.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from gloader.core.signals import NEVER
from gloader.ssd_store import FeatureStore, Packer
from gloader.ssd_store.os_io import KILL_AT_VARIABLE
from gloader.ssd_store.spill.claim import remove_dead_spills
from gloader.ssd_store.spill.folder import SpillFolder

POINTS = ("pack.in_sweep", "pack.after_sweep", "")


def live(store_path: Path, parent: Path) -> None:
    misses = [np.arange(start, 2000, 3) for start in range(40)]
    with (
        FeatureStore.open(store_path) as store,
        SpillFolder(parent, budget_bytes=10**9) as spill,
        Packer(store, spill) as packer,
    ):
        pack = packer.pack(misses, superbatch=0, cancellation=NEVER)
        out = np.empty((len(misses[0]), store.dim), np.float32)
        pack.read_into(0, misses[0], out, at=np.arange(len(misses[0])))


def end_of_child(point: str, store_path: Path, parent: Path) -> str:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ[KILL_AT_VARIABLE] = point
            live(store_path, parent)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return "killed" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


if __name__ == "__main__":
    store_path, parent = map(Path, sys.argv[1:])
    found = {}
    for point in POINTS:
        end = end_of_child(point, store_path, parent)
        left = [len(list(folder.glob("*.spill"))) for folder in parent.iterdir()]
        removed = len(remove_dead_spills(parent))
        found[point] = [end, left, removed, len(list(parent.iterdir()))]
    print(json.dumps(found))
