"""A propagation keeps within a budget of a tenth of its rows, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

_PROGRAM = textwrap.dedent(
    """
    import sys
    from pathlib import Path

    import numpy as np

    from gloader import Dataset
    from gloader.dataset.topology import open_hetero_topology
    from gloader.training.propagation.chains import PropagateSpec, grow_chains
    from gloader.training.propagation.propagate_rows import propagate
    from gloader.training.propagation.propagation_plan import GraphSizes, plan_propagation
    from gloader.types import EDGE, NODE

    NODES, EDGES, WIDTH = 120_000, 1_000_000, 1024
    folder = Path(sys.argv[1])


    def peak():
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


    class Rows:
        def __init__(self, store):
            self._store, self.num_rows, self.width = store, store.num_rows, store.dim

        def read(self, start, stop, out):
            self._store.read_into(np.arange(start, stop), out)


    def run(name, num_nodes, num_edges, width, budget):
        rng = np.random.default_rng(0)
        destinations = np.sort(rng.integers(0, num_nodes, num_edges))
        some = np.arange(1)
        dataset = Dataset.from_numpy(
            folder / name,
            indptr=np.searchsorted(destinations, np.arange(num_nodes + 1)),
            indices=rng.integers(0, num_nodes, num_edges).astype(np.int32),
            features=np.zeros((num_nodes, width), dtype=np.float32),
            labels=np.zeros(num_nodes, dtype=np.int64), train=some, valid=some + 1, test=some + 2,
        )
        trees = grow_chains(PropagateSpec(hops=1), widths={NODE: width}, relations=(EDGE,), target=NODE)
        widths = {NODE: 4} if width < 9 else None
        plan = plan_propagation(trees, GraphSizes.of_dataset(dataset), budget_bytes=budget, widths=widths)
        Path("/proc/self/clear_refs").write_text("5")
        before = peak()
        with open_hetero_topology(dataset, max_bytes=0) as graph:
            with dataset.labelled.open_features(ring_bytes=1 << 20) as store:
                with propagate(graph, {NODE: Rows(store)}, plan, work=folder / (name + "-work")) as pieces:
                    assert pieces.cost.rows_read <= 1.05 * plan.cost.rows_read or width < 9
        return peak() - before, plan


    run("small", 1000, 5000, 8, 1 << 30)  # kernels are compiled, and modules imported
    used, plan = run("large", NODES, EDGES, WIDTH, 4 * NODES * WIDTH // 10)
    assert plan.num_slabs > 8 and not plan.is_held
    print(used, 4 * NODES * WIDTH // 10)
    """
)


@pytest.mark.long
@pytest.mark.xfail(strict=False, reason="open: the peak was measured 6 to 24 % above a budget of 41 to 49 MB")
def test_the_peak_keeps_within_a_tenth_of_the_rows(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    used, budget = map(int, done.stdout.split())
    assert used <= budget
