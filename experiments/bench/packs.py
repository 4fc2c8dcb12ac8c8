"""Seconds to bring a superbatch's missing rows to their batches: read one by one, merged, packed and staged.

    python experiments/bench/packs.py --workdir /some/disk --out experiments/results/DATE-packs.json
    python experiments/bench/packs.py --workdir /some/disk --quick

An R-MAT graph is sampled and its trace planned by Belady, with the cache that the superbatch before leaves
behind and with the superbatch after as look-ahead; "ginex" starts each superbatch with an empty cache and knows
nothing beyond it. Only the retrieval of the misses is timed. Graph, features and traces stay in the working folder.

A  direct: a read for every missing row, batch by batch, holes never read through    G  the same for Ginex's misses
B  direct: rows merged over small holes
C  packed: one sweep writes each batch's rows to a region of their own, which is read back
D  staged: the same sweep into memory

The contenders take turns for some rounds, and who begins a round changes; a ratio is the median of the ratios of
the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.cache import plan_belady
from gloader.core.order import EpochOrder
from gloader.core.signals import NEVER
from gloader.core.units import format_bytes, parse_bytes
from gloader.lab.bench.environment import provenance
from gloader.lab.bench.graphs import synthetic_graph
from gloader.lab.inspect import sample_trace
from gloader.samplers import CscGraph, NeighborSampler
from gloader.ssd_store import DirectMisses, FeatureStore, MissSource, Packer, load_misses, packer_memory_bytes
from gloader.ssd_store.cost.profile import probe_device
from gloader.ssd_store.spill.folder import SpillFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    IdLists = list[NDArray[np.int32]]

DIM = 128
FANOUTS = (10, 10, 10)
_CHUNK_ROWS = 2**17
_WINDOWS = 3  # one to fill the cache, one to measure, one to look ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class PackWorkload:
    """A graph and how it is sampled."""

    nodes: int
    edges: int
    batch_size: int
    cache_share: float

    @property
    def name(self) -> str:
        """A folder name."""
        return f"rmat-{self.nodes}-{self.edges}-{self.batch_size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the table."""

    superbatch: int
    order: str  # "original" or "degree"
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSample:
    """One contender in one round."""

    seconds: float
    prepare_seconds: float  # of them, before the first batch could be read
    bytes_read: int
    bytes_written: int
    requests: int
    resident_bytes: int


def load_graph(workdir: Path, work: PackWorkload) -> CscGraph:
    """Return the graph, made once."""
    folder = workdir / work.name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "indices.npy").exists():
        graph = synthetic_graph("rmat", num_nodes=work.nodes, num_edges=work.edges, seed=1)
        np.save(folder / "indptr.npy", graph.indptr)
        np.save(folder / "part.npy", graph.indices)
        (folder / "part.npy").rename(folder / "indices.npy")
    return CscGraph(
        indptr=np.load(folder / "indptr.npy"), indices=np.load(folder / "indices.npy"), validate=False
    )


