"""What the order of the rows on disk changes: rows per page, reads per batch, bytes read per useful byte.

Every graph is prepared once in each order. Batches are sampled from the first dataset and looked up in the others, so
that all orders answer the same requests. "Misses" are the rows that a cache of the tenth of the nodes with the
highest out-degree does not hold. The model time of a batch is reads / (reads per second) + bytes / (bytes per
second), the first less the bytes of a page, for the disk given by ``--iops`` and ``--bandwidth``.

    python experiments/bench/order.py --data DATA --workdir /var/tmp --out experiments/results/DATE-order.json

DATA holds the folders ``amazon_cs``, ``coauthor_phy`` and ``dblp``, laid out for ``npy:``; without it only the
synthetic graphs are measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import numpy as np

from gloader.convert.options import OrderName, PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.core.units import parse_bytes
from gloader.dataset import Dataset
from gloader.lab.bench.environment import provenance
from gloader.samplers import NeighborSampler
from gloader.ssd_store.read.extents import ALIGNMENT, min_extent_bytes, plan_extents
from gloader.types import BatchId

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.convert.source import Source
    from gloader.types import IdArray

FANOUTS = (10, 10)
MAX_BATCHES = 12
MAX_GAP_BYTES = 8192
MAX_EXTENT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderWorkload:
    """A graph and how it is read."""

    name: str
    source: str
    batch_size: int = 1000
    row_bytes: tuple[int | None, ...] = (None,)  # None: as stored; a number: as if rows had so many bytes


COMMUNITY = "synthetic:community,nodes=1000000,edges=20000000,dim=32"
WORKLOADS = (
    OrderWorkload(
        name="R-MAT", source="synthetic:rmat,nodes=2000000,edges=40000000,dim=32", row_bytes=(None, 512)
    ),
    OrderWorkload(name="communities, 16", source=COMMUNITY, row_bytes=(None, 512)),
    OrderWorkload(
        name="communities, 5,000",
        source=f"{COMMUNITY},communities=5000,homophily=0.85",
        row_bytes=(None, 512),
    ),
)
# Small graphs: batches of 1,000 would take nearly all of them.
REAL = ("amazon_cs", "coauthor_phy", "dblp")


def main() -> None:
    """Measure every graph in every order."""
    args = _parse()
    workloads = list(WORKLOADS)
    if args.data is not None:
        workloads += [
            OrderWorkload(name=name, source=f"npy:{args.data / name}", batch_size=100, row_bytes=(None, 512))
            for name in REAL
        ]
    rows: list[dict[str, object]] = []
    for workload in workloads:
        with tempfile.TemporaryDirectory(prefix="gloader-order-", dir=args.workdir) as folder:
            rows += _measure(workload, Path(folder), args)
    result = {
        "benchmark": "order",
        "fanouts": FANOUTS,
        "max_gap_bytes": MAX_GAP_BYTES,
        "disk": {"reads_per_second": args.iops, "bytes_per_second": args.bandwidth},
        "memory_budget_bytes": args.memory_budget,
        **provenance(),
        "rows": rows,
    }
    table = _table(result)
    print(table)
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(table + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of real graphs")
    parser.add_argument("--memory-budget", type=parse_bytes, default=parse_bytes("2GB"))
    parser.add_argument("--iops", type=int, default=86_000, help="random reads per second of the disk")
    parser.add_argument("--bandwidth", type=int, default=1_050_000_000, help="bytes per second of the disk")
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="JSON file for the result; a table goes beside it, as .md")
    return parser.parse_args()


def _measure(workload: OrderWorkload, folder: Path, args: argparse.Namespace) -> list[dict[str, object]]:
    """Return one row per order and row size."""
    rows: list[dict[str, object]] = []
    batches: list[IdArray] = []
    hot = np.empty(0, np.bool_)
    for order in get_args(OrderName):
        source = cast("Source", open_source(workload.source, SourceOptions()))  # orders are of one type
        options = PrepareOptions(order=order, memory_budget_bytes=args.memory_budget)
        report = prepare(source, folder / order, options)
        dataset = Dataset.open(folder / order)
        if not batches:
            batches, hot = _sample(dataset, workload.batch_size)
        place = _places(dataset)
        for given in workload.row_bytes:
            row_bytes = given or dataset.feature_dim * 4
            counts = {
                kind: _count([place[nodes] for nodes in wanted], row_bytes, args)
                for kind, wanted in (("all", batches), ("misses", [nodes[~hot[nodes]] for nodes in batches]))
            }
            rows.append(
                {
                    "graph": workload.name,
                    "nodes": dataset.num_nodes,
                    "edges": dataset.num_edges,
                    "batch_size": workload.batch_size,
                    "row_bytes": row_bytes,
                    "order": order,
                    "prepare_seconds": report.seconds,
                    "order_seconds": report.order_seconds,
                    "feature_seconds": report.feature_seconds,
                    **{kind: asdict(count) for kind, count in counts.items()},
                }
            )
            print(workload.name, row_bytes, order, flush=True)
    return rows


def _sample(dataset: Dataset, batch_size: int) -> tuple[list[IdArray], NDArray[np.bool_]]:
    """Return the nodes of some batches, and which nodes are among the tenth with the highest out-degree."""
    graph = dataset.load_graph()
    sampler = NeighborSampler(graph, FANOUTS, seed=0)
    seeds = np.random.default_rng(0).permutation(dataset.train)
    count = min(MAX_BATCHES, len(seeds) // batch_size)
    batches = [
        sampler.sample(BatchId(epoch=0, index=i), seeds[i * batch_size : (i + 1) * batch_size]).nodes
        for i in range(count)
    ]
    hot = np.zeros(dataset.num_nodes, np.bool_)
    degrees = np.bincount(graph.indices, minlength=dataset.num_nodes)
    hot[np.argsort(-degrees, kind="stable")[: dataset.num_nodes // 10]] = True
    return batches, hot


def _places(dataset: Dataset) -> IdArray:
    """Return the row of each node, by its id in the source."""
    place = np.arange(dataset.num_nodes, dtype=np.int64)
    return dataset.in_original_order(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What reading a batch takes, mean over the batches."""

    rows: float
    rows_per_page: float  # of 4 KiB, pages without a wanted row left out
    reads: float
    read_bytes_per_useful_byte: float
    model_ms: float


