"""A dry run at the shape of IGBH-small: make its files up, prepare them and train, each within a memory budget.

    python experiments/ogb/igbh_scale.py --workdir FOLDER --out experiments/results/DATE-igbh-scale

Scale 1 has IGBH-small's 1,000,000 papers, 1,926,066 authors, 14,751 institutes and 190,449 fields of study, its 25.5
million edges in four relations, three more as reverses, and citations in both directions; features are 1,024 floats,
as there, and stored as half-precision, as MLPerf allows. One epoch of training over 600,000 papers, and an evaluation
with all neighbours, as `gloader train` does them: two hops of 10 and 5 neighbours of each relation, 190,000 rows a
batch, since MLPerf's 15,10,5 would reach half of so small a graph with each batch. Takes 20 GB of disk at scale 1, for
the files and the dataset, and packs up to --spill-budget; removes what it made. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fabricate_hetero import SHAPES, fabricate_hetero
from watch import Watch, drop_from_page_cache

from gloader.core.units import format_bytes, parse_bytes
from gloader.lab.bench.environment import provenance

SMALL = SHAPES["igbh-small"]


def main() -> None:
    """Make up, prepare, train, and write the figures."""
    options = _options()
    options.workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gloader-igbh-", dir=options.workdir) as folder:
        result = _measure(Path(folder), options)
    text = _markdown(result)
    print(text)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        options.out.with_suffix(".md").write_text(text, encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of IGBH-small's nodes and edges")
    parser.add_argument("--prepare-budget", type=parse_bytes, default=parse_bytes("2GB"))
    parser.add_argument("--memory-budget", type=parse_bytes, default=parse_bytes("4GB"), help="of training")
    parser.add_argument("--spill-budget", type=parse_bytes, default=parse_bytes("4GB"))
    parser.add_argument("--model", default="rgat")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--fanout", default="10,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.md")
    return parser.parse_args()


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    dataset, scratch = folder / "dataset", folder / "scratch"
    scratch.mkdir()
    files = fabricate_hetero(folder / "files", "igbh-small", scale=options.scale)
    how = ["--dtype", "float16", "--memory-budget", str(options.prepare_budget)]
    prepared = _gloader(folder, "prepare", f"igbh:{files}", str(dataset), *how)
    drop_from_page_cache(dataset)
    flags = {
        "dataset": dataset,
        "out": folder / "run",
        "model": options.model,
        "hidden": options.hidden,
        "fanout": options.fanout,
        "batch-size": options.batch_size,
        "epochs": options.epochs,
        "lr": 0.001,
        "features": "ssd",
        "memory-budget": options.memory_budget,
        "spill-budget": options.spill_budget,
        "spill-dir": scratch,
    }
    trained = _gloader(
        folder, "train", *(word for name, value in flags.items() for word in (f"--{name}", str(value)))
    )
    settings = {name: value for name, value in vars(options).items() if name not in {"workdir", "out"}}
    shape = SMALL.scaled(options.scale)
    graph = {
        "num_nodes": dict(shape.nodes),
        "num_edges": {":".join(relation): count for relation, count in shape.edges.items()},
    }
    return {"settings": settings, "graph": graph, "prepare": prepared, "train": trained, **provenance()}


def _gloader(folder: Path, *words: str) -> dict[str, Any]:
    """Run one command in a process of its own, watch it from outside, and return its JSON, seconds and peaks."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "gloader", *words, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    watch = Watch(child.pid, folder)
    try:
        output, _ = child.communicate()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        peaks = watch.stop()
    if child.returncode:
        sys.exit(f"gloader {words[0]} failed with exit code {child.returncode}")
    found = dict(json.loads(output))
    return {**found, "watched": peaks, "command_seconds": time.perf_counter() - began}


def _markdown(result: dict[str, Any]) -> str:
    settings, graph, prepared, trained = (result[name] for name in ("settings", "graph", "prepare", "train"))
    nodes, edges = graph["num_nodes"], graph["num_edges"]
    lines = {
        "graph": f"{sum(nodes.values()):,} nodes of {len(nodes)} types, {sum(edges.values()):,} edges as they lie in "
        "the files, rows of 2 KB",
        "prepare: seconds; budget, peak anonymous memory": f"{prepared['command_seconds']:.1f}; "
        f"{_sizes(settings['prepare_budget'], prepared['watched']['peak_anonymous_bytes'])}",
        "train: budget, peak anonymous memory, peak disk": _sizes(
            settings["memory_budget"],
            trained["peak_anonymous_bytes"],  # above a bare import of torch, as the budget counts it
            trained["watched"]["peak_disk_bytes"],
        ),
        "train: seconds in all, of an epoch, of its evaluation": f"{trained['command_seconds']:.1f}, "
        f"{trained['epoch_seconds'][0]:.1f}, {trained['evaluate_seconds'][0]:.1f}",
        "batches, rows a batch, from memory": f"{trained['batches']:,}, "
        f"{trained['rows_gathered'] / trained['batches']:,.0f}, {trained['hit_rate']:.1%}",
        "read, written": _sizes(trained["bytes_read"], trained["bytes_written"]),
        "strategy": trained["io_strategy"],
        "accuracy, of made-up classes": f"{trained['test_acc']:.3f}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in lines.items())
    return f"`{result['command']}`\n\n| what | value |\n|---|---|\n{table}\n"


def _sizes(*values: int) -> str:
    return ", ".join(format_bytes(value) for value in values)


if __name__ == "__main__":
    main()
