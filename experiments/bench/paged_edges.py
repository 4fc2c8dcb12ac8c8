"""Seconds a batch of neighbour sampling, with the edges in memory and read page by page with room for a part of them.

The places take turns; every turn samples other batches, the same in each place. Pages are read past the page cache.

    python experiments/bench/paged_edges.py --workdir DIR --out experiments/results/DATE-paged-edges.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.dataset import Dataset
from gloader.dataset.topology import open_topology
from gloader.lab.bench.environment import provenance
from gloader.lab.bench.graphs import synthetic_graph
from gloader.samplers import make_sampler
from gloader.types import BatchId

if TYPE_CHECKING:
    from gloader.types import Sampler

SHARES = (1 / 2, 1 / 4, 1 / 10)
DIM = 4  # nobody reads a feature


def main() -> None:
    """Run the benchmark and write its result."""
    args = _parse()
    dataset = _dataset(args.workdir / f"rmat-{args.nodes}-{args.edges}", args.nodes, args.edges)
    seconds: dict[str, list[float]] = {}
    read_bytes: dict[str, list[float]] = {}
    held_bytes: dict[str, int] = {}
    with ExitStack() as stack:
        samplers: dict[str, Sampler] = {}
        for name, max_bytes in _places(dataset):
            topology = stack.enter_context(open_topology(dataset, max_bytes=max_bytes))
            held_bytes[name] = topology.held_bytes
            samplers[name] = make_sampler(args.sampler, topology, args.fanouts, 0)
        _turn(samplers["memory"], args, -1)  # loads the kernels
        for turn in range(args.turns):
            for name, sampler in samplers.items():
                before = _bytes_read()
                seconds.setdefault(name, []).append(_turn(sampler, args, turn))
                read_bytes.setdefault(name, []).append((_bytes_read() - before) / args.batches)
    result = {
        "benchmark": "paged_edges",
        **provenance(),
        "edge_bytes": dataset.arrays["indices"].num_bytes,
        "places": {
            name: {
                "held_bytes": held_bytes[name],
                "batch_s": times,
                "median_batch_s": statistics.median(times),
                "median_times_memory": statistics.median(
                    one / other for one, other in zip(times, seconds["memory"], strict=True)
                ),
                "read_bytes_per_batch": read_bytes[name],
            }
            for name, times in seconds.items()
        },
    }
    text = json.dumps(result, indent=1) + "\n"
    if args.out is not None:
        args.out.write_text(text)
    print(text)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=60_000_000)
    parser.add_argument("--sampler", default="neighbor")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--turns", type=int, default=5)
    return parser.parse_args()


def _places(dataset: Dataset) -> list[tuple[str, int]]:
    edges = dataset.arrays["indices"].num_bytes
    # Half of what a topology may take keeps pages.
    return [
        ("memory", dataset.topology_bytes),
        *((f"{share:g} of the edges", int(2 * share * edges)) for share in SHARES),
    ]


def _dataset(path: Path, nodes: int, edges: int) -> Dataset:
    if path.exists():
        return Dataset.open(path)
    graph = synthetic_graph("rmat", num_nodes=nodes, num_edges=edges, seed=1)
    with Dataset.create(path, name="rmat", num_nodes=nodes, num_classes=2) as writer:
        with writer.indptr() as column:
            column.append(graph.indptr)
        with writer.indices(edges, "int32") as column:
            column.append(graph.indices)
        with writer.features(DIM, "float32") as column:
            column.append(np.zeros((nodes, DIM), np.float32))
        writer.labels(np.zeros(nodes, np.int64))
        writer.splits(train=np.arange(nodes), valid=np.arange(0), test=np.arange(0))
    return Dataset.open(path)


def _turn(sampler: Sampler, args: Any, turn: int) -> float:
    """Return the seconds of a batch."""
    random = np.random.default_rng(turn + 1)
    seeds = [random.choice(args.nodes, args.batch, replace=False) for _ in range(args.batches)]
    started = time.perf_counter()
    for index, batch in enumerate(seeds):
        sampler.sample(BatchId(epoch=turn + 1, index=index), batch)
    return (time.perf_counter() - started) / int(args.batches)


def _bytes_read() -> int:
    """Return the bytes that this process had the disk read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


if __name__ == "__main__":
    main()