def _count(batches: list[IdArray], row_bytes: int, args: argparse.Namespace) -> Count:
    rows = pages = reads = num_bytes = 0
    for batch in batches:
        wanted = np.sort(batch)
        limits = {
            "row_bytes": row_bytes,
            "data_offset": ALIGNMENT,
            "max_extent_bytes": max(MAX_EXTENT_BYTES, min_extent_bytes(row_bytes)),
        }
        extents = plan_extents(wanted, max_gap_bytes=MAX_GAP_BYTES, **limits)
        pages += plan_extents(wanted, max_gap_bytes=0, **limits).num_bytes // ALIGNMENT
        rows += wanted.shape[0]
        reads += len(extents)
        num_bytes += extents.num_bytes
    per_read = 1 / args.iops - ALIGNMENT / args.bandwidth
    return Count(
        rows=rows / len(batches),
        rows_per_page=rows / pages,
        reads=reads / len(batches),
        read_bytes_per_useful_byte=num_bytes / (rows * row_bytes),
        model_ms=1e3 * (reads * per_read + num_bytes / args.bandwidth) / len(batches),
    )


_COLUMNS = (
    "graph",
    "batch",
    "row bytes",
    "order",
    "prepare s",
    "rows",
    "rows per page",
    "reads",
    "bytes read per useful",
    "model ms",
)


def _table(result: dict[str, object]) -> str:
    lines = [
        f"`{result['command']}`",
        "",
        "All rows of a batch / those that a cache of the hottest tenth misses.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
    ]
    rows = result["rows"]
    if not isinstance(rows, list):
        raise TypeError("a result has a list of rows")
    for row in rows:
        both = [row["all"], row["misses"]]
        cells = [
            row["graph"],
            f"{row['batch_size']:,}",
            f"{row['row_bytes']:,}",
            row["order"],
            f"{row['prepare_seconds']:.1f}",
            *(
                " / ".join(format(count[key], form) for count in both)
                for key, form in (
                    ("rows", ",.0f"),
                    ("rows_per_page", ".2f"),
                    ("reads", ",.0f"),
                    ("read_bytes_per_useful_byte", ".2f"),
                    ("model_ms", ".1f"),
                )
            ),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