def load_trace(workdir: Path, work: PackWorkload, batches: int) -> tuple[IdLists, NDArray[np.int32]]:
    """Return the sorted unique rows of each batch, and the rank of each node by degree; made once."""
    folder = workdir / work.name
    bounds_file, ids_file, rank_file = (
        folder / f"{name}-{batches}.npy" for name in ("bounds", "ids", "rank")
    )
    if not bounds_file.exists():
        graph = load_graph(workdir, work)
        degree = np.diff(graph.indptr)
        for part in np.array_split(graph.indices, 1 + work.edges // 10**7):  # bincount copies to int64
            degree += np.bincount(part, minlength=work.nodes)
        rank = np.empty(work.nodes, np.int32)
        rank[np.argsort(-degree, kind="stable")] = np.arange(work.nodes, dtype=np.int32)
        np.save(rank_file, rank)
        seeds = np.flatnonzero(np.diff(graph.indptr))
        order = EpochOrder(seeds=seeds, num_nodes=graph.num_nodes, batch_size=work.batch_size, seed=0)
        trace = sample_trace(NeighborSampler(graph, FANOUTS, seed=0), order, batches=batches, threads=2)
        if len(trace.accesses) < batches:
            raise SystemExit(
                f"the graph gives {len(trace.accesses)} batches and {batches} are needed: lower --superbatch"
            )
        np.save(ids_file, np.concatenate([np.sort(ids) for ids in trace.accesses]))
        np.save(bounds_file, np.cumsum([0, *map(len, trace.accesses)]))
    bounds, ids = np.load(bounds_file), np.load(ids_file)
    return [ids[first:last] for first, last in pairwise(bounds)], np.load(rank_file)


def load_store(workdir: Path, work: PackWorkload, dtype: str) -> Path:
    """Return the folder of a store with a row for each node; made once."""
    folder = workdir / f"store-{work.nodes}-{DIM}-{dtype}"
    if not folder.exists():
        rng = np.random.default_rng(0)
        with FeatureStore.writer(folder, num_rows=work.nodes, dim=DIM, dtype=dtype) as writer:
            for start in range(0, work.nodes, _CHUNK_ROWS):
                writer.append(rng.random((min(_CHUNK_ROWS, work.nodes - start), DIM), np.float32))
    return folder


def plan_misses(batches: IdLists, superbatch: int, capacity: int) -> dict[str, IdLists]:
    """Return the missing rows of each batch of the middle superbatch, "carried" over and "ginex"'s way."""
    before, now, after = (batches[w * superbatch : (w + 1) * superbatch] for w in range(_WINDOWS))
    first = plan_belady(before, capacity=capacity, lookahead=now)
    plans = {
        "carried": plan_belady(now, capacity=capacity, resident=first.resident_after, lookahead=after),
        "ginex": plan_belady(now, capacity=capacity),
    }
    return {
        name: [np.sort(step.miss_row).astype(np.int32) for step in plan.steps] for name, plan in plans.items()
    }


class LazyMisses:
    """Missing rows as int64, a batch at a time, as the loader expands them from its plan."""

    def __init__(self, misses: IdLists) -> None:
        self._misses = misses

    def __len__(self) -> int:
        return len(self._misses)

    def __getitem__(self, batch: int) -> NDArray[np.int64]:
        if batch >= len(self._misses):
            raise IndexError(batch)
        return self._misses[batch].astype(np.int64)


def retrieve(
    misses: IdLists, out: NDArray[Any], prepare: Callable[[Sequence[Any]], MissSource], resident: int
) -> PackSample:
    """Bring every batch's missing rows to ``out`` and time it."""
    lists: Any = LazyMisses(misses)
    start = time.perf_counter()
    source = prepare(lists)
    prepared = time.perf_counter()
    bytes_read = requests = 0
    for batch in range(len(lists)):
        rows = lists[batch]
        stats = source.read_into(batch, rows, out, at=np.arange(rows.shape[0]))
        source.release(batch)
        bytes_read, requests = bytes_read + stats.bytes_read, requests + stats.requests
    seconds = time.perf_counter() - start
    cost = getattr(source, "cost", None)
    held = getattr(source, "resident_bytes", getattr(source, "num_bytes", 0))
    source.close()
    return PackSample(
        seconds=seconds,
        prepare_seconds=prepared - start,
        bytes_read=bytes_read + (cost.read.bytes_read if cost else 0),
        bytes_written=cost.bytes_written if cost else 0,
        requests=requests + (cost.read.requests + cost.writes if cost else 0),
        resident_bytes=resident + held,
    )


def run_case(case: Case, store_path: Path, misses: dict[str, IdLists], options: Any) -> dict[str, Any]:
    """Let the contenders take turns; return medians, ranges and ratios."""
    most = max(len(rows) for lists in misses.values() for rows in lists)
    memory = packer_memory_bytes(case.superbatch) if options.memory is None else parse_bytes(options.memory)
    with (
        FeatureStore.open(store_path, gap_bytes=0) as exact,
        FeatureStore.open(store_path) as merging,
        SpillFolder(options.workdir, budget_bytes=parse_bytes(options.spill_budget)) as spill,
        Packer(merging, spill, memory_bytes=memory) as packer,
    ):
        out = np.ones((most, DIM), merging.dtype)
        staging = 8 * 2**20

        def contend(name: str) -> PackSample:
            mine = misses["ginex" if name == "G" else "carried"]
            if name == "C":
                held = packer.resident_bytes + 4 * sum(map(len, mine))
                return retrieve(
                    mine,
                    out,
                    lambda lists: packer.pack(lists, superbatch=0, cancellation=NEVER),
                    held,
                )
            if name == "D":
                return retrieve(
                    mine,
                    out,
                    lambda lists: load_misses(merging, lists, cancellation=NEVER),
                    4 * 2**20,
                )
            store = merging if name == "B" else exact
            return retrieve(mine, out, lambda _lists: DirectMisses(store), staging)

        samples: dict[str, list[PackSample]] = {name: [] for name in options.contenders}
        _warm_up(misses, contend)
        for name in turns(options.contenders, options.rounds):
            samples[name].append(contend(name))
            print(f"    {name} {samples[name][-1].seconds:.2f} s", flush=True)
    return {**asdict(case), **summarize(samples), "misses": {k: sum(map(len, v)) for k, v in misses.items()}}


def _warm_up(misses: dict[str, IdLists], contend: Callable[[str], PackSample]) -> None:
    """Compile every kernel outside the timing."""
    whole = dict(misses)
    misses.update({name: [rows[:100] for rows in lists[:2]] for name, lists in whole.items()})
    for name in "ABCDG":
        contend(name)
    misses.update(whole)


def turns(names: str, rounds: int) -> Iterator[str]:
    """Yield who runs next; who begins a round changes."""
    for i in range(rounds):
        first = i % len(names)
        yield from names[first:] + names[:first]


def summarize(samples: dict[str, list[PackSample]]) -> dict[str, Any]:
    """Return each contender's medians and the ratios of the others to C. Pure."""
    result: dict[str, Any] = {}
    for name, runs in samples.items():
        seconds = [run.seconds for run in runs]
        result[name] = {
            **asdict(runs[-1]),
            "seconds": median(seconds),
            "seconds_range": [min(seconds), max(seconds)],
            "prepare_seconds": median(run.prepare_seconds for run in runs),
        }
    for name in samples.keys() - {"C"} if "C" in samples else ():
        ratios = [
            other.seconds / packed.seconds for other, packed in zip(samples[name], samples["C"], strict=True)
        ]
        result[f"{name}/C"] = {"median": median(ratios), "range": [min(ratios), max(ratios)]}
    return result


def print_case(result: dict[str, Any]) -> None:
    """Print one line for each contender."""
    print(
        f"S = {result['superbatch']}, {result['order']} order, {result['dtype']}: "
        f"{result['misses']['carried']:,} misses ({result['misses']['ginex']:,} Ginex's way)"
    )
    for name in (name for name in "GABCD" if name in result):
        r = result[name]
        ratio = result.get(f"{name}/C")
        print(
            f"  {name} {r['seconds']:7.2f} s ({r['seconds_range'][0]:.2f} to {r['seconds_range'][1]:.2f}), "
            f"prepared in {r['prepare_seconds']:.2f} s; read {format_bytes(r['bytes_read'])}, wrote "
            f"{format_bytes(r['bytes_written'])}, {r['requests']:,} requests, "
            f"memory {format_bytes(r['resident_bytes'])}"
            + (
                f"; {name}/C {ratio['median']:.2f} ({ratio['range'][0]:.2f} to {ratio['range'][1]:.2f})"
                if ratio
                else ""
            ),
            flush=True,
        )


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="on the disk to measure; kept")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    parser.add_argument("--quick", action="store_true", help="a small graph; ends in a minute")
    parser.add_argument("--nodes", type=int, default=8_400_000)
    parser.add_argument("--edges", type=int, default=200_000_000)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--cache-share", type=float, default=0.1, help="cache slots over nodes")
    parser.add_argument("--superbatch", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--orders", nargs="+", default=["original", "degree"])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--contenders", default="GABCD")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--spill-budget", default="40GB")
    parser.add_argument("--memory", help="of the packer's buffers, such as 16MiB")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.edges, options.batch_size = 400_000, 4_000_000, 200
        options.superbatch, options.rounds = [16], 2
    return options


