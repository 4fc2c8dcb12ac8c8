"""The memory of a process that trains an embedding stays within the bytes that its parts state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

GROWTH = """
import json, sys
from pathlib import Path
import numpy as np
import torch
import embedding_runs as runs
from gloader.cache.next_use import table_bytes as planner_bytes
from gloader.cache.write_plan import write_access_bytes
from gloader.pipeline.embedding_optimizers import RowwiseAdagrad
from gloader.pipeline.embedding_rows import EmbeddingRows, slot_bytes
from gloader.ssd_store.embedding.embedding_table import EmbeddingTable, table_bytes
from gloader.ssd_store.embedding.initial_rows import InitialRows
from gloader.ssd_store.embedding.row_pieces import WORK_BYTES
from gloader.ssd_store.spill.folder import SpillFolder

NUM_ROWS, DIM, BATCH, NUM_BATCHES, SUPERBATCH = 3_000_000, 64, 10_000, 30, 10
CAPACITY, STAGING, BUFFER = 40_000, 8 << 20, 30_000  # slots, bytes, rows
AHEAD = 3  # loaded batches in the channel between the threads

def resident(field):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field))
    return 1024 * int(line.split()[1])

def train(folder, num_rows, batch, num_batches):
    optimizer = RowwiseAdagrad()
    initial = InitialRows(seed=1, dim=DIM, kind="uniform", scale=0.1, state=optimizer.initial_state(DIM))
    random = np.random.default_rng(0)
    batches = [
        np.unique((num_rows * random.random(batch) ** 2).astype(np.int64)) for _ in range(num_batches)
    ]
    runs.gradient = lambda number, leaf: torch.ones_like(leaf)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    with EmbeddingTable.create(
        folder / "t", num_rows=num_rows, initial=initial, facts={}
    ) as table, SpillFolder(folder, budget_bytes=1 << 30) as spill:
        table.resize_buffer(BUFFER)
        rows = EmbeddingRows(
            table, optimizer, capacity=CAPACITY, spill=spill, staging_bytes=STAGING,
            expected_accesses=2 * SUPERBATCH * batch,
        )
        for _ in range(2):
            runs.run(rows, batches, superbatch=SUPERBATCH, ahead=AHEAD)
            rows.checkpoint("last", {})
            rows.restart()
        rows.read(np.arange(0, num_rows, max(num_rows // 1000, 1)))
        spilled = rows._pieces.bytes_written
        rows.close()
    return resident("VmHWM") - before, spilled

folder = Path(sys.argv[1])
train(folder / "small", 5000, 1000, 12)  # compiles, or loads what is compiled
growth, spilled = train(folder / "large", NUM_ROWS, BATCH, NUM_BATCHES)
row = 4 * (DIM + 1)
accesses = SUPERBATCH * BATCH
parts = {
    "slots": CAPACITY * slot_bytes(DIM + 1),
    "staging": STAGING + WORK_BYTES,
    "table": table_bytes(NUM_ROWS, DIM + 1, BUFFER),
    "planner": planner_bytes(NUM_ROWS, 2 * accesses),
    # Plans and sorted rows of the superbatch in use, the one between the threads and the one that is staged.
    "plans": 3 * accesses * (write_access_bytes(NUM_ROWS) + 8 + 9),
    "batches": (AHEAD + 3) * BATCH * 6 * 8 + 3 * BATCH * 4 * DIM,
}
print(json.dumps({"growth": growth, "spilled": spilled, "parts": parts, "table": NUM_ROWS * row}))
"""
SLACK_BYTES = 8 * 2**20  # stacks of threads, the allocator's rounding


def test_training_grows_by_the_stated_bytes(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
    done = subprocess.run(
        [sys.executable, "-B", "-c", GROWTH, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root, root / "tests")))},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    stated = sum(report["parts"].values()) + SLACK_BYTES
    assert report["growth"] <= stated, report
    assert report["spilled"] > 4 * 2**20
    assert stated < report["table"] / 3
