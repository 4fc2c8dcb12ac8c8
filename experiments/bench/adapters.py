"""The cost of an adapter for a batch: its conversion compared with the native loader's step, and whole loops.

The graph is made in memory; features are in memory, so that the step is the shortest that there is. The loops do
nothing with a batch: their step is the loader's own.

    python experiments/bench/adapters.py --out experiments/results/DATE-adapters.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import gloader
from gloader.adapters.dgl import BlockLoader, to_blocks
from gloader.adapters.pyg import NodeLoader, to_data
from gloader.dataset import Dataset
from gloader.lab.bench.environment import provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gloader.types import ReadyBatch

FANOUTS = [15, 10, 5]


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=130)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-budget", default="4GB")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gloader-bench-") as folder:
        result = _measure(_dataset(Path(folder) / "graph", args), args)
    result |= provenance()
    print(_table(result))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(_table(result) + "\n")


def _dataset(path: Path, args: argparse.Namespace) -> gloader.Dataset:
    rng = np.random.default_rng(0)
    return Dataset.from_numpy(
        path,
        features=rng.standard_normal((args.nodes, args.dim), dtype=np.float32),
        labels=rng.integers(0, 8, args.nodes),
        edge_index=np.stack(
            [
                (args.nodes * rng.random(args.edges) ** 2).astype(np.int64),
                rng.integers(0, args.nodes, args.edges),
            ]
        ),
    )


def _measure(dataset: gloader.Dataset, args: argparse.Namespace) -> dict[str, Any]:
    settings = {
        "fanouts": FANOUTS,
        "batch_size": args.batch_size,
        "memory_budget": args.memory_budget,
        "features": "ram",
    }
    with gloader.Loader(dataset, **settings) as native:
        batch = next(iter(native))
        size = {"nodes": len(batch.nodes), "edges": sum(int(hop.indices.shape[0]) for hop in batch.blocks)}
        seeds = torch.arange(batch.num_seeds)
        conversions = {
            "dgl": _conversion(batch, to_blocks),
            "pyg": _conversion(batch, lambda ready: to_data(ready, input_id=seeds)),
        }
        del batch
        loops: dict[str, Iterable[object]] = {
            "native": native,
            "dgl": BlockLoader(native),
            "pyg": NodeLoader(native),
        }
        steps: dict[str, list[float]] = {name: [] for name in loops}
        cpu: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(args.rounds):
            for name, loop in loops.items():
                step_s, cpu_s = _step(loop, args.batches)
                steps[name].append(step_s)
                cpu[name].append(cpu_s)
    native_ms = 1e3 * statistics.median(steps["native"])
    return {
        "batch": size,
        "dim": args.dim,
        "conversion_ms": conversions,
        "step_ms": {name: 1e3 * statistics.median(found) for name, found in steps.items()},
        "cpu_ms": {name: 1e3 * statistics.median(found) for name, found in cpu.items()},
        "runs_step_ms": {name: [1e3 * seconds for seconds in found] for name, found in steps.items()},
        "conversion_share_of_native_step": {name: ms / native_ms for name, ms in conversions.items()},
    }


def _conversion(batch: ReadyBatch, convert: Callable[[ReadyBatch], object], repeats: int = 200) -> float:
    """Return the median milliseconds of one conversion; its result is dropped in between, as a loop drops it."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        made = convert(batch)
        seconds.append(time.perf_counter() - started)
        del made
    return 1e3 * statistics.median(seconds)


def _step(loop: Iterable[object], batches: int) -> tuple[float, float]:
    """Return wall and processor seconds per batch, after a few that fill the pipeline."""
    warm_up = 5
    started = cpu = 0.0
    for number, _ in enumerate(loop):
        if number == warm_up:
            started, cpu = time.perf_counter(), time.process_time()
        if number == warm_up + batches:
            break
    else:
        raise SystemExit(
            f"an epoch has fewer than {warm_up + batches} batches; lower --batches or --batch-size"
        )
    return (time.perf_counter() - started) / batches, (time.process_time() - cpu) / batches


def _table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['batch']['nodes']:,} nodes, {result['batch']['edges']:,} edges, {result['dim']} floats a node.",
        "",
        "| loop | step | processor time | conversion alone | of the native step |",
        "|---|---|---|---|---|",
    ]
    for name, step in result["step_ms"].items():
        alone = result["conversion_ms"].get(name)
        share = result["conversion_share_of_native_step"].get(name)
        lines.append(
            f"| {name} | {step:.2f} ms | {result['cpu_ms'][name]:.2f} ms | "
            + (f"{alone:.2f} ms | {share:.1%} |" if alone is not None and share is not None else "| |")
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