def main() -> None:
    """Run every case and write the results."""
    options = read_arguments()
    work = PackWorkload(
        nodes=options.nodes,
        edges=options.edges,
        batch_size=options.batch_size,
        cache_share=options.cache_share,
    )
    options.workdir.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GLOADER_HOME", str(options.workdir / "home"))
    disk = asdict(probe_device(options.workdir))
    print(f"disk: {disk}, free {format_bytes(shutil.disk_usage(options.workdir).free)}", flush=True)
    batches, rank = load_trace(options.workdir, work, _WINDOWS * max(options.superbatch))
    touched = len(np.unique(np.concatenate(batches))) / work.nodes
    print(
        f"{sum(map(len, batches)) / len(batches):,.0f} rows a batch, {touched:.0%} of all touched", flush=True
    )
    results = []
    for superbatch in options.superbatch:
        misses = plan_misses(batches, superbatch, int(work.cache_share * work.nodes))
        for order in options.orders:
            ordered = {
                name: lists if order == "original" else [np.sort(rank[rows]) for rows in lists]
                for name, lists in misses.items()
            }
            for dtype in options.dtypes:
                case = Case(superbatch=superbatch, order=order, dtype=dtype)
                path = load_store(options.workdir, work, dtype)
                results.append(run_case(case, path, dict(ordered), options))
                print_case(results[-1])
    if options.out:
        report = {
            "benchmark": "packs",
            "workload": {**asdict(work), "fanouts": FANOUTS, "dim": DIM, "touched": touched},
            "disk": disk,
            "rounds": options.rounds,
            **provenance(),
            "results": results,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
