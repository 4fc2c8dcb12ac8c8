"""Machines that exchange rows against machines that read alone: bytes of each SSD, seconds of an epoch.

1, 2 and 4 machines are rehearsed on this one (GLOADER_MACHINE), each in a control group of its own whose reads and
writes are throttled (version 1, as root; otherwise the disk is as fast as it is, and the output says so), over a
transport that is no faster than ``--network``. Each has its own cache folder, so that it measures its own disk. A step
sleeps for ``--compute`` seconds, as if a device computed. Copies are one directory, which all read past the page cache;
``--placement ranges`` prepares a part for each machine. Epoch 0, in which superbatches grow, is left out; ratios are
those of one run: every mode is measured ``--repeats`` times, in turns, and medians are compared.

    python experiments/bench/machines.py --workdir /var/tmp --out experiments/results/DATE-machines.json
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ranks import Place, be_rank, is_rank, run_group

from gloader.core.units import format_bytes, format_seconds, parse_bytes
from gloader.lab.bench.environment import provenance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.ssd_store.cost.strategy import MissCounts

_BLKIO = Path("/sys/fs/cgroup/blkio")


def main() -> None:
    """Measure every number of machines in every mode, print a table, and write the numbers."""
    args = _parse()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.workdir) as folder:
        for world in args.machines:
            datasets = _prepare(args, Path(folder), world)
            modes = ["never"] if world == 1 else args.exchange
            if args.placement == "ranges" and world > 1:
                modes = [mode for mode in modes if mode != "never"]
            for turn in range(args.repeats):
                for mode in modes:
                    runs.append(_run(args, Path(folder), datasets, mode) | {"turn": turn})
                    print(_line(runs[-1]), flush=True)
    result = {
        "settings": {name: value for name, value in vars(args).items() if name not in {"workdir", "out"}},
        "runs": runs,
        "medians": _medians(runs),
        **provenance(),
    }
    print(_table(result["medians"]))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1, default=str) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--exchange", nargs="+", default=["never", "always", "auto"], choices=["never", "always", "auto"]
    )
    parser.add_argument("--placement", choices=["copies", "ranges"], default="copies")
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--fanouts", default="10,5")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--superbatch", type=int, default=32)
    parser.add_argument("--batches", type=int, default=64, help="of each machine in an epoch")
    parser.add_argument("--epochs", type=int, default=3, help="measured, after one more")
    parser.add_argument("--cache", default="8MB")
    parser.add_argument("--memory", default="200MB", help="of each machine")
    parser.add_argument("--spill", default="2GB")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compute", type=float, default=0.0, help="seconds of a step, slept")
    parser.add_argument(
        "--network", type=float, default=1.25e9, help="bytes per second of a machine, each way"
    )
    parser.add_argument("--latency", type=float, default=1e-4)
    parser.add_argument("--disk", type=float, default=50e6, help="bytes per second of a machine; 0: no limit")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--workdir", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def _prepare(args: argparse.Namespace, folder: Path, world: int) -> list[Path]:
    """Return the dataset of each machine: one for all, or a part for each."""
    from gloader.convert.options import PrepareOptions, SourceOptions
    from gloader.convert.prepare import prepare
    from gloader.convert.registry import open_source
    from gloader.core.ids import RangePart

    spec = f"synthetic:rmat,nodes={args.nodes},edges={args.edges},dim={args.dim},classes=8,seed=5"
    is_whole = args.placement == "copies" or world == 1
    paths = [folder / "whole"] if is_whole else [folder / f"{part}-of-{world}" for part in range(world)]
    for part, path in enumerate(paths):
        if not path.exists():
            options = PrepareOptions() if is_whole else PrepareOptions(ranges=RangePart(part=part, of=world))
            prepare(open_source(spec, SourceOptions()), path, options)
    return paths * world if is_whole else paths


@contextlib.contextmanager
def _throttled(folder: Path, world: int, bytes_per_s: float) -> Iterator[list[Path | None]]:
    """Make a control group for each machine, with a disk of its own rate; None where none can be made."""
    device = os.stat(folder).st_dev  # noqa: PTH116 - of its file system
    groups: list[Path | None] = []
    try:
        for machine in range(world):
            group = _BLKIO / f"gloader-machines-{os.getpid()}-{machine}"
            group.mkdir()
            groups.append(group)
            for way in ("read", "write") if bytes_per_s else ():
                limit = f"{os.major(device)}:{os.minor(device)} {int(bytes_per_s)}"
                (group / f"blkio.throttle.{way}_bps_device").write_text(limit)
        yield groups
    except OSError as error:
        print(f"  disks are not throttled ({error})", flush=True)
        yield [None] * world
    finally:
        for made in groups:
            if made is not None:
                _remove(made)


def _remove(group: Path) -> None:
    """Remove a group whose last process may still be on its way out."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


def _run(args: argparse.Namespace, folder: Path, datasets: list[Path], mode: str) -> dict[str, Any]:
    """Return what every machine found in one mode."""
    world = len(datasets)
    homes = [folder / f"machine-{machine}" for machine in range(world)]
    for home in homes:
        home.mkdir(exist_ok=True)
    config = {
        "datasets": [str(path) for path in datasets],
        "spills": [str(home) for home in homes],
        "mode": mode,
        "network": args.network,
        "latency": args.latency,
        "compute": args.compute,
        "batches": args.batches,
        "epochs": args.epochs,
        "loader": {
            "fanouts": [int(number) for number in args.fanouts.split(",")],
            "batch_size": args.batch_size,
            "superbatch": args.superbatch,
            "cache": parse_bytes(args.cache),
            "memory_budget": parse_bytes(args.memory),
            "spill_budget": parse_bytes(args.spill),
            "threads": args.threads,
        },
    }
    with _throttled(folder, world, args.disk) as groups:
        places = [
            Place(environ={"GLOADER_MACHINE": f"m{machine}", "GLOADER_HOME": str(home)}, group=group)
            for machine, (home, group) in enumerate(zip(homes, groups, strict=True))
        ]
        ranks = run_group(__file__, world, config, places=places, timeout_s=1800)
        is_throttled = groups[0] is not None and args.disk > 0
    return {"machines": world, "mode": mode, "is_throttled": is_throttled, "ranks": ranks}


