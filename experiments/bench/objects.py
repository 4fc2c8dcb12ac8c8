"""A dataset in an object store against the same one on the SSD: seconds of epochs, requests, share of the cap.

A synthetic dataset is served by `gloader.testing.range_server` from a process of its own, late by ``--latency`` and no
faster than ``--cap``, and once more with ``--fault-rate`` of its answers failing. Each run opens it with an empty
mirror and lets a loader go through three epochs; others do so with the local folder. A batch wants some rows of every
block, and nothing is computed in between: the first superbatch, which is the first epoch, brings it all. The share of
the cap is taken from the start of the first epoch until its end, and until the last byte was here. Opening (topology,
labels) is counted apart. ``gets`` are to be at most blocks and what was repeated; all runs are to make the same
batches. Three turns take two minutes on a machine that does nothing else.

    python experiments/bench/objects.py --workdir /var/tmp --out experiments/results/DATE-objects.json
    python experiments/bench/objects.py --workdir /var/tmp --quick      # half a minute, to try it
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from gloader import Dataset, Loader
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.core.units import format_bytes, format_seconds, parse_bytes
from gloader.lab.bench.environment import provenance
from gloader.testing.range_server import range_server_process
from gloader.testing.served_folder import FAULT_KINDS, Faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.dataset.mirrored import Mirrored

EPOCHS = 3
BATCH = 1024
_LOOK_S = 0.02


def main() -> None:
    """Measure, print a line for each run, and write the numbers, with a table beside them."""
    args = _parse()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.workdir) as name:
        folder = Path(name)
        dim = max(1, args.features // (4 * args.nodes))
        spec = f"synthetic:community,nodes={args.nodes},edges={4 * args.nodes},dim={dim},classes=8,seed=1"
        prepare(open_source(spec, SourceOptions()), folder / "data", PrepareOptions())
        _epochs(args, folder / "data", epochs=1)  # kernels are loaded, and nothing is to be written any more
        _serve_from_memory(folder / "data")
        for turn in range(args.repeats):
            places = [("store", 0.0), ("local", 0.0)] + ([("store", args.fault_rate)] if turn == 0 else [])
            for place, rate in places:
                os.sync()
                found = (
                    _remote(args, folder, turn, rate) if place == "store" else _epochs(args, folder / "data")
                )
                runs.append({"place": place, "turn": turn, "fault_rate": rate, **found})
                print(_line(runs[-1]), flush=True)
    result = {
        "settings": {key: value for key, value in vars(args).items() if key not in {"workdir", "out"}},
        "runs": runs,
        "summary": summary(runs, args.cap),
        **provenance(),
    }
    print(json.dumps(result["summary"], indent=2))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2) + "\n")
        args.out.with_suffix(".md").write_text(table(runs, result["summary"], args) + "\n")


def summary(runs: list[dict[str, Any]], cap: int) -> dict[str, Any]:
    """Return the figures that have goals. Pure.

    Parameters
    ----------
    runs : as `main` makes them
    cap : bytes per second of the store
    """
    stored = [run for run in runs if run["place"] == "store"]
    calm = [run for run in stored if not run["fault_rate"]]
    local = [run for run in runs if run["place"] == "local"]
    return {
        "share_of_cap_while_blocks_come": median(_share(run, cap) for run in calm),
        "share_of_cap_in_the_first_epoch": median(
            run["epoch_bytes"][0] / run["epoch_s"][0] / cap for run in calm
        ),
        "first_epoch_over_local": median(run["epoch_s"][0] for run in calm)
        / median(run["epoch_s"][0] for run in local),
        "later_epochs_over_local": _later_s(calm) / _later_s(local),
        "bytes_in_later_epochs": max(sum(run["epoch_bytes"][1:]) for run in stored),
        "gets_beyond_blocks_and_retries": max(run["gets"] - run["blocks"] - run["retries"] for run in stored),
        "same_batches": len({run["digest"] for run in runs}) == 1,
    }


def table(runs: list[dict[str, Any]], figures: dict[str, Any], args: argparse.Namespace) -> str:
    """Return the runs as Markdown, and the goals. Pure."""
    size = f"{args.nodes:,} nodes, {format_bytes(args.features)} of features"
    store = f"{format_bytes(args.cap)}/s and {args.latency * 1000:g} ms, {args.requests} requests at most"
    goals = [
        ("share of the cap in the first epoch", "share_of_cap_in_the_first_epoch", "at least 0.80"),
        ("share of the cap while blocks come", "share_of_cap_while_blocks_come", ""),
        ("first epoch to local files", "first_epoch_over_local", ""),
        ("later epochs to local files", "later_epochs_over_local", "at most 1.05"),
        ("bytes from the store in later epochs", "bytes_in_later_epochs", "0"),
        ("GETs beyond blocks and repeated ones", "gets_beyond_blocks_and_retries", "at most 0"),
        ("the same batches, with faults, too", "same_batches", "True"),
    ]
    lines = [f"{size}; a store of {store}", ""]
    lines += ["| | measured | goal |", "|---|---|---|"]
    for said, name, goal in goals:
        value = figures[name]
        lines.append(f"| {said} | {f'{value:.2f}' if isinstance(value, float) else value} | {goal} |")
    lines += [
        "",
        "| place | faults | opened | epochs | from the store | of the cap | GETs | blocks | again |",
    ]
    lines.append("|" + "---|" * 9)
    for run in runs:
        epochs = ", ".join(map(format_seconds, run["epoch_s"]))
        cells = [run["place"], f"{run['fault_rate']:.0%}", format_seconds(run["open_s"]), epochs]
        if run["place"] == "store":
            cells += [format_bytes(sum(run["epoch_bytes"])), f"{_share(run, args.cap):.2f}"]
            cells += [f"{run[name]:,}" for name in ("gets", "blocks", "retries")]
        lines.append("| " + " | ".join(cells + [""] * (9 - len(cells))) + " |")
    return "\n".join(lines)


def _share(run: dict[str, Any], cap: int) -> float:
    return float(run["epoch_bytes"][0] / run["download_s"] / cap)


def _later_s(runs: list[dict[str, Any]]) -> float:
    return float(median(seconds for run in runs for seconds in run["epoch_s"][1:]))


def _serve_from_memory(folder: Path) -> None:
    """Have the files in the page cache, so that the server takes nothing of the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(1 << 24):
                    pass


