"""A dry run at the size of ogbn-papers100M: generate, prepare and train a little, each within a memory budget.

    python experiments/ogb/papers_scale.py --scale 0.05 --workdir FOLDER --out experiments/results/DATE-papers-scale

Scale 1 has papers100M's 111,059,956 nodes, 1,615,685,872 edges, 172 classes and 1,207,179 training nodes, as a
community graph; its rows have --dim columns, a quarter of the 128 there, in half precision: an eighth of the bytes.
Takes 16 GB of disk at scale 1, and packs up to --spill-budget; removes what it made. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fabricate import SHAPES
from watch import Watch, drop_from_page_cache

from gloader.core.units import format_bytes, parse_bytes
from gloader.lab.bench.environment import provenance

CHILD = Path(__file__).with_name("papers_scale_child.py")
PAPERS = SHAPES["ogbn-papers100M"]


def main() -> None:
    """Prepare, train, and write the figures."""
    options = _options()
    options.workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gloader-papers-", dir=options.workdir) as folder:
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
    parser.add_argument("--scale", type=float, default=0.05, help="of papers100M's nodes and edges")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--prepare-budget", type=parse_bytes, default=parse_bytes("4GB"))
    parser.add_argument("--memory-budget", type=parse_bytes, default=parse_bytes("4GB"), help="of training")
    parser.add_argument("--spill-budget", type=parse_bytes, default=parse_bytes("4GB"))
    parser.add_argument("--model", default="graphsage")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--fanout", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--policy", default="belady")
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.md")
    return parser.parse_args()


def graph_spec(scale: float, dim: int) -> str:
    """Return the ``synthetic:`` source that has papers100M's proportions. Pure."""
    nodes, edges = round(scale * PAPERS.nodes), round(scale * PAPERS.edges) // 2 * 2
    return (
        f"synthetic:community,nodes={nodes},edges={edges},dim={dim},classes={PAPERS.classes},seed=1,"
        f"train={PAPERS.train / PAPERS.nodes:.6f},valid={PAPERS.valid / PAPERS.nodes:.6f}"
    )


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    dataset, scratch = folder / "dataset", folder / "scratch"
    scratch.mkdir()
    spec = graph_spec(options.scale, options.dim)
    prepared = _run(
        {
            "task": "prepare",
            "spec": spec,
            "dataset": str(dataset),
            "budget": options.prepare_budget,
            "dtype": options.dtype,
        },
        folder,
    )
    drop_from_page_cache(dataset)
    trained = _run(
        {
            "task": "train",
            "dataset": str(dataset),
            "scratch": str(scratch),
            "budget": options.memory_budget,
            "spill": options.spill_budget,
            "model": options.model,
            "hidden": options.hidden,
            "fanouts": [int(fanout) for fanout in options.fanout.split(",")],
            "batch_size": options.batch_size,
            "batches": options.batches,
            "policy": options.policy,
        },
        folder,
    )
    return {
        "source": spec,
        "settings": {name: value for name, value in vars(options).items() if name not in {"workdir", "out"}},
        "prepare": prepared,
        "train": trained,
        **provenance(),
    }


def _run(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run one task in a process of its own and watch it from outside."""
    environment = os.environ | {"TMPDIR": str(folder)}
    child = subprocess.Popen(
        [sys.executable, str(CHILD), json.dumps(job)], stdout=subprocess.PIPE, text=True, env=environment
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
        sys.exit(f"{job['task']} failed with exit code {child.returncode}")
    return dict(json.loads(output.splitlines()[-1])) | peaks


def _markdown(result: dict[str, Any]) -> str:
    settings, prepared, trained = result["settings"], result["prepare"], result["train"]
    stats = trained["last_epoch"]
    batches = max(stats["batches"], 1)
    reads = stats["bytes_read"] / batches
    lines = {
        "graph": f"{prepared['num_nodes']:,} nodes, {prepared['num_edges']:,} edges, {prepared['feature_dim']} x "
        f"{prepared['feature_dtype']}",
        "prepare: budget, peak anonymous, peak resident": _memory(prepared, prepared["budget_bytes"]),
        "prepare: seconds (labels, edges, features)": f"{prepared['open_seconds'] + prepared['seconds']:.1f} "
        f"({prepared['open_seconds']:.1f}, {prepared['edge_seconds']:.1f}, {prepared['feature_seconds']:.1f})",
        "disk: dataset, peak": _sizes(prepared["dataset_bytes"], prepared["peak_disk_bytes"]),
        "train: budget, peak anonymous, peak resident": _memory(trained, settings["memory_budget"]),
        "train: peak disk, packs included": _sizes(trained["peak_disk_bytes"]),
        "budget check, loader, first batch": f"{trained['probe_seconds']:.1f} s, "
        f"{trained['construction_seconds']:.1f} s, {trained['first_batch_s']:.1f} s",
        "batches, seconds": f"{trained['batches']} of {trained['batches_per_epoch']} a pass, {trained['seconds']:.1f}",
        "step: median, 90%, of which waiting": f"{trained['step_median_s']:.3f} s, {trained['step_p90_s']:.3f} s, "
        f"{trained['wait_median_s']:.3f} s",
        "rows per batch, from memory": f"{trained['rows_per_batch']:,.0f}, "
        f"{stats['cache_hits'] / max(stats['rows_gathered'], 1):.1%}",
        "read per batch": f"{format_bytes(int(reads))} in {stats['requests'] / batches:,.0f} requests",
        "written": format_bytes(stats["bytes_written"]),
        "superbatch, strategy": f"{trained['superbatch']} batches, {trained['strategy']}",
        "loss, first and last ten": f"{trained['loss_first_10']:.3f}, {trained['loss_last_10']:.3f}",
        "bottleneck": trained["bottleneck"],
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in lines.items())
    return (
        f"`python experiments/ogb/papers_scale.py --scale {settings['scale']} --dim {settings['dim']} --batches "
        f"{settings['batches']}`\n\n`{result['source']}`\n\n| what | value |\n|---|---|\n{table}\n"
    )


def _memory(figures: dict[str, Any], budget: int) -> str:
    peaks = _sizes(budget, figures["peak_anonymous_bytes"], figures["peak_resident_bytes"])
    return f"{peaks} ({format_bytes(figures['start_anonymous_bytes'])} of it anonymous before the work began)"


def _sizes(*values: int) -> str:
    return ", ".join(format_bytes(value) for value in values)


if __name__ == "__main__":
    main()
