"""Propagation beside scipy's sparse product and PyG's `T.SIGN`: in memory, and with a tenth of the memory.

    python experiments/bench/propagate.py --workdir DIR --out experiments/results/DATE-propagate

The graphs are R-MAT and uniform, with GCN's norm. In memory, the contenders take turns in one process on given cores,
with rows and edges already there; a turn is a number of hops. scipy's product has one thread. The form with two, which
share the edges, is ours. Out of core, each contender is a process of its own that begins with cold files:
`gloader.propagate` writes a dataset, and scipy and PyG load the same files, compute, and save the same columns. gloader
and scipy over `numpy.memmap` are in a control group (version 1). Its limit is a tenth of rows and edges above what the
process holds once its modules are loaded; the page cache is a part of that. Bytes read are those of /proc/self/io.
Figures are medians over the rounds; ratios are medians of the ratios of each round. Processor time is that of all
threads, and other programs hardly change it.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import statistics
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from control_group import GROUPS, GroupWatch, call_child, limited

from gloader import Dataset
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.core.units import format_bytes, format_seconds
from gloader.dataset.topology import open_hetero_topology
from gloader.lab.bench.environment import provenance
from gloader.training.propagation.chains import PropagateSpec, grow_chains
from gloader.training.propagation.propagate_rows import propagate
from gloader.training.propagation.propagation_plan import GraphSizes, plan_propagation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

KINDS: Final = {"rmat": "", "uniform": ",a=0.25,b=0.25,c=0.25"}
SHARE: Final = 0.1  # memory budget, of the bytes of rows and edges
SLACK_BYTES: Final = 32 << 20  # of the limit, beside budget and loaded modules
COMPARED_ROWS: Final = 1000  # rows of the last hop, compared with those of scipy
SAVED_ROWS: Final = 10_000  # rows that are written together


def main() -> None:
    """Measure every graph, print a line a figure, and write the table."""
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        job = json.loads(sys.argv[1])
        print(json.dumps(_PARTS[job["part"]](job)))
        return
    options = _options()
    options.workdir.mkdir(parents=True, exist_ok=True)
    cases: list[dict[str, Any]] = []
    for kind in options.graphs:
        data = Dataset.open(_graph(kind, options))
        for cores in options.cores:
            cases.extend(_in_memory(kind, data, cores, hops, options) for hops in options.hops)
        if options.cold:
            cases.append(_out_of_core(kind, data, options))
    text = "\n".join(_lines(cases)) + "\n"
    print(text)
    if options.out is not None:
        body = {**provenance(), "cases": cases}
        options.out.with_suffix(".json").write_text(json.dumps(body, indent=1) + "\n", "utf-8")
        options.out.with_suffix(".md").write_text(text, "utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="folder on the measured disk")
    parser.add_argument("--graphs", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=32_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument(
        "--cores", nargs="*", type=int, default=[1, 2], help="in memory; none: leave that out"
    )
    parser.add_argument("--hops", nargs="*", type=int, default=[1, 3], help="of a turn in memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--cold", nargs="*", default=["gloader", "scipy", "memmap", "sign"], choices=list(_COLD)
    )
    parser.add_argument(
        "--deadline", type=float, default=240, help="seconds, after which memmap's hops are in proportion"
    )
    parser.add_argument("--out", type=Path, help="two files, .md and .json")
    return parser.parse_args()


def _graph(kind: str, options: argparse.Namespace) -> Path:
    """Return the dataset of a graph, made where it is missing."""
    folder: Path = options.workdir / f"{kind}-{options.nodes}-{options.edges}-{options.dim}"
    if not folder.exists():
        spec = f"synthetic:rmat,nodes={options.nodes},edges={options.edges},dim={options.dim},seed=1{KINDS[kind]}"
        prepare(open_source(spec, SourceOptions()), folder, PrepareOptions())
    return folder


def _in_memory(
    kind: str, data: Dataset, cores: int, hops: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the seconds of a turn of each contender with everything in memory."""
    job = {"part": "memory", "folder": str(data.root), "cores": cores, "hops": hops, "rounds": options.rounds}
    status, output, errors = call_child(Path(__file__).resolve(), job, group=None, timeout_s=3600)
    if status != 0:
        raise SystemExit(errors)
    found = json.loads(output.splitlines()[-1])
    case = {"graph": kind, "part": "memory", "cores": cores, "hops": hops, **_size(data), **found}
    for name in case["seconds"]:
        if name != "gloader":
            for unit in ("seconds", "processor_s"):
                case[f"{unit} to {name}"] = _ratio(case[unit]["gloader"], case[unit][name])
    print(json.dumps(case), flush=True)
    return case


