"""Rates that hold: what a probe says of a disk beside what it keeps up, and how runs are predicted by it.

    python experiments/bench/rates.py --workdir /some/disk --out experiments/results/DATE-rates.json
    python experiments/bench/rates.py --workdir /some/disk --parts disk --seconds 30
    python experiments/bench/rates.py --workdir /some/disk --parts runs --strategies direct,packed

disk   Reads of 4, 16 and 64 KiB at random and of 256 KiB in file order from the features of a dataset of several GB,
       writes of a new file, and both at once, for half a minute each, beside the probe that a loader would make: of
       that file, and of a new one, as the doctor does. The rate of every half second is in the JSON.
runs   A loader in a process of its own for each strategy, with a profile that is new and after one, two, ... runs
       (GLOADER_HOME is a temporary folder): how wrong the predictions of the first three superbatches are, and of
       all. And which predicts a run better from those before it: the table that is remembered, a small linear model of
       the same observations, or the probe alone.

Graph and features stay in the working folder (3.6 GB with the defaults); 10 GB more must be free for a while. Nothing
else should run: the load of the machine is in the JSON. A host may hold in its memory what was written or read not long
ago, and so the same file is read faster or more slowly on another day: that is what runs have to learn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline_graphs import Graph, make_dataset
from rates_compare import SeenRun, compare, summary

from gloader import Dataset
from gloader.core.aligned_memory import mapped_bytes
from gloader.core.units import format_bytes, parse_bytes
from gloader.lab.bench.environment import provenance
from gloader.ssd_store.cost.device_probe import (
    CHUNK_BYTES,
    ReadLoad,
    WriteLoad,
    noise,
    open_existing,
    open_scratch,
    probe_file,
    probe_folder,
    probe_writes,
    random_extents,
    sweep_load,
)
from gloader.ssd_store.cost.device_profile import Observation
from gloader.ssd_store.cost.io_rates import SEQUENTIAL_BYTES
from gloader.ssd_store.os_io import REAL_OS, close_quietly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STEP_S: Final = 0.5  # of a series
_RANDOM: Final = {
    "small": (4096, 256),
    "medium": (16_384, 256),
    "wide": (65_536, 64),
}  # bytes, and reads in flight
_CHILD: Final = Path(__file__).with_name("rates_child.py")
_FIRST: Final = 3  # superbatches of a run


def main() -> None:
    """Measure the parts, print what came of them and write the JSON."""
    options = read_arguments()
    workdir = options.workdir.resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    graph = Graph(kind="social", nodes=options.nodes, edges=options.edges, dim=options.dim)
    dataset = Dataset.open(options.dataset or make_dataset(workdir, graph))
    results = {name: PARTS[name](options, dataset, workdir) for name in options.parts.split(",")}
    if options.out:
        report = {"benchmark": "rates", **provenance(), "dataset": dataset.name, "results": results}
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="on the disk to measure; kept")
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    parser.add_argument("--parts", default="disk,runs", help=f"some of {', '.join(PARTS)}")
    parser.add_argument(
        "--dataset", type=Path, help="a prepared one; made in the working folder when not given"
    )
    parser.add_argument("--nodes", type=int, default=870_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--dim", type=int, default=1024, help="float32 of a row")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load of part disk")
    parser.add_argument(
        "--written", type=parse_bytes, default=parse_bytes("8GB"), help="of a new file, at most"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of part runs, one after the other")
    parser.add_argument("--strategies", default="direct,staged,packed", help="of part runs")
    parser.add_argument("--memory-budget", default="4GB", help="of part runs")
    parser.add_argument("--cache", default="10%", help="of part runs")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--batches", type=int, default=31, help="of a run")
    options = parser.parse_args()
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} unknown; allowed: {', '.join(PARTS)}")
    return options


# --- part disk


def disk(options: argparse.Namespace, dataset: Dataset, workdir: Path) -> dict[str, Any]:
    """Return what probes say of the disk, and what it keeps up."""
    path = dataset.features_path
    size = path.stat().st_size
    print(f"disk: {format_bytes(size)} of features, load {os.getloadavg()[0]:.2f}", flush=True)
    probes: dict[str, Any] = {}
    began = time.perf_counter()
    probes["file"] = asdict(probe_file(path, 0, size, REAL_OS))
    rate, mixed = probe_writes(workdir, (path, (0, size)), REAL_OS)
    probes["file"] |= {"write_bytes_per_s": rate, "mixed_writes": mixed}
    probes["file"]["seconds"] = time.perf_counter() - began
    began = time.perf_counter()
    probes["new"] = asdict(probe_folder(workdir, REAL_OS))
    probes["new"]["seconds"] = time.perf_counter() - began
    sustained = dict(_loads(path, size, workdir, options))
    found = {
        "probes": probes,
        "sustained": sustained,
        "probe_over_sustained": {
            probe: {name: rates[_FIELDS[name]] / mean(sustained[name]) for name in _FIELDS}
            for probe, rates in probes.items()
        },
        "load": os.getloadavg()[0],
    }
    _print_disk(found)
    return found


_FIELDS: Final = {
    "small": "random_reads_per_s",
    "medium": "medium_reads_per_s",
    "wide": "wide_reads_per_s",
    "in_order": "read_bytes_per_s",
    "write": "write_bytes_per_s",
}


def _loads(
    path: Path, size: int, workdir: Path, options: argparse.Namespace
) -> Iterator[tuple[str, list[float]]]:
    """Yield each load and its rate in every half second."""
    memory = mapped_bytes(2 * CHUNK_BYTES)
    file, _ = open_existing(path)
    with file as fd:
        with sweep_load(fd, size, memory) as load:
            sweep = load.settled(_STEP_S / 4)
            yield "in_order", _series(lambda: SEQUENTIAL_BYTES * sweep.step(), options.seconds)
        for name, (read_bytes, depth) in _RANDOM.items():
            extents = random_extents(size, read_bytes=read_bytes)
            with ReadLoad(fd, extents, memory, depth=depth, most=8192) as load:
                yield name, _series(load.settled(_STEP_S / 4).step, options.seconds)
        scratch, _ = open_scratch(workdir)
        try:
            writes = WriteLoad(scratch, noise(memory), size=options.written // CHUNK_BYTES * CHUNK_BYTES)
            yield "write", _series(writes.step, options.seconds)
        finally:
            close_quietly(scratch, os_io=REAL_OS)


def _series(step: Callable[[], int], seconds: float) -> list[float]:
    """Return the rates of a load, half a second each."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        done = 0
        while (passed := time.perf_counter() - began) < _STEP_S:
            done += step()
        found.append(done / passed)
    return found


