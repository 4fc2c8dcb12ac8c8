"""Measure the planner of an embedding's slots beside Belady's planner, in nanoseconds per access.

python experiments/bench/write_plan.py --out experiments/results/DATE-write-plan.json

Two superbatches of 50 batches are planned, each with the other one as its look-ahead. The slots hold a tenth of the
rows. Seconds are those of the processor, so that other work on the machine counts less.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.cache import BeladyPlanner, Trace
from gloader.cache.write_plan import FORWARD, LATE, WritePlanner

if TYPE_CHECKING:
    from collections.abc import Callable

_BATCHES = 50


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the embedding")
    parser.add_argument("--batch-rows", type=int, default=200_000, help="distinct rows of a batch")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    traces = [Trace(_batch(rng, options.rows, options.batch_rows) for _ in range(_BATCHES)) for _ in range(2)]
    num_rows, slots = options.rows, options.rows // 10
    planners: dict[str, Callable[[], Any]] = {
        "belady": lambda: BeladyPlanner(num_rows, slots),
        "belady, hashed": lambda: BeladyPlanner(num_rows, slots, expected_accesses=1),
    }
    for depth in (1, 4):
        planners[f"write, depth {depth}"] = lambda d=depth: WritePlanner(num_rows, slots, depth=d)  # type: ignore[misc]
    planners["write, depth 4, hashed"] = lambda: WritePlanner(num_rows, slots, expected_accesses=1)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    report = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit,
        "accesses": sum(trace.num_accesses for trace in traces),
        "planners": {name: _measure(make, traces, options.repeats) for name, make in planners.items()},
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def _batch(rng: np.random.Generator, num_rows: int, batch_rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return ascending rows, of which low ones are more frequent."""
    drawn = np.unique((rng.random(2 * batch_rows) ** 3 * num_rows).astype(np.int64))
    return np.sort(rng.permutation(drawn)[:batch_rows])


def _measure(make: Callable[[], Any], traces: list[Trace], repeats: int) -> dict[str, Any]:
    """Return the nanoseconds per access of a first plan and of the next one, and counts of the second plan."""
    seconds: list[list[float]] = [[], []]
    for _ in range(repeats):
        planner = make()
        for number in range(2):
            began = time.thread_time()
            plan = planner.plan(traces[number], traces[1 - number])
            seconds[number].append(time.thread_time() - began)
    accesses = traces[1].num_accesses
    first, second = (1e9 * median(found) / accesses for found in seconds)
    result = {"first_plan_ns": first, "next_plan_ns": second, "plan_bytes": plan.num_bytes / accesses}
    if isinstance(planner, WritePlanner):
        shares = {
            name: plan.num_loads_from(source) for name, source in (("forward", FORWARD), ("late", LATE))
        }
        return result | {"loads": plan.num_loads / accesses} | {k: v / accesses for k, v in shares.items()}
    return result | {"loads": plan.num_misses / accesses}


if __name__ == "__main__":
    main()
