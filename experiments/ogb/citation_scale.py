"""A dry run at the shape of ogbl-citation2: make its files up, prepare them, train a little and rank some edges.

    python experiments/ogb/citation_scale.py --scale 0.05 --workdir FOLDER --out experiments/results/DATE-citation-scale

Scale 1 has ogbl-citation2's 2,927,963 nodes with 128 floats, and its 30,387,995 training edges, stored in both
directions as OGB's example does; each command runs in a process of its own within its budget. Training is OGB's
recipe, but over --batches batches of 512 edges alone, with the features on the SSD and a tenth of them in memory. The
evaluation computes the embeddings of all nodes from all neighbours, and ranks --held-out edges of each part among 1,000
negatives each. Takes 6 GB of disk at scale 1, and packs and embeddings beside; removes what it made. Writes OUT.json
and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fabricate_links import LINK_SHAPES, fabricate_links
from watch import Watch, drop_from_page_cache

from gloader.core.units import format_bytes, parse_bytes
from gloader.lab.bench.environment import provenance

NAME = "ogbl-citation2"
BATCH = 512


def main() -> None:
    """Make up, prepare, train, and write the figures."""
    options = _options()
    options.workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gloader-citation-", dir=options.workdir) as folder:
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
    parser.add_argument("--scale", type=float, default=0.05, help="of ogbl-citation2's nodes and edges")
    parser.add_argument("--held-out", type=int, default=2000, help="edges to validate with, and to test with")
    parser.add_argument("--batches", type=int, default=60, help=f"of {BATCH} edges, to train on")
    parser.add_argument(
        "--prepare-budget",
        type=parse_bytes,
        default=parse_bytes("1GB"),
        help="2 GB at scale 1, as OGB's files of the split are pickled arrays that are read whole",
    )
    parser.add_argument("--memory-budget", type=parse_bytes, default=parse_bytes("3GB"), help="of training")
    parser.add_argument("--cache", default="10%", help="of the features, in memory")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--fanout", default="15,10,5")
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.md")
    return parser.parse_args()


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    dataset, scratch, seeds = folder / "dataset", folder / "scratch", folder / "seeds.npy"
    scratch.mkdir()
    shape = replace(LINK_SHAPES[NAME].scaled(options.scale), valid=options.held_out, test=options.held_out)
    began = time.perf_counter()
    files = fabricate_links(folder / "files", NAME, shape)
    _some_edges(files / "split" / shape.split / "train.pt", BATCH * options.batches, seeds)
    fabricated = time.perf_counter() - began
    how = ["--symmetrize", "--edge-table", f"some={seeds}", "--memory-budget", str(options.prepare_budget)]
    prepared = _gloader(folder, "prepare", f"ogb:{NAME}@{folder / 'files'}", str(dataset), *how)
    drop_from_page_cache(dataset)
    flags = {
        "dataset": dataset,
        "out": folder / "run",
        "task": "link",
        "edges": "some",
        "metric": "mrr",
        "negatives": "binary:1",
        "decoder": "mlp",
        "model": "graphsage",
        "hidden": options.hidden,
        "dropout": 0.0,
        "fanout": options.fanout,
        "batch-size": BATCH,
        "epochs": 1,
        "lr": 0.0005,
        "features": "ssd",
        "cache": options.cache,
        "memory-budget": options.memory_budget,
        "spill-dir": scratch,
    }
    words = (word for name, value in flags.items() for word in (f"--{name}", str(value)))
    trained = _gloader(folder, "train", *words)
    settings = {name: value for name, value in vars(options).items() if name not in {"workdir", "out"}}
    return {
        "settings": settings,
        "graph": asdict(shape),
        "fabricate_seconds": fabricated,
        "prepare": prepared,
        "train": trained,
        **provenance(),
    }


def _some_edges(file: Path, count: int, out: Path) -> None:
    """Write ``count`` of the training edges in ``file`` as the table that is trained on."""
    held = torch.load(file, weights_only=False)  # written by ourselves
    pairs = np.stack([held["source_node"], held["target_node"]], axis=1)
    np.save(out, pairs[np.linspace(0, len(pairs) - 1, min(count, len(pairs))).astype(np.int64)])


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
    pairs = 2 * graph["valid"] * (1 + graph["each"])
    lines = {
        "graph": f"{graph['nodes']:,} nodes with {graph['dim']} floats, {graph['train']:,} edges in the file, stored "
        "in both directions",
        "making the files up": f"{result['fabricate_seconds']:.1f} s",
        "prepare: seconds; budget, peak anonymous memory": f"{prepared['command_seconds']:.1f}; "
        f"{_sizes(settings['prepare_budget'], prepared['watched']['peak_anonymous_bytes'])}",
        "train: budget, peak anonymous memory, peak disk of all": _sizes(
            settings["memory_budget"],
            trained["peak_anonymous_bytes"],  # above a bare import of torch, as the budget counts it
            trained["watched"]["peak_disk_bytes"],
        ),
        "train: seconds in all, of the batches, of the evaluations": f"{trained['command_seconds']:.1f}, "
        f"{trained['epoch_seconds'][0]:.1f}, {trained['evaluate_seconds'][0]:.1f} and as much again",
        "batches, rows a batch, from memory": f"{trained['batches']:,}, "
        f"{trained['rows_gathered'] / trained['batches']:,.0f}, {trained['hit_rate']:.1%}",
        "read, written": _sizes(trained["bytes_read"], trained["bytes_written"]),
        "strategy": trained["io_strategy"],
        "pairs scored, MRR of made-up edges": f"{pairs:,}, {trained['test_mrr']:.3f}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in lines.items())
    return f"`{result['command']}`\n\n| what | value |\n|---|---|\n{table}\n"


def _sizes(*values: int) -> str:
    return ", ".join(format_bytes(value) for value in values)


if __name__ == "__main__":
    main()
