"""Rows per second of `FeatureStore.read_into` beside what fio gets from the same file.

    python experiments/bench/ssd_read.py --folder /some/disk --json experiments/results/DATE-ssd-read.json

For each row size a store is written, and fio (if installed), io_uring and threads then take turns for a few
rounds, so that a noisy machine disturbs all of them alike; who begins a round changes. Medians and the lowest
and highest of all rounds are reported; the median of the ratios of a round counts.

fio reads the same blocks: O_DIRECT, io_uring, the sizes of the requests that the planner made. A cache that
we cannot switch off (of the host of a virtual disk, of the drive) may favour who reads what was just read.
Therefore no two runs draw the same rows, and where a run reads a large part of the file, the file is cut into
zones: each run reads the next one, which was last read `ZONES` runs before, whoever reads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.units import format_bytes, parse_bytes
from gloader.lab.bench.environment import provenance
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.cost.profile import DEFAULT_GAP_BYTES
from gloader.ssd_store.feature_store import MAX_EXTENT_BYTES
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.read.extents import ALIGNMENT, plan_extents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ROWS_PER_CALL = 100_000
SEQUENTIAL_CALL_BYTES = 2**28
FIO_DEPTHS = (64, 128, 256)
ZONES = 4  # more than contenders, so that nobody follows himself or always the same other


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWorkload:
    """One line of the table."""

    name: str
    dim: int  # float32
    is_sequential: bool = False
    gap_bytes: int = DEFAULT_GAP_BYTES  # fixed, so that runs on different machines ask for the same reads
    rows: int = ROWS_PER_CALL  # per call
    num_zones: int = 1

    def zone(self, num_rows: int, turn: int) -> range:
        """Return the rows that run number ``turn`` may read."""
        count = num_rows // self.num_zones
        return range(turn % self.num_zones * count, (turn % self.num_zones + 1) * count)

    def limit_bytes(self, zone: range) -> int:
        """Return when a run ends early: random reads of more than half a zone would often meet themselves."""
        num_bytes = 4 * self.dim * len(zone)
        return num_bytes if self.is_sequential or self.num_zones == 1 else num_bytes // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSample:
    """One run of one reader."""

    requests_per_s: float
    bytes_per_s: float
    rows_per_s: float
    cpu_us_per_request: float
    cpu_us_per_row: float


WORKLOADS = (
    ReadWorkload(name="random 512 B, no merging", dim=128, gap_bytes=0),
    ReadWorkload(name="random 512 B", dim=128),
    ReadWorkload(name="random 400 B", dim=100),
    ReadWorkload(name="random 6.5 KB", dim=1632, rows=20_000),
    ReadWorkload(name="random 33 KB", dim=8415, rows=4_000, num_zones=ZONES),
    ReadWorkload(name="sequential 512 B", dim=128, is_sequential=True, num_zones=ZONES),
)


def write_store(folder: Path, dim: int, num_bytes: int) -> int:
    """Write a store of about ``num_bytes`` and return its number of rows."""
    num_rows = num_bytes // (4 * dim)
    chunk = np.random.default_rng(0).random((max(1, 2**24 // (4 * dim)), dim), np.float32)
    with FeatureStore.writer(folder, num_rows=num_rows, dim=dim, dtype=np.float32) as writer:
        for start in range(0, num_rows, chunk.shape[0]):
            writer.append(chunk[: num_rows - start])
    return num_rows


def calls(work: ReadWorkload, zone: range, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of one call after another, ascending, as the loader asks for them."""
    if work.is_sequential:
        step = SEQUENTIAL_CALL_BYTES // (4 * work.dim)
        for start in zone[::step]:
            yield np.arange(start, min(start + step, zone.stop))
        return
    generator = np.random.default_rng(seed)
    while True:
        yield np.sort(generator.integers(zone.start, zone.stop, work.rows))


def run_store(store: FeatureStore, work: ReadWorkload, seconds: float, turn: int) -> ReadSample:
    """Read calls of ``work`` for ``seconds``, or until the zone of this turn is used up."""
    zone = work.zone(store.num_rows, turn)
    rows = requests = num_bytes = 0
    wall = cpu = 0.0
    out = np.empty((0, work.dim), np.float32)
    for wanted in calls(work, zone, turn):
        if requests and (wall >= seconds or num_bytes >= work.limit_bytes(zone)):
            break
        if not requests:
            out = np.ones((len(wanted), work.dim), np.float32)  # touched: the loader's buffers are as well
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        stats = store.read_into(wanted, out[: len(wanted)])
        wall += time.perf_counter() - wall_start
        cpu += time.process_time() - cpu_start
        rows, requests, num_bytes = rows + stats.rows, requests + stats.requests, num_bytes + stats.bytes_read
    return ReadSample(
        requests_per_s=requests / wall,
        bytes_per_s=num_bytes / wall,
        rows_per_s=rows / wall,
        cpu_us_per_request=cpu / requests * 1e6,
        cpu_us_per_row=cpu / rows * 1e6,
    )


