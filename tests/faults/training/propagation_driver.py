"""Children that propagate over the SSD and are killed at a system call; run as a program, prints one JSON line.

propagation_driver.py FOLDER STEP    kill a child at every STEP-th writing call, and continue each one
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

from gloader.samplers import CscGraph
from gloader.samplers.graph import HeteroGraph
from gloader.ssd_store.os_io import REAL_OS
from gloader.testing.faults import FaultyOS
from gloader.training.propagation.chains import PropagateSpec, grow_chains
from gloader.training.propagation.propagate_rows import propagate
from gloader.training.propagation.propagation_plan import EdgeSizes, GraphSizes, plan_propagation
from gloader.training.propagation.state_rows import HeldMatrix
from gloader.types import EDGE, NODE

NODES, EDGES, WIDTH = 60, 300, 4
CALLS = ("open", "write", "pwrite", "fsync", "mkdir", "replace", "rename_noreplace", "unlink", "rmtree")


class KillingOS(FaultyOS):
    """The real system calls; the process is killed before the call with the number ``kill_at``."""

    def __init__(self, kill_at: int) -> None:
        super().__init__(calls=CALLS)
        self._kill_at = kill_at

    def _enter(self, name: str) -> None:
        super()._enter(name)
        if self.num_calls == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def compute(work: Path, os_io=REAL_OS):
    """Propagate over ``work`` and return the result and its cost."""
    rng = np.random.default_rng(5)
    destinations = np.sort(rng.integers(0, NODES, EDGES))
    topology = CscGraph(
        indptr=np.searchsorted(destinations, np.arange(NODES + 1)).astype(np.int64),
        indices=rng.integers(0, NODES, EDGES).astype(np.int32),
    )
    x = rng.standard_normal((NODES, WIDTH)).astype(np.float32)
    trees = grow_chains(PropagateSpec(hops=2), widths={NODE: WIDTH}, relations=(EDGE,), target=NODE)
    each = EdgeSizes(num_edges=EDGES, source_bytes=4 * EDGES, weight_bytes=0, offset_bytes=8 * NODES + 8)
    sizes = GraphSizes(num_nodes={NODE: NODES}, edges={EDGE: each}, input_bytes={NODE: x.nbytes})
    plan = plan_propagation(trees, sizes, budget_bytes=1 << 40, widths={NODE: 2}, num_kept=30, threads=1)
    with propagate(
        HeteroGraph.of_one_type(topology),
        {NODE: HeldMatrix(x)},
        plan,
        work=work,
        fingerprint="driver",
        keep=np.arange(0, NODES, 2),
        os_io=os_io,
    ) as pieces:
        return pieces.read(0, pieces.num_rows), pieces.cost


def killed_at(number: int, work: Path) -> bool:
    """Run in a child that is killed at a call; return whether it was."""
    child = os.fork()
    if child == 0:
        try:
            compute(work, KillingOS(number))
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main(folder: Path, step: int) -> None:
    """Kill at every ``step``-th call, until a child ends by itself."""
    expected, whole = compute(folder / "whole")
    number, kills, wrong, savings = 1, 0, [], 0
    while killed_at(number, folder / f"{number}"):
        kills += 1
        made, cost = compute(folder / f"{number}")
        if not np.array_equal(made, expected):
            wrong.append(number)
        savings += cost.rows_written < whole.rows_written
        rest = sorted(path.name for path in (folder / f"{number}").iterdir())
        if rest != sorted(path.name for path in (folder / "whole").iterdir()):
            wrong.append([number, rest])
        shutil.rmtree(folder / f"{number}")
        number += step
    print(json.dumps({"kills": kills, "wrong": wrong, "savings": savings}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
