"""Prepares a graph larger than memory under a hard memory limit: seconds, MB/s and peak memory.

The inputs, ``edges.npy`` (E, 2) int64 and ``features.npy`` (N, F) float32, are generated to disk as streams and
pushed out of the page cache. A child process, in a control group of its own (cgroup v1, as root; elsewhere only
its resident set is measured), turns them into a dataset, which is then compared with what was generated.

    python experiments/bench/prepare.py --workdir /var/tmp --out experiments/results/DATE-prepare.json

With ``--source``, that is prepared instead, and nothing is compared: a made-up graph of any size, which is not written
to disk first. ``--order`` renumbers its nodes.

    python experiments/bench/prepare.py --source synthetic:community,nodes=111059956,edges=3231371744,dim=8,seed=1 \
        --dtype float16 --memory-budget 4GB --limit 4.6GB --workdir /var/tmp --out DATE-prepare-edges.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from control_group import GROUPS, GroupWatch, limited

from gloader.core.units import format_bytes, parse_bytes
from gloader.lab.bench.environment import provenance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

STEP = 2_000_000
MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The size of the generated graph."""

    nodes: int
    edges: int
    dim: int

    @property
    def edge_bytes(self) -> int:
        """Bytes of the edge file."""
        return 16 * self.edges

    @property
    def feature_bytes(self) -> int:
        """Bytes of the feature file."""
        return 4 * self.nodes * self.dim


def main() -> None:
    """Run the benchmark, or, with ``--child``, the conversion that it measures."""
    args = _parse()
    if args.child is not None:
        _convert(json.loads(args.child))
        return
    args.workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gloader-bench-", dir=args.workdir) as folder:
        measure = _measure_generated if args.source is None else _measure_source
        result = measure(Path(folder), args) | provenance()
    print(_table(result))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(_table(result) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=8_000_000)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--source", help="is prepared instead of files that are generated")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--order", default="none", help="of the nodes: none, degree or community")
    parser.add_argument("--memory-budget", type=parse_bytes, default=parse_bytes("1GB"))
    parser.add_argument(
        "--limit", type=parse_bytes, default=parse_bytes("1.5GB"), help="of the control group"
    )
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="JSON file for the result; a table goes beside it, as .md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure_generated(folder: Path, args: argparse.Namespace) -> dict[str, object]:
    scale = Scale(nodes=args.nodes, edges=args.edges, dim=args.dim)
    source = folder / "source"
    source.mkdir()
    write_rate = _probe_write(folder / "probe")
    generated = time.perf_counter()
    digest = _generate(source, scale)
    generated = time.perf_counter() - generated
    measured = _prepare_limited(f"npy:{source}", folder, args)
    if args.order == "none":
        _compare(folder / "dataset", source, scale, digest)
    read = scale.edge_bytes + scale.feature_bytes
    return {
        "scale": asdict(scale),
        "input_bytes": read,
        **measured,
        "input_mb_per_s": read / measured["seconds"] / 1e6,
        "feature_mb_per_s": scale.feature_bytes / measured["feature_seconds"] / 1e6,
        "generation_seconds": generated,
        "disk_write_mb_per_s": write_rate,
    }


def _measure_source(folder: Path, args: argparse.Namespace) -> dict[str, object]:
    return {"source": args.source, "dtype": args.dtype, **_prepare_limited(args.source, folder, args)}