def mean(series: list[float]) -> float:
    """Return the mean of a series, all of whose steps are as long."""
    return sum(series) / max(len(series), 1)


def _print_disk(found: dict[str, Any]) -> None:
    print(f"  {'':10}{'probe':>12}{'new file':>12}{'sustained':>12}   first s, lowest and highest of it")
    for name, field in _FIELDS.items():
        series, probes = found["sustained"][name], found["probes"]
        shown = [
            probes["file"][field],
            probes["new"][field],
            mean(series),
            *series[:2],
            min(series),
            max(series),
        ]
        cells = [f"{value:.3g}" for value in shown]
        print(f"  {name:10}{cells[0]:>12}{cells[1]:>12}{cells[2]:>12}   {cells[3]} {cells[5]} {cells[6]}")
    for name, rates in found["probes"].items():
        print(
            f"  probe of {name}: {rates['seconds']:.1f} s, latency {1e6 * rates['latency_s']:.0f} us, together "
            f"{rates['mixed_writes']:.2f} (writes) and {rates['mixed_reads']:.2f} (reads), "
            f"depth {rates['queue_depth']}"
        )


# --- part runs


def runs(options: argparse.Namespace, dataset: Dataset, workdir: Path) -> dict[str, Any]:
    """Return how wrong the predictions of retrieval are, with a new profile and after runs."""
    found: dict[str, Any] = {"runs": []}
    strategies = options.strategies.split(",")
    for strategy in strategies:
        with tempfile.TemporaryDirectory(prefix="gloader-rates-", dir=workdir) as home:
            for number in range(options.rounds):
                one = _run(options, dataset, strategy, Path(home))
                found["runs"].append({"strategy": strategy, "after_runs": number, **one})
                _print_run(found["runs"][-1])
    found["retrieval_error"] = {
        strategy: {str(number): _errors(found["runs"], strategy, number) for number in range(options.rounds)}
        for strategy in strategies
    }
    with tempfile.TemporaryDirectory(prefix="gloader-rates-", dir=workdir) as home:
        mixed = [
            _run(options, dataset, strategy, Path(home))
            for _, strategy in product(range(options.rounds), strategies)
        ]
    found["compared"] = compare([_seen(one) for one in mixed])
    found["mixed_runs"] = mixed
    _print_compared(found["compared"])
    return found


