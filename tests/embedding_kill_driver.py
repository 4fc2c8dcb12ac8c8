"""Trains embeddings' rows until it is killed; run as a program.

    embedding_kill_driver.py FOLDER NUMBER ...

For each NUMBER, a child trains a new table in FOLDER/NUMBER, with a checkpoint before every third batch. Before the
step of batch NUMBER it kills itself, while the other threads move rows. Prints the children's exit codes.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from embedding_runs import opened, run

from gloader.pipeline.embedding_optimizers import SparseAdam

NUM_ROWS, DIM, NUM_BATCHES = 300, 8, 24
SETTINGS: dict[str, Any] = {"num_rows": NUM_ROWS, "dim": DIM, "capacity": 45}
OPTIMIZER = SparseAdam(lr=0.01)


def batches() -> list[np.ndarray]:
    """Return the rows of each batch."""
    random = np.random.default_rng(0)
    return [random.integers(0, NUM_ROWS, 40) for _ in range(NUM_BATCHES)]


def train(folder: Path, kill_at: int | None) -> np.ndarray:
    """Train to the last batch, or to the kill; return all weights."""
    with opened(folder, OPTIMIZER, **SETTINGS) as rows:

        def between(batch: int) -> None:
            if batch % 3 == 2:
                rows.checkpoint("last", {"batch": batch})
            if batch == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        start = rows.table.facts.get("batch", 0)
        run(rows, batches(), superbatch=5, start=start, between=between)
        return rows.read(np.arange(NUM_ROWS))


def main() -> None:
    """Run the children one after another. A fork takes less time than a new interpreter."""
    for number in map(int, sys.argv[2:]):
        child = os.fork()
        if child == 0:
            try:
                train(Path(sys.argv[1]) / str(number) / "t", number)
            finally:
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main()
