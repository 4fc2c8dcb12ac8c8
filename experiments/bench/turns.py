"""Epochs without computation: this checkout and another one, in turns, to show that a change is no slower.

    git worktree add ../before COMMIT
    python experiments/bench/turns.py ../before --workdir DIR --out experiments/results/DATE-turns.json

Each checkout has a process of its own, and only one of them works at a time. A turn is three epochs behind a first one,
in wall seconds and in the process's processor seconds. After two turns of each case both processes begin anew, because
the memory pages that a process happens to get make it up to 15% faster or slower for its whole life. The figures are
this checkout's over the other's: the median over the turns, and the ratio of the least turns, in which other programs
disturb least.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gloader
from gloader import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = 3
TURNS_PER_PROCESS = 2
_COMMON: dict[str, Any] = {"threads": 1, "epochs": EPOCHS + 1, "seed": 1, "batch_size": 1024}
_MEMORY: dict[str, Any] = {"features": "ram", "topology": "ram", "memory_budget": "2GB"}
_SSD: dict[str, Any] = {"features": "ssd", "cache": 8_000_000, "memory_budget": "200MB"}
# By name: the loader, the dataset, and the settings.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "memory": ("Loader", "one", {"fanouts": [10, 10], **_MEMORY}),
    "small batches": ("Loader", "one", {"fanouts": [5, 5], **_MEMORY, "batch_size": 64}),
    "ssd": ("Loader", "one", {"fanouts": [10, 10], "topology": "ram", **_SSD}),
    "swept": ("Loader", "one", {"fanouts": [10, 10], "topology": "sweep", **_SSD}),
    "typed": ("HeteroLoader", "typed", {"fanouts": [8, 8], **_MEMORY}),
    "typed ssd": ("HeteroLoader", "typed", {"fanouts": [8, 8], "topology": "ram", **_SSD}),
    "links": ("LinkLoader", "one", {"fanouts": [8, 8], **_MEMORY}),
}
NODES, EDGES, LINKS, DIM, CLASSES = 200_000, 2_000_000, 60_000, 64, 10
COUNTS = {"paper": 150_000, "author": 100_000, "venue": 500}
RELATIONS = {
    ("author", "writes", "paper"): 600_000,
    ("paper", "cites", "paper"): 900_000,
    ("paper", "written", "author"): 600_000,
    ("paper", "at", "venue"): 150_000,
    ("venue", "of", "paper"): 150_000,
}


def make_data(workdir: Path) -> None:
    """Write the two graphs below ``workdir``, unless they are there."""
    rng = np.random.default_rng(0)

    def pairs(sources: int, destinations: int, count: int) -> np.ndarray[Any, Any]:
        return np.stack(
            [(sources * rng.random(count) ** 2).astype(np.int64), rng.integers(0, destinations, count)]
        )

    if not (workdir / "one").exists():
        edges, order = pairs(NODES, NODES, EDGES), rng.permutation(NODES)
        Dataset.from_numpy(
            workdir / "one",
            features=rng.random((NODES, DIM), np.float32),
            labels=rng.integers(0, CLASSES, NODES),
            num_classes=CLASSES,
            edge_index=edges,
            train=order[:60_000],
            valid=order[60_000:61_000],
            test=order[61_000:62_000],
            links={"train": {"edge_index": edges[:, rng.permutation(EDGES)[:LINKS]]}},
        )
    if not (workdir / "typed").exists():
        order = rng.permutation(COUNTS["paper"])
        Dataset.from_numpy_hetero(
            workdir / "typed",
            num_nodes=COUNTS,
            features={
                name: rng.random((COUNTS[name], dim), np.float32)
                for name, dim in (("paper", 64), ("author", 32))
            },
            edges={one: pairs(COUNTS[one[0]], COUNTS[one[2]], count) for one, count in RELATIONS.items()},
            labels={"paper": rng.integers(0, CLASSES, COUNTS["paper"])},
            num_classes=CLASSES,
            name="typed",
            train=order[:40_000],
            valid=order[40_000:41_000],
            test=order[41_000:42_000],
        )


def run_turn(name: str, workdir: Path, spill: str) -> tuple[float, float]:
    """Return the wall and processor seconds of `EPOCHS` epochs of a case."""
    kind, data, settings = CASES[name]
    with getattr(gloader, kind)(
        Dataset.open(workdir / data), spill_dir=spill, **_COMMON | settings
    ) as loader:
        for _ in loader:
            pass
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(EPOCHS):
            for _ in loader:
                pass
        return time.perf_counter() - wall, time.process_time() - cpu


def serve(workdir: Path) -> None:
    """Run the cases that stdin names, each once before: kernels are compiled then."""
    with tempfile.TemporaryDirectory() as spill:
        for name in json.loads(sys.stdin.readline()):
            run_turn(name, workdir, spill)
        print("ready", flush=True)
        for line in sys.stdin:
            print(*run_turn(line.strip(), workdir, spill), flush=True)


@contextmanager
def serving(
    checkout: Path, workdir: Path, cases: list[str]
) -> Iterator[Callable[[str], tuple[float, float]]]:
    """Yield a function that runs a turn of a case in a process of ``checkout``, which ends with the block."""
    environment = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), "--serve", str(workdir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=checkout,
        env={**os.environ, **environment},
    )
    requests, answers = child.stdin, child.stdout
    if requests is None or answers is None:  # never with pipes; for type checkers
        raise SystemExit(f"the process of {checkout} has no pipes")
    requests.write(json.dumps(cases) + "\n")
    requests.flush()
    if answers.readline() != "ready\n":
        raise SystemExit(f"the process of {checkout} ended")

    def turn(name: str) -> tuple[float, float]:
        requests.write(name + "\n")
        requests.flush()
        wall, cpu = map(float, answers.readline().split())
        return wall, cpu

    with child:  # the process ends with its input, which the block closes
        yield turn


def compare(turns: list[list[tuple[float, float]]]) -> dict[str, float]:
    """Return the ratios of (this, other) turns, in wall and in processor seconds."""
    found: dict[str, float] = {}
    for number, unit in enumerate(("wall", "cpu")):
        own, other = ([one[number] for one in of_tree] for of_tree in turns)
        found |= {
            f"{unit}_s": statistics.median(own),
            f"other_{unit}_s": statistics.median(other),
            f"{unit}_ratio": statistics.median(a / b for a, b in zip(own, other, strict=True)),
            f"least_{unit}_ratio": min(own) / min(other),
        }
    return found


def main() -> None:
    """Measure, print a line for each case, and write the figures."""
    if sys.argv[1:2] == ["--serve"]:
        return serve(Path(sys.argv[2]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--workdir", type=Path, required=True, help="folder for the graphs, 150 MB")
    parser.add_argument("--turns", type=int, default=10, help="turns of each case")
    parser.add_argument("--cases", default=",".join(CASES), help="cases to measure")
    parser.add_argument("--out", type=Path, help="file of the figures")
    flags = parser.parse_args()
    from gloader.lab.bench.environment import provenance

    cases = flags.cases.split(",")
    flags.workdir.mkdir(parents=True, exist_ok=True)
    make_data(flags.workdir)
    turns: dict[str, list[list[tuple[float, float]]]] = {name: [[], []] for name in cases}
    for first in range(0, flags.turns, TURNS_PER_PROCESS):
        with ExitStack() as stack:
            trees = [
                stack.enter_context(serving(path.resolve(), flags.workdir.resolve(), cases))
                for path in (ROOT, flags.other)
            ]
            for name in cases:
                for number in range(first, min(first + TURNS_PER_PROCESS, flags.turns)):
                    # The order alternates, because the second of a pair may find warmer caches.
                    for tree in (0, 1) if number % 2 else (1, 0):
                        turns[name][tree].append(trees[tree](name))
    results = {name: compare(turns[name]) for name in cases}
    for name, figures in results.items():
        print(f"{name:14s}", *(f"{key} {value:.3f}" for key, value in figures.items()), flush=True)
    if flags.out is not None:
        body = {**provenance(), "turns": flags.turns, "epochs": EPOCHS, "cases": results}
        flags.out.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    return None


if __name__ == "__main__":
    main()