def _remote(args: argparse.Namespace, folder: Path, turn: int, rate: float) -> dict[str, Any]:
    """Return epochs over an empty mirror."""
    faults = Faults(rate=rate, kinds=FAULT_KINDS, seed=turn, stall_s=args.stall)
    with (
        range_server_process(folder, latency_s=args.latency, bytes_per_s=args.cap, faults=faults) as server,
        tempfile.TemporaryDirectory(dir=args.workdir) as mirrors,
    ):
        found = _epochs(args, f"{server.url}/data", mirror_dir=Path(mirrors), object_requests=args.requests)
        # The record is no block.
        gets = server.counts.gets - server.counts.gets_of.get("data/dataset.json", 0)
    return {"gets": gets, **found}


def _epochs(
    args: argparse.Namespace, dataset: Path | str, *, epochs: int = EPOCHS, **keywords: Any
) -> dict[str, Any]:
    """Return the seconds and bytes of each epoch, and a digest of all batches."""
    began = time.monotonic()
    digest, seconds, moved = hashlib.sha256(), [], []
    with (
        closing(Dataset.open(dataset, **keywords)) as opened,
        Loader(
            opened,
            seeds=opened.train[: args.batches * BATCH],
            fanouts=[5],
            batch_size=BATCH,
            superbatch=args.batches,
            memory_budget=args.memory,
            features="ssd",
            cache="1%",
            seed=0,
        ) as loader,
        ExitStack() as stack,
    ):
        open_s = time.monotonic() - began
        mirrored, before = opened.mirrored, 0
        arrivals = stack.enter_context(_watched(mirrored))
        for _ in range(epochs):
            began = time.monotonic()
            for batch in loader:
                digest.update(batch.nodes.tobytes())
                digest.update(batch.x[::16].numpy().tobytes())
            seconds.append(time.monotonic() - began)
            now = 0 if mirrored is None else mirrored.traffic().num_bytes
            moved.append(now - before)
            before = now
        stats = None if mirrored is None else mirrored.os_io.stats()
    return {
        "open_s": open_s,
        "epoch_s": seconds,
        "epoch_bytes": moved,
        "download_s": arrivals.last_s,
        "digest": digest.hexdigest(),
        "retries": 0 if stats is None else stats.retries,
        "blocks": 0 if stats is None else stats.blocks,
    }


@dataclass(slots=True)
class _Arrivals:
    """When bytes came from a store."""

    last_s: float = 0.0  # the last ones so far, in seconds from the start


@contextmanager
def _watched(mirrored: Mirrored | None) -> Iterator[_Arrivals]:
    """Look often at how many bytes came inside the block."""
    found, is_over, began = _Arrivals(), threading.Event(), time.monotonic()

    def look() -> None:
        came = mirrored.traffic().num_bytes if mirrored else 0
        while mirrored is not None and not is_over.wait(_LOOK_S):
            if (now := mirrored.traffic().num_bytes) > came:
                came, found.last_s = now, time.monotonic() - began

    thread = threading.Thread(target=look, name="arrivals")
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def _line(run: dict[str, Any]) -> str:
    epochs = ", ".join(
        f"{format_seconds(seconds)} ({format_bytes(count)})"
        for seconds, count in zip(run["epoch_s"], run["epoch_bytes"], strict=True)
    )
    asked = (
        f", {run['gets']} GETs for {run['blocks']} blocks, {run['retries']} again" if "gets" in run else ""
    )
    opened = f"{run['place']}, faults {run['fault_rate']:.0%}: opened in {format_seconds(run['open_s'])}"
    return f"{opened}, epochs {epochs}{asked}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workdir", type=Path, default=Path(tempfile.gettempdir()), help="on the SSD to measure"
    )
    parser.add_argument("--out", type=Path, help="where to write the numbers")
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=32, help="in an epoch, at last in one superbatch")
    parser.add_argument("--features", type=parse_bytes, default=parse_bytes("4GB"), help="bytes of features")
    parser.add_argument("--memory", default="3GB", help="memory budget")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument(
        "--cap", type=parse_bytes, default=parse_bytes("1GB"), help="bytes per second of the store"
    )
    parser.add_argument("--requests", type=int, default=64, help="under way at a time")
    parser.add_argument("--fault-rate", type=float, default=0.01, help="share of the answers that fail")
    parser.add_argument(
        "--stall", type=float, default=5.0, help="seconds without an answer, of those that stall"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a small dataset, once")
    args = parser.parse_args()
    if args.quick:
        args.nodes, args.features, args.repeats = 500_000, parse_bytes("1GB"), 1
        args.batches = 8
    return args


if __name__ == "__main__":
    main()