def _medians(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the medians of each number of machines and mode, and their ratios to machines that read alone. Pure."""
    found = []
    for world, mode in dict.fromkeys((run["machines"], run["mode"]) for run in runs):
        same = [run for run in runs if (run["machines"], run["mode"]) == (world, mode)]
        found.append(
            {
                "machines": world,
                "mode": mode,
                "bytes_read": median(max(rank["bytes_read"] for rank in run["ranks"]) for run in same),
                "seconds": median(max(rank["seconds"] for rank in run["ranks"]) for run in same),
                "wait_s": median(max(rank["wait_s"] for rank in run["ranks"]) for run in same),
            }
        )
    alone = {one["machines"]: one for one in found if one["mode"] == "never"}
    for one in found:
        base = alone.get(one["machines"])
        if base is not None and base is not one:
            one["bytes_ratio"] = one["bytes_read"] / base["bytes_read"]
            one["seconds_ratio"] = one["seconds"] / base["seconds"]
    return found


def _line(run: dict[str, Any]) -> str:
    slowest = max(rank["seconds"] for rank in run["ranks"])
    read = max(rank["bytes_read"] for rank in run["ranks"])
    last = run["ranks"][0]["text"].splitlines()[-1].strip()
    return f"{run['machines']} {run['mode']}: {format_seconds(slowest)}, {format_bytes(read)} ({last})"


def _table(medians: list[dict[str, Any]]) -> str:
    lines = [
        "| machines | exchange | SSD of a machine | to copies | epoch | to copies | loop waited |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in medians:
        ratios = [f"{one[name]:.2f}" if name in one else "" for name in ("bytes_ratio", "seconds_ratio")]
        lines.append(
            f"| {one['machines']} | {one['mode']} | {format_bytes(int(one['bytes_read']))} | {ratios[0]} "
            f"| {format_seconds(one['seconds'])} | {ratios[1]} | {format_seconds(one['wait_s'])} |"
        )
    return "\n".join(lines)


# --- on a machine


def _work(config: dict[str, Any]) -> dict[str, Any]:
    from torch import distributed

    import gloader
    from gloader.distributed.exchange import exchange as exchange_module
    from gloader.distributed.exchange.host_group import Launch
    from gloader.pipeline import stage as stage_module
    from gloader.testing.rehearsed_network import ThrottledTransport

    connect = Launch.connect

    def slow_connect(launch: Launch) -> Any:
        return ThrottledTransport(connect(launch), bytes_per_s=config["network"], latency_s=config["latency"])

    Launch.connect = slow_connect  # type: ignore[method-assign,assignment]
    made: list[exchange_module.Exchange] = []
    close = exchange_module.Exchange.close

    def noted_close(exchange: exchange_module.Exchange, error: BaseException | None = None) -> None:
        if exchange not in made:
            made.append(exchange)
        close(exchange, error)

    exchange_module.Exchange.close = noted_close  # type: ignore[method-assign,assignment]
    counted: list[MissCounts] = []
    stage: Any = stage_module  # whose names are its own
    count = stage.count_misses

    def noted_count(*args: Any, **keywords: Any) -> MissCounts:
        counted.append(count(*args, **keywords))
        return counted[-1]

    stage.count_misses = noted_count
    rank, world = distributed.get_rank(), distributed.get_world_size()
    dataset = gloader.Dataset.open(config["datasets"][rank])
    seeds = dataset.train[: config["batches"] * config["loader"]["batch_size"] * world]
    seconds = bytes_read = bytes_written = wait_s = 0.0
    with gloader.Loader(
        dataset,
        seeds=seeds,
        features="ssd",
        exchange=config["mode"],
        spill_dir=config["spills"][rank],
        epochs=1 + config["epochs"],
        **config["loader"],
    ) as loader:
        for epoch in range(1 + config["epochs"]):
            distributed.barrier()
            began = time.perf_counter()
            for _batch in loader:
                time.sleep(config["compute"])
            distributed.barrier()
            if epoch:
                seconds += time.perf_counter() - began
                bytes_read += loader.stats.bytes_read
                bytes_written += loader.stats.bytes_written
                wait_s += loader.stats.stage_seconds["wait"]
        held: Any = loader._held  # noqa: SLF001 - what is measured here has no public name
        (ssd,) = held.tier.ssd
        rates = ssd.retrieval.rates
        text = loader.explain()
        num_rows = loader.features.num_rows
    largest = max(counts.num_batches for counts in counted)
    full = [counts for counts in counted if counts.num_batches == largest]
    epochs = config["epochs"]
    return {
        "seconds": seconds / epochs,
        "bytes_read": bytes_read / epochs,
        "bytes_written": bytes_written / epochs,
        "wait_s": wait_s / epochs,
        "exchange": [dataclasses.asdict(exchange.stats) for exchange in made],
        "num_rows": num_rows,
        "counts": dataclasses.asdict(full[len(full) // 2]),  # of a superbatch of the full size
        "gap_bytes": ssd.retrieval._sweep_gap_bytes,  # noqa: SLF001
        "rates": dataclasses.asdict(rates),
        "text": text,
    }


if __name__ == "__main__":
    if is_rank():
        be_rank(_work)
    else:
        main()
