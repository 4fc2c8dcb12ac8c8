"""The replay held against reality: runs as they were, runs it was asked about, and advice that is followed.

    python experiments/bench/replay.py --workdir /some/disk --out experiments/results/DATE-replay.json
    python experiments/bench/replay.py --workdir /some/disk --parts cross --bases 1 --rounds 2

unchanged    Runs in memory, direct, staged and packed, of one and of two ranks, of three models, and more: by how much
             the replay of a recording is off the recording, and what it cannot explain, stage by stage.
cross        Runs along five axes through some bases: caches of 5 to 40%, superbatches of 8 to 128, 1 and 2 sampling
             threads, a disk of known rates at all, half and a quarter of them, a model computed once and twice. From
             the recording of one, the others on each axis are predicted, both ways, and held against their runs.
bottlenecks  Ten runs that are held up on purpose, each by something else: whether the analysis names it, and what
             following its best what-if gains, beside what was said.
search       What `gloader autotune` finds from five bad starts, run, against the best of a grid that is run whole.
defaults     Six workloads as they come, without a flag, against what `gloader autotune` makes of them.

Every run is a process, or two, of its own, and is kept with its recording in the working folder: a benchmark that was
interrupted goes on, and one that is run again predicts anew from the same recordings (--again makes them anew too).
Disks are held back by a control group (blkio, version 1, as root), and a run of such a disk has a device profile that
says so. The machine should do nothing else: what others used of its cores stands beside each run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from replay_cases import Case, Graph
from replay_grid import BASES
from replay_parts import bottlenecks, cross, defaults, unchanged
from replay_runs import Workshop
from replay_search import search
from replay_summary import draw_scatter, markdown

from gloader.lab.bench.environment import provenance

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS: Final[dict[str, Callable[[argparse.Namespace, Workshop], dict[str, Any]]]] = {
    "unchanged": lambda options, shop: unchanged(shop, only=options.only),
    "cross": lambda options, shop: cross(shop, BASES[: options.bases], only=options.only),
    "bottlenecks": lambda options, shop: bottlenecks(shop, only=options.only),
    "search": lambda options, shop: search(shop, only=options.only),
    "defaults": lambda options, shop: defaults(shop, only=options.only),
}

_OWN: Final = frozenset({"trace", "errors", "explain"})  # of a run: paths of this machine, and pages of text


def main() -> None:
    """Run the parts and write the results."""
    options = read_arguments()
    # Whoever is told to end removes its control group, and ends its run, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    workdir = options.workdir.resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    os.environ["GLOADER_HOME"] = str(workdir / "home")
    shop = Workshop(workdir=workdir, rounds=options.rounds, is_again=options.again, is_quick=options.quick)
    result: dict[str, Any] = {
        "benchmark": "replay",
        **provenance(),
        "options": {name: str(value) for name, value in vars(options).items() if not isinstance(value, Path)},
        "parts": {},
    }
    if not options.quick:
        warm_up(shop)
    for part in options.parts:
        began = time.perf_counter()
        print(f"{part}:", flush=True)
        result["parts"][part] = PARTS[part](options, shop)
        result["parts"][part]["took_s"] = time.perf_counter() - began
        write(result, options.out)
    print(markdown(result))


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="on the disk to measure; kept")
    parser.add_argument("--out", type=Path, help="JSON file; a page and a picture go beside it")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=1, help="times that each run is made, in turns")
    parser.add_argument("--bases", type=int, default=len(BASES), help="of part cross, the first of them")
    parser.add_argument("--only", default="", help="runs, or pairs of part cross, whose names hold this")
    parser.add_argument("--again", action="store_true", help="make runs that are kept once more")
    parser.add_argument("--quick", action="store_true", help="tiny graphs: to see that it works, in minutes")
    options = parser.parse_args(words)
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} unknown; allowed: {', '.join(PARTS)}")
    if not 1 <= options.bases <= len(BASES):
        parser.error(f"--bases is {options.bases}; allowed: 1 to {len(BASES)}")
    return options


def warm_up(shop: Workshop) -> None:
    """Have every kernel compiled and remembered, and the disk measured: otherwise the first runs would do that."""
    graph = Graph(nodes=20_000, edges=200_000, dim=16)
    common: dict[str, Any] = {"fanouts": [5, 5], "batch_size": 128, "memory_budget": "60MB"}
    ways: Mapping[str, dict[str, Any]] = {
        "memory": {"features": "ram"},
        **{
            way: {"features": "ssd", "cache": 0.1, "io_strategy": way}
            for way in ("direct", "staged", "packed")
        },
        "sweep": {"features": "ssd", "cache": 0.1, "topology": "sweep"},
    }
    for way, loader in ways.items():
        shop.run(
            Case(
                name=f"warm-up-{way}",
                graph=graph,
                loader=common | loader,
                model={"name": "graphsage", "hidden": 8},
                epochs=1,
            )
        )


def write(result: Mapping[str, Any], out: Path | None) -> None:
    """Write what there is so far, without paths of this machine and pages of text."""
    if out is None:
        return
    out.write_text(json.dumps(for_the_record(result), indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(result) + "\n")
    draw_scatter(result, out.with_suffix(".svg"))


def for_the_record(value: Any) -> Any:
    """Return ``value`` as it is kept: without what only the benchmark itself needs of a run. Pure."""
    if isinstance(value, Mapping):
        return {name: for_the_record(one) for name, one in value.items() if name not in _OWN}
    return [for_the_record(one) for one in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    main()
