"""One loader for the ranks of a machine, against one for each: bytes from the SSD, and how well compute hides it.

Bytes: both ways have the same memory in all, and once more the same host cache in all; what they read is counted by
the loaders, so the page cache does not matter. Overlap: the step with nothing but loading, with nothing but compute
(matrix products, calibrated to the step of loading), and with both; the efficiency is the slower of the first two over
the third. Its rows are large, so that loading waits for the disk: on a machine with as many cores as ranks, loading
that computes itself has no core to run on beside the products.

    python experiments/bench/shared_loader.py --workdir /var/tmp --out experiments/results/DATE-shared-loader.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from ranks import be_rank, is_rank, run_group

from gloader.core.units import format_bytes, format_seconds, parse_bytes
from gloader.lab.bench.environment import provenance


def main() -> None:
    """Measure both, print a table, and write the numbers."""
    args = _parse()
    with tempfile.TemporaryDirectory(dir=args.workdir) as folder:
        dataset = _prepare(Path(folder) / "bytes", nodes=args.nodes, edges=args.edges, dim=args.dim)
        wide = _prepare(
            Path(folder) / "wide",
            nodes=args.overlap_nodes,
            edges=10 * args.overlap_nodes,
            dim=args.overlap_dim,
        )
        config = {
            "dataset": str(dataset),
            "fanouts": [int(number) for number in args.fanouts.split(",")],
            "batch_size": args.batch_size,
            "epochs": args.epochs,
            "threads": args.threads,
            "spill_dir": folder,
        }
        reads = [
            _bytes(args, config, sharing, same)
            for same in ("memory", "cache")
            for sharing in ("shared", "private")
        ]
        overlap = [_overlap(args, config | {"dataset": str(wide)}) for _ in range(args.repeats)]
    result = {
        "graph": vars(args) | {"workdir": None, "out": None},
        "reads": reads,
        "ratio": _ratio(reads[0], reads[1]),
        "ratio_of_equal_caches": _ratio(reads[2], reads[3]),
        "overlap": overlap,
        "overlap_efficiency": median(found["efficiency"] for found in overlap),
        **provenance(),
    }
    print(_table(result))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1, default=str) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=3_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--fanouts", default="10,5")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="200MB", help="of all ranks together")
    parser.add_argument("--cache", default="20MB", help="of all ranks together, with more memory beside it")
    parser.add_argument("--overlap-steps", type=int, default=60)
    parser.add_argument("--overlap-nodes", type=int, default=60_000)
    parser.add_argument("--overlap-dim", type=int, default=1024)
    parser.add_argument("--overlap-cache", default="2MB", help="small, so that loading waits for the disk")
    parser.add_argument("--overlap-batch-size", type=int, default=64)
    parser.add_argument("--overlap-fanouts", default="10,5")
    parser.add_argument("--compute-share", type=float, default=0.9, help="compute alone over loading alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workdir", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def _prepare(path: Path, *, nodes: int, edges: int, dim: int) -> Path:
    from gloader.convert.options import PrepareOptions, SourceOptions
    from gloader.convert.prepare import prepare
    from gloader.convert.registry import open_source

    spec = f"synthetic:rmat,nodes={nodes},edges={edges},dim={dim},classes=8,seed=5"
    prepare(open_source(spec, SourceOptions()), path, PrepareOptions())
    return path


def _ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    return float(ours["bytes_read"] / theirs["bytes_read"])


def _bytes(args: argparse.Namespace, config: dict[str, Any], sharing: str, same: str) -> dict[str, Any]:
    """Return what all ranks read, with the ``same`` memory or cache in all."""
    parts = 1 if sharing == "shared" else args.world
    more = {
        "sharing": sharing,
        "cache": None,
        "memory_budget": parse_bytes(args.memory) // parts,
        "task": "bytes",
    }
    if same == "cache":
        more |= {"cache": parse_bytes(args.cache) // parts, "memory_budget": 2 * parse_bytes(args.memory)}
    ranks = run_group(__file__, args.world, config | more)
    return {
        "sharing": sharing,
        "same": same,
        "bytes_read": sum(rank["bytes_read"] for rank in ranks),
        "rows_read": sum(rank["rows_read"] for rank in ranks),
        "rows_gathered": sum(rank["rows_gathered"] for rank in ranks),
        "seconds": max(rank["seconds"] for rank in ranks),
        "cache_rows": [rank["cache_rows"] for rank in ranks],
        "epochs": [rank["epochs"] for rank in ranks],
    }


def _overlap(args: argparse.Namespace, config: dict[str, Any]) -> dict[str, Any]:
    more = {
        "sharing": "shared",
        "cache": parse_bytes(args.overlap_cache),
        "memory_budget": 2 * parse_bytes(args.memory),
        "io_strategy": "direct",
        "batch_size": args.overlap_batch_size,
        "fanouts": [int(number) for number in args.overlap_fanouts.split(",")],
        "steps": args.overlap_steps,
        "compute_share": args.compute_share,
        "task": "overlap",
    }
    ranks = run_group(__file__, args.world, config | more)
    load, compute, both = (max(rank[name] for rank in ranks) for name in ("load_s", "compute_s", "both_s"))
    return {"load_s": load, "compute_s": compute, "both_s": both, "efficiency": max(load, compute) / both}


def _table(result: dict[str, Any]) -> str:
    lines = [
        "| loader | same | cache rows | rows gathered | rows read | from the SSD | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {found['sharing']} | {found['same']} | {' + '.join(f'{rows:,}' for rows in found['cache_rows'])} "
        f"| {found['rows_gathered']:,} | {found['rows_read']:,} "
        f"| {format_bytes(found['bytes_read'])} | {found['seconds']:.1f} |"
        for found in result["reads"]
    ]
    lines.append(
        f"\nshared / private: {result['ratio']:.2f} of the bytes with the same memory, "
        f"{result['ratio_of_equal_caches']:.2f} with the same cache\n"
    )
    lines += ["| loading alone | compute alone | both | efficiency |", "|---|---|---|---|"]
    lines += [
        f"| {format_seconds(found['load_s'])} | {format_seconds(found['compute_s'])} "
        f"| {format_seconds(found['both_s'])} | {found['efficiency']:.2f} |"
        for found in result["overlap"]
    ]
    return "\n".join(lines)


# --- on a rank


def _work(config: dict[str, Any]) -> dict[str, Any]:
    import gloader

    names = ("fanouts", "batch_size", "threads", "spill_dir", "sharing", "cache", "memory_budget")
    settings = {name: config[name] for name in names} | {"features": "ssd"}
    if "io_strategy" in config:
        settings["io_strategy"] = config["io_strategy"]
    with gloader.Loader(gloader.Dataset.open(config["dataset"]), **settings) as loader:
        return _count(loader, config) if config["task"] == "bytes" else _time(loader, config)


def _count(loader: Any, config: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    epochs = []
    for _ in range(config["epochs"]):
        for _ in loader:
            pass
        epochs.append(dataclasses.asdict(loader.stats))
    names = ("bytes_read", "rows_read", "rows_gathered")
    sums = {name: sum(stats[name] for stats in epochs) for name in names}
    rows = (
        sum(loader.memory_plan.cache_rows) if sums["rows_gathered"] else 0
    )  # a rank that is loaded for has none
    return sums | {"seconds": time.perf_counter() - started, "cache_rows": rows, "epochs": epochs}


def _time(loader: Any, config: dict[str, Any]) -> dict[str, float]:
    """Return the median step of loading, of computing, and of both, in seconds; ranks step together."""
    import torch
    from torch import distributed

    left = torch.rand(384, 384)
    agreed = torch.zeros(1, dtype=torch.float64)

    def agree(value: float) -> float:
        agreed[0] = value
        distributed.all_reduce(agreed, op=distributed.ReduceOp.MAX)
        return float(agreed)

    def compute(products: int) -> None:
        out = left
        for _ in range(products):
            out = torch.mm(left, out)

    def steps(products: int, *, loads: bool) -> float:
        seconds: list[float] = []
        batches = _endless(loader) if loads else None
        began = time.perf_counter()
        while len(seconds) < config["steps"]:
            if batches is not None:
                next(batches)
            compute(products)
            agree(0.0)  # what DDP does
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
        if batches is not None:
            batches.close()
        return sum(seconds[5:]) / len(seconds[5:])  # the first ones wait for the first superbatch

    load_s = agree(steps(0, loads=True))
    trial = 20
    compute_s = agree(steps(trial, loads=False))
    products = max(1, round(trial * config["compute_share"] * load_s / compute_s))
    compute_s = agree(steps(products, loads=False))
    return {"load_s": load_s, "compute_s": compute_s, "both_s": agree(steps(products, loads=True))}


def _endless(loader: Any) -> Any:
    while True:
        yield from loader


if __name__ == "__main__":
    if is_rank():
        be_rank(_work)
    else:
        main()