def _prepare_limited(source: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Prepare ``source`` as ``folder/dataset`` in a process below the limit; return what it took."""
    job = {
        "source": source,
        "dataset": str(folder / "dataset"),
        "dtype": args.dtype,
        "order": args.order,
        "budget": args.memory_budget,
    }
    with limited(GROUPS, args.limit) as group:
        started = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps(job)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"GLOADER_BENCH_CGROUP": str(group or "")},
        )
        watch = GroupWatch(group, folder)
        output, _ = child.communicate()
        seconds = time.perf_counter() - started
        memory = watch.stop()
    if child.returncode:
        raise SystemExit(f"the conversion failed with exit code {child.returncode}")
    report = json.loads(output.splitlines()[-1])
    report.pop("path")
    return {
        "memory_budget_bytes": args.memory_budget,
        "cgroup_limit_bytes": args.limit if group else None,
        "order": args.order,
        "seconds": seconds,
        "edges_per_s": report["num_edges"] / report["edge_seconds"],
        **report,
        **memory,
    }


def _convert(job: dict[str, Any]) -> None:
    """Prepare as ``job`` says; print the report and this process's memory."""
    group = os.environ["GLOADER_BENCH_CGROUP"]
    if group:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    from gloader.convert.options import PrepareOptions, SourceOptions
    from gloader.convert.prepare import prepare
    from gloader.convert.registry import open_source

    before = _status("VmRSS")
    source = open_source(job["source"], SourceOptions(memory_budget_bytes=job["budget"]))
    options = PrepareOptions(dtype=job["dtype"], order=job["order"], memory_budget_bytes=job["budget"])
    report = asdict(prepare(source, Path(job["dataset"]), options))
    report |= {"path": None, "resident_before_bytes": before, "peak_resident_bytes": _status("VmHWM")}
    print(json.dumps(report))


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise KeyError(key)


def _generate(folder: Path, scale: Scale) -> int:
    """Write the inputs and return the digest of the edges; destinations are skewed towards low ids."""
    random = np.random.default_rng(0)
    digest = 0
    with _npy_writer(folder / "edges.npy", np.dtype(np.int64), (scale.edges, 2)) as file:
        for start in range(0, scale.edges, STEP):
            count = min(STEP, scale.edges - start)
            pairs = np.empty((count, 2), np.int64)
            pairs[:, 0] = random.integers(0, scale.nodes, count)
            pairs[:, 1] = scale.nodes * random.random(count) ** 2
            digest = (digest + edge_digest(pairs[:, 0], pairs[:, 1])) % 2**64
            file.write(pairs.data)
    rows = max(1, STEP // scale.dim)
    with _npy_writer(folder / "features.npy", np.dtype(np.float32), (scale.nodes, scale.dim)) as file:
        for start in range(0, scale.nodes, rows):
            file.write(feature_rows(start, min(scale.nodes, start + rows), scale.dim).data)
    np.save(folder / "labels.npy", np.arange(scale.nodes, dtype=np.int64) % 10)
    return digest


def edge_digest(src: NDArray[np.int64], dst: NDArray[np.int64]) -> int:
    """Return a digest of edges that does not depend on their order. Pure."""
    word = (src.astype(np.uint64) << np.uint64(32)) ^ dst.astype(np.uint64)
    word = (word ^ (word >> np.uint64(29))) * MIX
    return int((word ^ (word >> np.uint64(32))).sum(dtype=np.uint64))


def feature_rows(start: int, stop: int, dim: int) -> NDArray[np.float32]:
    """Return rows ``start`` ... ``stop - 1`` of the generated features. Pure."""
    row = np.arange(start, stop, dtype=np.float32)[:, None]
    return np.ascontiguousarray(row * np.float32(0.5) + np.arange(dim, dtype=np.float32))


@contextmanager
def _npy_writer(path: Path, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Iterator[IO[bytes]]:
    """Write a ``.npy`` header, yield the file, then force it to disk and out of the page cache."""
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _probe_write(path: Path) -> float:
    """Return the MB/s at which 1 GB is written and forced to disk."""
    block = os.urandom(8 << 20)
    started = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(125):
            file.write(block)
        os.fsync(file.fileno())
    rate = 125 * len(block) / (time.perf_counter() - started) / 1e6
    path.unlink()
    return rate


def _compare(dataset: Path, source: Path, scale: Scale, digest: int) -> None:
    """Check every edge and a thousand rows of the dataset against what was generated."""
    from gloader.core.offsets import offsets_of
    from gloader.dataset import Dataset
    from gloader.dataset.topology import FEW_BYTES, open_topology

    shutil.rmtree(source)
    found = 0
    nodes = max(1, STEP * scale.nodes // max(1, scale.edges))
    with open_topology(Dataset.open(dataset), max_bytes=FEW_BYTES) as graph:
        for start in range(0, scale.nodes, nodes):
            ends = offsets_of(graph.offsets, np.arange(start, min(start + nodes, scale.nodes) + 1))
            dst = np.repeat(np.arange(start, start + len(ends) - 1), np.diff(ends))
            values, places = graph.sources.at(np.arange(ends[0], ends[-1]))
            found = (found + edge_digest(values[places].astype(np.int64), dst)) % 2**64
    if found != digest or graph.num_edges != scale.edges:
        raise SystemExit("the dataset does not hold the edges that were generated")
    features = np.load(dataset / "features.npy", mmap_mode="r", allow_pickle=False)
    for row in np.random.default_rng(1).integers(0, scale.nodes, 1000):
        if not np.array_equal(features[row], feature_rows(row, row + 1, scale.dim)[0]):
            raise SystemExit(f"row {row} of the features differs")


def _table(result: dict[str, object]) -> str:
    rows = [
        f"| {key} | {_cell(key, value)} |"
        for key, value in result.items()
        if not isinstance(value, dict) and key != "command"
    ]
    return "\n".join([f"`{result['command']}`", "", "| what | value |", "|---|---|", *rows])


def _cell(key: str, value: object) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
