"""A process that trains rows larger than its memory budget stays within the budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gloader

NUM_NODES, NUM_EDGES, DIM = 2_000_000, 3_000_000, 64
TABLE_BYTES = NUM_NODES * (DIM + 1) * 4  # 520 MB
BUDGET = 450 * 10**6
SLACK = 25 * 10**6  # compiled code, stacks of threads, the gradients and the small loss

CHILD = """
import json, sys
from pathlib import Path
import numpy as np
import torch
import gloader

def resident(field):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field))
    return 1024 * int(line.split()[1])

path, folder, budget, dim = json.loads(sys.argv[1])
torch.set_num_threads(1)
dataset = gloader.Dataset.open(path)

def train(name, seeds, batches, budget):
    with gloader.NodeEmbedding(dataset, dim=dim, folder=Path(folder) / name, cache="30MB") as embedding:
        with gloader.Loader(
            dataset, fanouts=[4, 4], batch_size=512, seeds=seeds, memory_budget=budget, threads=2,
            embeddings=embedding, spill_dir=folder,
        ) as loader:
            taken = 0
            while taken < batches:
                for batch in loader:
                    batch.x.square().mean().backward()
                    embedding.step(batch)
                    taken += 1
                    if taken == 60:
                        embedding.checkpoint()
                    if taken == batches:
                        break
            (trained,) = loader._held.tier.trained
            return loader.memory_plan.total_bytes, trained.rows.bytes_written, trained.rows.counts.evicted_table

train("small", np.arange(600), 24, budget)  # loads the kernels
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
planned, written, evicted = train("large", np.arange(dataset.num_nodes), 120, budget)
growth = resident("VmHWM") - before
print(json.dumps({"growth": growth, "planned": planned, "written": written, "evicted": evicted}))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "dataset"
    rng = np.random.default_rng(0)
    with gloader.Dataset.create(folder, name="rows", num_nodes=NUM_NODES, num_classes=2) as writer:
        with writer.indptr() as column:
            column.append(np.linspace(0, NUM_EDGES, NUM_NODES + 1).astype(np.int64))
        with writer.indices(NUM_EDGES, "int32") as column:
            column.append(rng.integers(0, NUM_NODES, NUM_EDGES, dtype=np.int32))
        with writer.features(1, "float32") as column:
            column.append(rng.random((NUM_NODES, 1), np.float32))
        writer.labels(np.zeros(NUM_NODES, np.int64))
        nothing = np.empty(0, np.int64)
        writer.splits(train=np.arange(NUM_NODES), valid=nothing, test=nothing)
    return folder


def test_trained_rows_stay_within_the_budget(path: Path, tmp_path: Path) -> None:
    checkout = str(Path(gloader.__path__[0]).parent)
    paths = os.pathsep.join(filter(None, [checkout, os.environ.get("PYTHONPATH")]))
    for _ in range(2):  # the first process may have compiled kernels
        done = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps([str(path), str(tmp_path), BUDGET, DIM])],
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        if found["growth"] <= BUDGET + SLACK:
            break
        for name in ("small", "large"):
            __import__("shutil").rmtree(tmp_path / name, ignore_errors=True)
    assert found["growth"] <= BUDGET + SLACK, found
    assert TABLE_BYTES > BUDGET
    assert found["evicted"] > 0
    assert found["written"] > 10**6
    assert found["planned"] <= BUDGET