def _run(options: argparse.Namespace, dataset: Dataset, strategy: str, home: Path) -> dict[str, Any]:
    job = {
        "dataset": str(dataset.root),
        "batches": options.batches,
        "settings": {
            "fanouts": [10, 10],
            "batch_size": options.batch_size,
            "memory_budget": options.memory_budget,
            "cache": options.cache,
            "features": "ssd",
            "io_strategy": strategy,
            "spill_dir": str(home),
        },
    }
    load = os.getloadavg()[0]
    done = subprocess.run(
        [sys.executable, str(_CHILD)],
        input=json.dumps(job),
        env={**os.environ, "GLOADER_HOME": str(home / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the run of {strategy} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "load": load}


def _errors(found: list[dict[str, Any]], strategy: str, after_runs: int) -> dict[str, Any]:
    """Return the errors of the first superbatches of a run, and of all."""
    (run,) = (one for one in found if (one["strategy"], one["after_runs"]) == (strategy, after_runs))
    errors = [
        abs(one["predicted_s"] / one["measured_s"] - 1)
        for one in run["superbatches"]
        if one["misses"] and one["measured_s"] > 0
    ]
    return {"first": summary(errors[:_FIRST]), "all": summary(errors)}


def _seen(run: dict[str, Any]) -> SeenRun:
    return SeenRun(
        superbatches=tuple(
            tuple(Observation(predicted=one["predicted"], measured_s=one["measured_s"]) for one in superbatch)
            for superbatch in run["seen"]
        )
    )


def _print_run(run: dict[str, Any]) -> None:
    after = f"after {run['after_runs']} runs" if run["after_runs"] else "new profile"
    print(f"  {run['strategy']}, {after}: opened in {run['open_s']:.1f} s, load {run['load']:.1f}")
    cells = [
        f"{one['batches']} {one['strategy']}: {one['predicted_s']:.2f} s, took {one['measured_s']:.2f} "
        f"({one['predicted_s'] / one['measured_s'] - 1:+.0%})"
        for one in run["superbatches"]
        if one["measured_s"] > 0
    ]
    print("".join(f"    {cell}\n" for cell in cells), end="", flush=True)


def _print_compared(compared: dict[str, Any]) -> None:
    print("  predicting a run from those before it: median error, and below which nine in ten are")
    for name, errors in compared.items():
        first, every = errors["first"], errors["all"]
        if not every["count"]:
            continue
        print(
            f"    {name:6} first {_FIRST}: {first['median']:.0%}, {first['nine_in_ten']:.0%}; "
            f"all {every['count']}: {every['median']:.0%}, {every['nine_in_ten']:.0%}"
        )


PARTS: Final[dict[str, Callable[[argparse.Namespace, Dataset, Path], dict[str, Any]]]] = {
    "disk": disk,
    "runs": runs,
}


if __name__ == "__main__":
    main()
