"""One DGL training loop over three homes of the features: a tensor in memory, numpy.memmap, and gloader's store.

The loop is DGL's (blocks, `dgl.nn.SAGEConv`); only where mini-batches come from differs. Each run is a child process on
cold caches. Memmap (with MADV_RANDOM, its better setting here) and store run in a control group of their own with
``--limit-share`` of the feature bytes (cgroup v1, as root; without, the table says so); memory runs without a limit.

    python experiments/bench/dgl_out_of_core.py --workdir /var/tmp --out experiments/results/DATE-dgl-out-of-core.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gloader import Dataset
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.core.units import format_bytes, parse_bytes
from gloader.lab.bench.environment import provenance

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUP = Path("/sys/fs/cgroup/memory")
CHILD = Path(__file__).with_name("dgl_out_of_core_child.py")
HOMES = ("memory", "memmap", "store")


def main() -> None:
    """Make the graph, run the loop over each home, print a table, write JSON."""
    args = _parse()
    args.workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gloader-bench-", dir=args.workdir) as folder:
        dataset = _dataset(Path(folder) / "dataset", args)
        limit = int(args.limit_share * dataset.feature_bytes) + args.libraries
        runs = {home: _run(home, dataset, args, limit) for home in args.homes.split(",")}
        result = {
            "feature_bytes": dataset.feature_bytes,
            "row_bytes": 4 * dataset.feature_dim,
            "num_nodes": dataset.num_nodes,
            "num_edges": dataset.num_edges,
            "limit_bytes": limit,
            "runs": runs,
            "read_ahead_kb": _read_ahead(args.workdir),
            **provenance(),
        }
    print(_table(result))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(_table(result) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--edges", type=int, default=60_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--fanout", default="10,10")
    parser.add_argument("--batch-size", type=int, default=1_024)
    parser.add_argument("--batches", type=int, default=100, help="steps that are timed, after five")
    parser.add_argument("--limit-share", type=float, default=0.25, help="of the feature bytes")
    parser.add_argument(
        "--libraries", type=parse_bytes, default=0, help="added to the limit, for graphs of a few GB"
    )
    parser.add_argument("--homes", default=",".join(HOMES))
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="JSON file for the result; a table goes beside it, as .md")
    return parser.parse_args()


def _dataset(path: Path, args: argparse.Namespace) -> Dataset:
    spec = f"synthetic:rmat,nodes={args.nodes},edges={args.edges},dim={args.dim},classes=8,seed=5"
    prepare(open_source(spec, SourceOptions()), path, PrepareOptions())
    return Dataset.open(path)


def _run(home: str, dataset: Dataset, args: argparse.Namespace, limit: int) -> dict[str, Any]:
    _drop_cached_pages(dataset.root)
    with _control_group(limit if home != "memory" else None) as group:
        order = {
            "home": home,
            "dataset": str(dataset.root),
            "fanouts": [int(fanout) for fanout in args.fanout.split(",")],
            "batch_size": args.batch_size,
            "batches": args.batches,
            "limit_bytes": limit,
            "group": None if group is None else str(group),
        }
        done = subprocess.run(
            [sys.executable, str(CHILD), json.dumps(order)],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"DGLBACKEND": "pytorch"},
        )
        if done.returncode:
            return {"failed": f"exit code {done.returncode}", "is_limited": group is not None}
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        found["is_limited"] = group is not None
        if group is not None:
            found["group_peak_bytes"] = int((group / "memory.max_usage_in_bytes").read_text())
    return found


def _drop_cached_pages(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _control_group(limit: int | None) -> Iterator[Path | None]:
    """Make a control group with a memory limit; None where none is asked for or can be made."""
    group = CGROUP / f"gloader-bench-{os.getpid()}"
    try:
        if limit is not None:
            group.mkdir()
    except OSError as error:
        print(f"no memory control group can be made here ({error}): runs are not limited", file=sys.stderr)
        limit = None
    if limit is None:
        yield None
        return
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        yield group
    finally:
        group.rmdir()


def _read_ahead(folder: Path) -> dict[str, str]:
    """Return the read-ahead of every disk, since it decides how a memmap fares."""
    del folder  # which disk holds it is not always visible
    return {
        path.parts[3]: path.read_text().strip() for path in Path("/sys/block").glob("*/queue/read_ahead_kb")
    }


def _table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['num_nodes']:,} nodes, {result['num_edges']:,} edges, {format_bytes(result['feature_bytes'])}.",
        f"Rows of {result['row_bytes']:,} B; limit {format_bytes(result['limit_bytes'])}.",
        "",
        "| features in | limit | step, median | step, mean | read | peak resident | group's peak | loss |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for home, run in result["runs"].items():
        limit = "yes" if run["is_limited"] else "none"
        if "failed" in run:
            lines.append(f"| {home} | {limit} | {run['failed']} | | | | | |")
            continue
        steps = run["step_s"]
        group = format_bytes(run["group_peak_bytes"]) if "group_peak_bytes" in run else ""
        lines.append(
            f"| {home} | {limit} | {1e3 * statistics.median(steps):.0f} ms | {1e3 * statistics.mean(steps):.0f} ms | "
            f"{format_bytes(run['bytes_read'])} | {format_bytes(run['peak_resident_bytes'])} | {group} | "
            f"{run['loss']:.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