def block_split(work: ReadWorkload, num_rows: int) -> str:
    """Return fio's bssplit for the requests that the planner makes for one call.

    fio takes few sizes with whole percentages: each fiftieth of the requests counts with its mean, so that
    both sides read as many bytes per request.
    """
    extents = plan_extents(
        next(calls(work, work.zone(num_rows, 0), 0)),
        row_bytes=4 * work.dim,
        data_offset=DATA_OFFSET,
        max_gap_bytes=work.gap_bytes,
        max_extent_bytes=MAX_EXTENT_BYTES,
    )
    parts = np.array_split(np.sort(extents.length), 50)
    pages = [round(part.mean() / ALIGNMENT) for part in parts if part.size]
    sizes, counts = np.unique(pages, return_counts=True)
    return ":".join(
        f"{4 * size}k/{100 * count // len(pages)}" for size, count in zip(sizes, counts, strict=True)
    )


def run_fio(file: Path, work: ReadWorkload, split: str, depth: int, seconds: float, turn: int) -> ReadSample:
    """Read the same blocks of the same zone with fio."""
    row_bytes = 4 * work.dim
    zone = work.zone((file.stat().st_size - DATA_OFFSET) // row_bytes, turn)
    first, size = (
        value // ALIGNMENT * ALIGNMENT for value in (zone.start * row_bytes, len(zone) * row_bytes)
    )
    # Without bs_unaligned fio rounds each size down to a multiple of the smallest.
    pattern = (
        ["--rw=read", "--bs=256k"]
        if work.is_sequential
        else ["--rw=randread", f"--bssplit={split}", "--bs_unaligned", "--norandommap"]
    )
    command = [
        "fio", "--name=read", f"--filename={file}", "--readonly", "--direct=1", "--ioengine=io_uring",
        f"--iodepth={depth}", "--blockalign=4k", f"--runtime={seconds}", "--randrepeat=0",
        f"--offset={DATA_OFFSET + first}", f"--size={size}", f"--io_size={work.limit_bytes(zone)}",
        f"--iodepth_batch_complete_min={max(1, depth // 4)}", f"--iodepth_batch={max(1, depth // 4)}",
        "--output-format=json", *pattern,
    ]  # fmt: skip
    report = subprocess.run(command, check=True, capture_output=True, text=True)
    job = json.loads(report.stdout)["jobs"][0]
    reads, wall = job["read"], job["job_runtime"] / 1000
    cpu_us = (job["usr_cpu"] + job["sys_cpu"]) / 100 * wall / reads["total_ios"] * 1e6
    return ReadSample(
        requests_per_s=reads["iops"],
        bytes_per_s=reads["bw_bytes"],
        rows_per_s=0.0,
        cpu_us_per_request=cpu_us,
        cpu_us_per_row=0.0,
    )


def best_depth(file: Path, work: ReadWorkload, split: str, seconds: float, turns: Iterator[int]) -> int:
    """Return the depth at which fio is fastest."""
    depths = (8, 16, 32) if work.is_sequential else FIO_DEPTHS
    return max(
        depths, key=lambda depth: run_fio(file, work, split, depth, seconds, next(turns)).requests_per_s
    )


def measure(work: ReadWorkload, folder: Path, *, rounds: int, seconds: float, verify: Any) -> dict[str, Any]:
    """Let the readers take turns, and return medians and spread."""
    samples: dict[str, list[ReadSample]] = {"uring": [], "threads": []}
    stores = {
        name: FeatureStore.open(folder, io=name, gap_bytes=work.gap_bytes, verify=verify)  # type: ignore[arg-type]
        for name in samples
    }
    file, depth, turns = folder / "features.npy", 0, itertools.count()
    split = block_split(work, stores["uring"].num_rows)
    if shutil.which("fio"):
        depth = best_depth(file, work, split, min(seconds, 0.5), turns)
        samples["fio"] = []
    for store in stores.values():
        run_store(store, work, 0.0, next(turns))
    names = list(samples)
    for i in range(rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(
                run_fio(file, work, split, depth, seconds, next(turns))
                if name == "fio"
                else run_store(stores[name], work, seconds, next(turns))
            )
    for store in stores.values():
        store.close()
    return {"workload": asdict(work), "fio_depth": depth, "fio_blocks": split, **summarize(work, samples)}


def summarize(work: ReadWorkload, samples: dict[str, list[ReadSample]]) -> dict[str, dict[str, Any]]:
    """Return the medians of each reader, the lowest and highest rates, and its ratios to fio. Pure."""
    rate = "bytes_per_s" if work.is_sequential else "requests_per_s"
    result: dict[str, dict[str, Any]] = {}
    for name, results in samples.items():
        rates = [getattr(sample, rate) for sample in results]
        result[name] = {key: median(asdict(sample)[key] for sample in results) for key in asdict(results[0])}
        result[name][f"{rate}_range"] = [min(rates), max(rates)]
    for name in samples.keys() - {"fio"} if "fio" in samples else ():
        ratios = [
            getattr(ours, rate) / getattr(theirs, rate)
            for ours, theirs in zip(samples[name], samples["fio"], strict=True)
        ]
        result[name]["rate_to_fio"] = median(ratios)
        result[name]["rate_to_fio_range"] = [min(ratios), max(ratios)]
        result[name]["cpu_to_fio"] = result[name]["cpu_us_per_request"] / result["fio"]["cpu_us_per_request"]
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
                    f"  rate/fio {r['rate_to_fio']:.2f} "
                    f"({r['rate_to_fio_range'][0]:.2f} to {r['rate_to_fio_range'][1]:.2f})"
                    f"  cpu/fio {r['cpu_to_fio']:.2f}"
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
        settings = {"size": args.size, "rounds": args.rounds, "seconds": args.seconds, "verify": args.verify}
        args.json.write_text(
            json.dumps({**provenance(), "settings": settings, "results": results}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