def _out_of_core(kind: str, data: Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of each contender that begins with cold files."""
    budget = int(SHARE * (data.feature_bytes + data.topology_bytes))
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.cold}
    for number in range(options.rounds):
        for name in options.cold if number % 2 == 0 else reversed(options.cold):
            if name in ("memmap", "sign") and runs[name]:
                continue  # one round: these take minutes, and no ratio rests on them
            runs[name].append(_cold_run(name, data, budget, options))
            print(json.dumps({"graph": kind, "contender": name, **runs[name][-1]}), flush=True)
    case = {"graph": kind, "part": "cold", "budget_bytes": budget, "hops": 3, **_size(data), "runs": runs}
    if runs.get("gloader") and runs.get("scipy"):
        own, peer = ([run["seconds"] for run in runs[name]] for name in ("gloader", "scipy"))
        case["to scipy"] = _ratio(own, peer)
        case["to scipy's products"] = _ratio(own, [run["products_s"] for run in runs["scipy"]])
    return case


def _cold_run(name: str, data: Dataset, budget: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one contender in a process of its own; return its figures."""
    scratch = options.workdir / "propagate-out"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    _drop(data.root)
    job = {"part": "cold", "contender": name, "folder": str(data.root), "out": str(scratch), "budget": budget}
    job["deadline_s"] = options.deadline
    limit = None
    if name in ("gloader", "memmap"):
        limit = budget + _loaded_bytes(name, scratch) + SLACK_BYTES
    with limited(GROUPS, limit) as group:
        watch = GroupWatch(group, scratch)
        try:
            status, output, errors = call_child(Path(__file__).resolve(), job, group=group, timeout_s=3600)
        finally:
            peaks = watch.stop()
    shutil.rmtree(scratch, ignore_errors=True)
    if status != 0:
        raise SystemExit(f"{name} ended with {status}: {errors[-3000:]}")
    return {
        **json.loads(output.splitlines()[-1]),
        "limit_bytes": limit,
        "is_limited": group is not None,
        **peaks,
    }


def _loaded_bytes(name: str, scratch: Path) -> int:
    """Return what a contender's process holds once its modules are loaded."""
    job = {"part": "loaded", "contender": name, "out": str(scratch / "loaded")}
    Path(job["out"]).mkdir()
    _, output, errors = call_child(Path(__file__).resolve(), job, group=None, timeout_s=600)
    if not output:
        raise SystemExit(errors)
    return int(json.loads(output.splitlines()[-1]))


def _size(data: Dataset) -> dict[str, int]:
    return {
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "dim": data.feature_dim,
        "row_bytes": data.feature_bytes,
        "edge_bytes": data.topology_bytes,
    }


def _ratio(own: list[float], peer: list[float]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(own, peer, strict=True)]
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def _drop(folder: Path) -> None:
    """Drop a dataset's files from the page cache."""
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


# ---- in the child processes


def _memory_part(job: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of each contender's turns, and the largest difference between their rows."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["cores"]])
    folder, hops = Path(job["folder"]), job["hops"]
    contenders: dict[str, Callable[[], Matrix]] = {}
    matrix, x = _adjacency(folder), np.load(folder / "features.npy")
    contenders["scipy"] = lambda: _powers(lambda rows: matrix @ rows, x, hops)
    if job["cores"] > 1:
        contenders["scipy in two threads"] = lambda: _powers(lambda rows: _in_threads(matrix, rows), x, hops)
    names = (*contenders, "gloader")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    processor: dict[str, list[float]] = {name: [] for name in names}
    with _own_hops(folder, x, hops, threads=job["cores"]) as own:
        contenders["gloader"] = own
        last = {name: contenders[name]() for name in ("scipy", "gloader")}  # kernels are compiled then
        for number in range(job["rounds"]):
            for name in names if number % 2 == 0 else reversed(names):
                started, used = time.perf_counter(), time.process_time()
                contenders[name]()
                seconds[name].append(time.perf_counter() - started)
                processor[name].append(time.process_time() - used)
    difference = float(np.abs(last["gloader"] - last["scipy"][:COMPARED_ROWS]).max())
    figures = {"largest_difference": difference, "load": os.getloadavg()[0]}
    return {"seconds": seconds, "processor_s": processor, **figures}


def _adjacency(folder: Path) -> Any:
    """Return GCN's normalised matrix in scipy's form."""
    from scipy import sparse

    indptr, indices = np.load(folder / "indptr.npy"), np.load(folder / "indices.npy")
    num_nodes = len(indptr) - 1
    scale = (1 / np.sqrt(np.diff(indptr) + 1.0)).astype(np.float32)
    values = scale[indices] * np.repeat(scale, np.diff(indptr))
    shape = (num_nodes, num_nodes)
    edges = sparse.csr_array((values, indices.astype(np.int32), indptr.astype(np.int32)), shape=shape)
    return (edges + sparse.diags_array(scale * scale, format="csr")).astype(np.float32)


def _powers(step: Callable[[Matrix], Matrix], x: Matrix, hops: int) -> Matrix:
    for _ in range(hops):
        x = step(x)
    return x


def _in_threads(matrix: Any, rows: Matrix) -> Matrix:
    """Return the product by two threads with half of the edges each, through scipy's own kernel."""
    from scipy.sparse._sparsetools import csr_matvecs

    cut = int(np.searchsorted(matrix.indptr, matrix.nnz // 2))
    out = np.zeros((matrix.shape[0], rows.shape[1]), np.float32)

    def multiply(start: int, stop: int) -> None:
        offsets = matrix.indptr[start : stop + 1]
        sources, values = (one[offsets[0] : offsets[-1]] for one in (matrix.indices, matrix.data))
        part = out[start:stop].reshape(-1)
        csr_matvecs(
            stop - start,
            len(rows),
            rows.shape[1],
            offsets - offsets[0],
            sources,
            values,
            rows.reshape(-1),
            part,
        )

    threads = [threading.Thread(target=multiply, args=ends) for ends in ((0, cut), (cut, len(out)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


@contextmanager
def _own_hops(folder: Path, x: Matrix, hops: int, *, threads: int) -> Iterator[Callable[[], Matrix]]:
    """Yield a function that propagates in memory, with a copy of ``x`` and GCN's factors; it returns some rows."""
    data = Dataset.open(folder)
    (node_type,) = data.node_tables
    trees = grow_chains(
        PropagateSpec(hops=hops), widths={node_type: x.shape[1]}, relations=data.relations, target=node_type
    )
    sizes = GraphSizes.of_dataset(data)
    plan = plan_propagation(trees, sizes, budget_bytes=1 << 40, has_disk=False, threads=threads)
    last = trees.groups[-1]
    with open_hetero_topology(data, max_bytes=plan.topology_bytes) as graph:

        def run() -> Matrix:
            with propagate(graph, {node_type: _RowsOf(x)}, plan) as pieces:
                return pieces.read(0, COMPARED_ROWS)[:, last.start : last.stop]

        yield run


class _RowsOf:
    """An array as input rows."""

    def __init__(self, array: Matrix) -> None:
        self.num_rows, self.width = array.shape
        self._array = array

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Copy rows ``start`` to ``stop``."""
        out[:] = self._array[start:stop]


def _cold_part(job: dict[str, Any]) -> dict[str, Any]:
    """Return a contender's seconds and bytes."""
    run = _COLD[job["contender"]]
    before, started, used = _io(), time.perf_counter(), time.process_time()
    found = run(job)
    seconds, after = time.perf_counter() - started, _io()
    found["processor_s"] = time.process_time() - used
    figures = {
        "seconds": seconds,
        **{name: after[name] - before[name] for name in ("read_bytes", "write_bytes")},
    }
    return {**figures, **found, "load": os.getloadavg()[0]}


def _io() -> dict[str, int]:
    lines = (line.partition(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {name: int(value) for name, _, value in lines}


def _run_own(job: dict[str, Any]) -> dict[str, Any]:
    """Propagate within the budget, which has no part for the modules that are already loaded."""
    from gloader.training.propagation.hop_request import HopSettings
    from gloader.training.propagation.propagate_dataset import make_hops

    settings = HopSettings(hops=job.get("hops", 3), norm="gcn")
    with closing(Dataset.open(job["folder"])) as data:
        report = make_hops(data, Path(job["out"], "hops"), settings, memory_budget_bytes=job["budget"])
    found = report.to_json()
    wanted = ("num_slabs", "held_bytes", "predicted", "measured")
    return {"products_s": found["measured"]["seconds"], **{name: found[name] for name in wanted}}


def _run_scipy(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path(job["folder"])
    matrix, x = _adjacency(folder), np.load(folder / "features.npy")
    columns, products_s = [x], 0.0
    for _ in range(3):
        started = time.perf_counter()
        columns.append(matrix @ columns[-1])
        products_s += time.perf_counter() - started
    _save(columns, job)
    return {"products_s": products_s}


def _save(columns: list[Matrix], job: dict[str, Any]) -> None:
    """Write the columns as gloader does: all columns of a node beside each other, on the disk when it returns."""
    num_rows = len(columns[0])
    with Path(job["out"], "columns").open("wb") as file:
        file.writelines(
            np.concatenate([one[start : start + SAVED_ROWS] for one in columns], 1).data
            for start in range(0, num_rows, SAVED_ROWS)
        )
        file.flush()
        os.fsync(file.fileno())


def _run_memmap(job: dict[str, Any]) -> dict[str, Any]:
    """Multiply blocks of destinations; the rows of their sources are pages of a map. The seconds are in proportion."""
    from scipy import sparse

    folder = Path(job["folder"])
    indptr = np.load(folder / "indptr.npy", mmap_mode="r")
    indices = np.load(folder / "indices.npy", mmap_mode="r")
    x = np.load(folder / "features.npy", mmap_mode="r")
    x.base.madvise(mmap.MADV_RANDOM)  # no read-ahead, the better setting here
    out = np.lib.format.open_memmap(f"{job['out']}/hop.npy", "w+", x.dtype, x.shape)
    started, done = time.perf_counter(), 0
    step = 1000
    for start in range(0, len(x), step):
        stop = min(start + step, len(x))
        offsets = np.asarray(indptr[start : stop + 1])
        sources = np.asarray(indices[offsets[0] : offsets[-1]])
        values = np.ones(len(sources), np.float32)
        shape = (stop - start, len(x))
        out[start:stop] = sparse.csr_array((values, sources, offsets - offsets[0]), shape=shape) @ x
        done = int(offsets[-1])
        if time.perf_counter() - started > job["deadline_s"]:
            break
    share = done / len(indices)
    return {"share_of_a_hop": share, "three_hops_s": 3 * (time.perf_counter() - started) / share}


def _run_sign(job: dict[str, Any]) -> dict[str, Any]:
    import torch
    from torch_geometric.data import Data
    from torch_geometric.transforms import SIGN

    folder = Path(job["folder"])
    indptr, indices = np.load(folder / "indptr.npy"), np.load(folder / "indices.npy").astype(np.int64)
    destinations = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    x = torch.from_numpy(np.load(folder / "features.npy"))
    started = time.perf_counter()
    data = SIGN(3)(Data(x=x, edge_index=torch.from_numpy(np.stack([indices, destinations]))))
    products_s = time.perf_counter() - started
    _save([data[name].numpy() for name in ("x", "x1", "x2", "x3")], job)
    return {"products_s": products_s}


_COLD: Final = {"gloader": _run_own, "scipy": _run_scipy, "memmap": _run_memmap, "sign": _run_sign}


def _loaded_part(job: dict[str, Any]) -> int:
    """Return the resident bytes of a process that has loaded a contender's modules and kernels."""
    if job["contender"] == "gloader":
        tiny = Path(job["out"], "tiny")
        prepare(
            open_source("synthetic:rmat,nodes=1000,edges=5000,dim=16", SourceOptions()),
            tiny,
            PrepareOptions(),
        )
        _run_own({"folder": str(tiny), "out": job["out"], "budget": 1 << 30})
    else:
        import scipy.sparse  # noqa: F401
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


_PARTS: Final = {"memory": _memory_part, "cold": _cold_part, "loaded": _loaded_part}


def _lines(cases: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the tables."""
    size = cases[0]
    yield f"{size['num_nodes']:,} nodes with {size['dim']} features, {size['num_edges']:,} edges; medians."
    yield ""
    yield "| in memory | cores | hops | gloader | scipy | scipy in two threads | gloader to both | processor time |"
    yield "|---|---|---|---|---|---|---|---|"
    for case in cases:
        if case["part"] == "memory":
            names = ("gloader", "scipy", "scipy in two threads")
            seconds = [case["seconds"].get(name) for name in names]
            cells = ["" if each is None else format_seconds(statistics.median(each)) for each in seconds]
            ratios = [
                ", ".join(
                    f"{case[f'{unit} to {name}']['median']:.2f}" for name in names[1:] if name in case[unit]
                )
                for unit in ("seconds", "processor_s")
            ]
            yield f"| {case['graph']} | {case['cores']} | {case['hops']} | {' | '.join([*cells, *ratios])} |"
    yield ""
    yield "| graph, cold | contender | seconds | of these products | read | written | slabs | limit | group's peak |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for case in cases:
        for name, runs in case.get("runs", {}).items():
            yield _cold_line(case["graph"], name, runs)


def _cold_line(graph: str, name: str, runs: list[dict[str, Any]]) -> str:
    """Return a contender's row."""
    last = runs[-1]
    seconds = statistics.median(run.get("three_hops_s", run["seconds"]) for run in runs)
    part = f"{last['share_of_a_hop']:.0%} of a hop, in proportion" if "share_of_a_hop" in last else ""
    products = statistics.median(run.get("products_s", 0.0) for run in runs)
    cells = [
        format_seconds(seconds),
        part or format_seconds(products),
        *(format_bytes(statistics.median(run[key] for run in runs)) for key in ("read_bytes", "write_bytes")),
        str(last.get("num_slabs", "")),
        format_bytes(last["limit_bytes"]) if last["is_limited"] else "none",
        format_bytes(last["group_peak_bytes"]) if last["is_limited"] else "",
    ]
    return f"| {graph} | {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
