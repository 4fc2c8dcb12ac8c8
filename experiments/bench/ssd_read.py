"""Rows per second of `FeatureStore.read_into` beside what fio gets from the same file.

    python experiments/bench/ssd_read.py --folder /some/disk --json experiments/results/ssd_read.json

For each row size a store is written, and fio (if installed), io_uring and threads then take turns for a few
rounds, so that a noisy machine disturbs all of them alike; medians are reported, and their ratios count.
fio reads the same blocks: O_DIRECT, io_uring, the sizes of the requests that the planner made.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gloader.ssd_store import FeatureStore
from gloader.ssd_store.extents import plan_extents
from gloader.ssd_store.format import DATA_OFFSET
from gloader.ssd_store.reader import DEFAULT_GAP_BYTES, MAX_EXTENT_BYTES
from gloader.units import format_bytes, parse_bytes

ROWS_PER_CALL = 100_000
FIO_DEPTHS = (64, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One line of the table."""

    name: str
    dim: int  # float32
    is_sequential: bool = False
    gap_bytes: int = DEFAULT_GAP_BYTES  # fixed, so that runs on different machines ask for the same reads
    rows: int = ROWS_PER_CALL  # per call


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of one reader."""

    requests_per_s: float
    bytes_per_s: float
    rows_per_s: float
    cpu_us_per_request: float
    cpu_us_per_row: float


WORKLOADS = (
    Workload(name="random 512 B, no merging", dim=128, gap_bytes=0),
    Workload(name="random 512 B", dim=128),
    Workload(name="random 400 B", dim=100),
    Workload(name="random 6.5 KB", dim=1632, rows=20_000),
    Workload(name="random 33 KB", dim=8415, rows=4_000),
    Workload(name="sequential 512 B", dim=128, is_sequential=True),
)


def write_store(folder: Path, dim: int, num_bytes: int) -> int:
    """Write a store of about ``num_bytes`` and return its number of rows."""
    num_rows = num_bytes // (4 * dim)
    chunk = np.random.default_rng(0).random((max(1, 2**24 // (4 * dim)), dim), np.float32)
    with FeatureStore.writer(folder, num_rows=num_rows, dim=dim, dtype=np.float32) as writer:
        for start in range(0, num_rows, chunk.shape[0]):
            writer.append(chunk[: num_rows - start])
    return num_rows


def requested_rows(work: Workload, num_rows: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the rows of one call, ascending, as the loader asks for them."""
    if work.is_sequential:
        count = min(2**28 // (4 * work.dim), num_rows)
        first = seed * count % max(1, num_rows - count + 1)
        return np.arange(first, first + count)
    return np.sort(np.random.default_rng(seed).integers(0, num_rows, work.rows))


def run_store(store: FeatureStore, work: Workload, seconds: float, seed: int) -> Sample:
    """Read calls of ``work`` for ``seconds``."""
    out = np.empty((len(requested_rows(work, store.num_rows, 0)), work.dim), np.float32)
    out[:] = 0
    rows = requests = num_bytes = 0
    wall = cpu = 0.0
    while wall < seconds or not requests:
        seed += 1
        wanted = requested_rows(work, store.num_rows, seed)
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        stats = store.read_into(wanted, out)
        wall += time.perf_counter() - wall_start
        cpu += time.process_time() - cpu_start
        rows, requests, num_bytes = rows + stats.rows, requests + stats.requests, num_bytes + stats.bytes_read
    return Sample(
        requests_per_s=requests / wall,
        bytes_per_s=num_bytes / wall,
        rows_per_s=rows / wall,
        cpu_us_per_request=cpu / requests * 1e6,
        cpu_us_per_row=cpu / rows * 1e6,
    )


def request_sizes(work: Workload, num_rows: int) -> dict[int, int]:
    """Return how many requests of which size (KiB) the planner makes for one call."""
    extents = plan_extents(
        requested_rows(work, num_rows, 0),
        row_bytes=4 * work.dim,
        data_offset=DATA_OFFSET,
        max_gap_bytes=work.gap_bytes,
        max_extent_bytes=MAX_EXTENT_BYTES,
    )
    sizes, counts = np.unique(extents.length // 1024, return_counts=True)
    return {int(size): int(count) for size, count in zip(sizes, counts, strict=True)}


def block_split(sizes: dict[int, int]) -> str:
    """Return fio's bssplit for the most frequent sizes."""
    total = sum(sizes.values())
    frequent = {size: 100 * count / total for size, count in sizes.items() if 100 * count >= total}
    scale = 100 / sum(frequent.values())
    shares = {size: int(share * scale) for size, share in frequent.items()}
    left = sorted(shares, key=lambda size: shares[size] - frequent[size] * scale)[
        : 100 - sum(shares.values())
    ]
    return ":".join(f"{size}k/{share + (size in left)}" for size, share in shares.items())


def run_fio(file: Path, work: Workload, split: str, depth: int, seconds: float) -> Sample:
    """Read the same blocks with fio, from another place each time: a host may have cached the last one."""
    start = secrets.randbelow(max(1, file.stat().st_size * 3 // 4)) // 2**20 * 2**20
    pattern = (
        ["--rw=read", "--bs=256k", f"--offset={start}"]
        if work.is_sequential
        else ["--rw=randread", f"--bssplit={split}", "--norandommap"]
    )
    command = [
        "fio", "--name=read", f"--filename={file}", "--readonly", "--direct=1", "--ioengine=io_uring",
        f"--iodepth={depth}", "--blockalign=4k", "--time_based", f"--runtime={seconds}", "--randrepeat=0",
        f"--iodepth_batch_complete_min={max(1, depth // 4)}", f"--iodepth_batch={max(1, depth // 4)}",
        "--output-format=json", *pattern,
    ]  # fmt: skip
    report = subprocess.run(command, check=True, capture_output=True, text=True)
    job = json.loads(report.stdout)["jobs"][0]
    reads, wall = job["read"], job["job_runtime"] / 1000
    cpu_us = (job["usr_cpu"] + job["sys_cpu"]) / 100 * wall / reads["total_ios"] * 1e6
    return Sample(
        requests_per_s=reads["iops"],
        bytes_per_s=reads["bw_bytes"],
        rows_per_s=0.0,
        cpu_us_per_request=cpu_us,
        cpu_us_per_row=0.0,
    )


def best_depth(file: Path, work: Workload, split: str, seconds: float) -> int:
    """Return the depth at which fio is fastest."""
    depths = (8, 16, 32) if work.is_sequential else FIO_DEPTHS
    return max(depths, key=lambda depth: run_fio(file, work, split, depth, seconds).requests_per_s)


def measure(work: Workload, folder: Path, *, rounds: int, seconds: float, verify: Any) -> dict[str, Any]:
    """Let the readers take turns, and return the medians."""
    samples: dict[str, list[Sample]] = {"uring": [], "threads": []}
    stores = {
        name: FeatureStore.open(folder, io=name, gap_bytes=work.gap_bytes, verify=verify)  # type: ignore[arg-type]
        for name in samples
    }
    file, depth = folder / "features.npy", 0
    split = block_split(request_sizes(work, stores["uring"].num_rows))
    if shutil.which("fio"):
        depth = best_depth(file, work, split, min(seconds, 0.5))
        samples["fio"] = []
    for store in stores.values():
        run_store(store, work, 0.0, 999)
    for i in range(rounds):
        for name, results in samples.items():
            if name == "fio":
                results.append(run_fio(file, work, split, depth, seconds))
            else:
                results.append(run_store(stores[name], work, seconds, 1000 * i))
    for store in stores.values():
        store.close()
    result: dict[str, Any] = {"workload": asdict(work), "fio_depth": depth, "fio_blocks": split}
    for name, results in samples.items():
        result[name] = {key: median(asdict(sample)[key] for sample in results) for key in asdict(results[0])}
    if "fio" in samples:
        for name in stores:
            key = "bytes_per_s" if work.is_sequential else "requests_per_s"
            ours = [getattr(s, key) for s in samples[name]]
            theirs = [getattr(s, key) for s in samples["fio"]]
            result[name]["rate_to_fio"] = median(a / b for a, b in zip(ours, theirs, strict=True))
            result[name]["cpu_to_fio"] = (
                result[name]["cpu_us_per_request"] / result["fio"]["cpu_us_per_request"]
            )
    return result


def print_row(result: dict[str, Any]) -> None:
    """Print one workload: a line for each reader."""
    print(
        f"{result['workload']['name']}   (fio depth {result['fio_depth']}, blocks {result['fio_blocks'][:60]})"
    )
    for name in ("fio", "uring", "threads"):
        if name in result:
            r = result[name]
            print(
                f"  {name:8} {r['requests_per_s']:>9,.0f} reads/s {format_bytes(int(r['bytes_per_s'])):>9}/s "
                f"{r['rows_per_s']:>11,.0f} rows/s  cpu {r['cpu_us_per_request']:6.2f} us/read "
                f"{r['cpu_us_per_row']:6.2f} us/row"
                + (
                    f"  rate/fio {r['rate_to_fio']:.2f}  cpu/fio {r['cpu_to_fio']:.2f}"
                    if "rate_to_fio" in r
                    else ""
                )
            )


def main() -> None:
    """Run every workload and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure"
    )
    parser.add_argument("--size", default="4GB", help="of each store")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each run")
    parser.add_argument("--only", default="", help="part of a workload's name")
    parser.add_argument("--verify", default="read", choices=["read", "off"])
    parser.add_argument("--json", type=Path, help="where to write the results")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="gloader-bench-") as scratch:
        for dim in dict.fromkeys(work.dim for work in WORKLOADS if args.only in work.name):
            folder = Path(scratch) / f"dim{dim}"
            write_store(folder, dim, parse_bytes(args.size))
            for work in WORKLOADS:
                if work.dim == dim and args.only in work.name:
                    results.append(
                        measure(work, folder, rounds=args.rounds, seconds=args.seconds, verify=args.verify)
                    )
                    print_row(results[-1])
            shutil.rmtree(folder)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        machine: dict[str, object] = {
            "system": platform.platform(),
            "processor": platform.processor(),
            "cores": os.cpu_count(),
        }
        machine["load_average"] = os.getloadavg()[1]
        settings = {"size": args.size, "rounds": args.rounds, "seconds": args.seconds, "verify": args.verify}
        args.json.write_text(
            json.dumps({"machine": machine, "settings": settings, "results": results}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
