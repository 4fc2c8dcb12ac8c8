"""The cost of recording every stage: for one piece of work, for a batch, and for an epoch compared with another.

Every loader records its last epochs ("recent"); with `trace=True` all of them, too ("whole"). Neither is beside what a
loader would take that records nothing ("none"). Epochs on a machine differ by more than a hundredth, so the cost is put
together of parts that can be measured:

events      processor time of a piece of work with its notes, in turns of a tight loop
batch       how many pieces of work a batch is in an epoch with its features on the SSD, and its seconds with a step of
            GraphSAGE. The events' nanoseconds over those seconds are the share, as if no other core took any of it
epochs      the same epoch again and again in one process, in turns: the ratios of the rounds, of seconds and of
            processor seconds, and an interval of their median by bootstrap

    python experiments/bench/timeline_overhead.py --workdir DIR --out experiments/results/DATE-timeline-overhead.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from pipeline_child import make_sink
from pipeline_graphs import Graph, make_dataset

from gloader import Dataset, Loader
from gloader.lab.bench.environment import provenance
from gloader.observe.instruments import Instruments
from gloader.observe.timeline import RecentTimeline, TimelineRecorder
from gloader.observe.watchdog import Watchdog
from gloader.replay.recording import read_recording
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.observe.epoch_stats import WorkName
    from gloader.types import ReadyBatch

GOAL: Final = 1.01
RECORDED: Final = ("none", "recent", "whole")
_EVENTS_A_TURN: Final = 500
_RESAMPLES: Final = 10_000
_LEVEL: Final = 0.95


class Kind(NamedTuple):
    """A kind of work, with the notes that its stage attaches, call by call."""

    stage: WorkName
    notes: tuple[dict[str, Any], ...] = ()
    moves: bool = False


# As the stages do it, see `gloader.pipeline`; a sample for its trace counts apart.
KINDS: Final[dict[str, Kind]] = {
    "trace": Kind("sample", ({"ahead": True},)),
    "sample": Kind("sample", ({"kept": True},)),
    "inspect": Kind("inspect", ({"superbatch": 3, "hits": 90_000, "misses": 80_000, "admitted": 7_000},)),
    "stage": Kind(
        "stage",
        (
            {"superbatch": 3},
            {"strategy": "packed", "misses": 80_000, "unique_rows": 70_000, "accesses": 170_000},
        ),
        moves=True,
    ),
    "read": Kind("read", ({"superbatch": 3}, {"misses": 80_000}), moves=True),
    "gather": Kind("gather", ({"superbatch": 3, "hits": 90_000, "admitted": 7_000},)),
    "transfer": Kind("transfer"),
    "wait": Kind("wait"),
    "compute": Kind("compute"),
}


def main() -> None:
    """Measure all of it, print it, and write it."""
    options = _parse()
    dataset = make_dataset(
        options.workdir, Graph(kind="popular", nodes=options.nodes, edges=10 * options.nodes, dim=64)
    )
    events = _events(options.turns)
    epochs = Epochs(dataset, options)
    try:
        found = epochs.measure(options.rounds)
        counts = epochs.events_per_batch(options.workdir)
    finally:
        epochs.close()
    added_s = {
        how: sum(counts[name] * events[name][how]["added_ns"] for name in counts) / 1e9
        for how in RECORDED[1:]
    }
    result = {
        "benchmark": "timeline_overhead",
        **provenance(),
        "graph": dataset.name,
        "loader": epochs.settings,
        "torch_threads": torch.get_num_threads(),
        "goal": GOAL,
        "events": events,
        "batch": {
            "events": counts,
            "added_s": added_s,
            "seconds": found["batch_s"],
            "ratio": {how: 1 + seconds / found["batch_s"] for how, seconds in added_s.items()},
        },
        "epochs": found,
    }
    print(_table(result))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def _events(turns: int) -> dict[str, dict[str, Any]]:
    """Return the nanoseconds of each kind of work, however it is recorded: medians over ``turns`` of a loop each."""
    found: dict[str, dict[str, list[float]]] = {name: {how: [] for how in RECORDED} for name in KINDS}
    for turn in range(turns):
        # All kinds in every turn, and who begins changes: the processor may become slower meanwhile.
        for name, kind in KINDS.items():
            for how in _in_turn(turn):
                instruments = Instruments(timeline=_timeline(how), watchdog=Watchdog(300.0, _fail))
                found[name][how].append(_loop(instruments, kind))
    return {name: _compared(of_kind) for name, of_kind in found.items()}


def _in_turn(turn: int) -> tuple[str, ...]:
    """Return the ways to record in another order with every turn. Pure."""
    first = turn % len(RECORDED)
    return (*RECORDED[first:], *RECORDED[:first])


def _timeline(how: str) -> RecentTimeline | None:
    whole = TimelineRecorder(max_events=_EVENTS_A_TURN) if how == "whole" else None
    return None if how == "none" else RecentTimeline(whole)


def _compared(found: dict[str, list[float]]) -> dict[str, Any]:
    """Return the medians, and those of what recording adds, with their intervals. Pure."""
    none = np.array(found["none"])
    result: dict[str, Any] = {"none_ns": float(np.median(none))}
    for how in RECORDED[1:]:
        added = np.array(found[how]) - none
        low, high = _interval(added)
        result[how] = {"added_ns": float(np.median(added)), "low_ns": low, "high_ns": high}
    return result


def _fail(error: BaseException) -> None:
    raise error


def _loop(instruments: Instruments, kind: Kind) -> float:
    """Return the nanoseconds of processor time of one of many pieces of work."""
    batch, stage, moves = BatchId(epoch=0, index=7), kind.stage, kind.moves
    # Not of the clock on the wall, which goes on while another process has the core.
    began = time.thread_time_ns()
    for _ in range(_EVENTS_A_TURN):
        with instruments.working(stage, batch) as work:
            for notes in kind.notes:
                work.note(**notes)
            if moves:
                work.add_bytes(read=4096, written=4096, requests=1)
    return (time.thread_time_ns() - began) / _EVENTS_A_TURN


class Epochs:
    """The same epoch of loaders that record in different ways. Owns them until `close`.

    Parameters
    ----------
    folder : of the dataset
    options : of the command
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        dataset = Dataset.open(folder)
        self.settings: dict[str, Any] = {
            "fanouts": [10, 10],
            "batch_size": options.batch_size,
            "features": "ssd",
            "cache": 0.1,
            "superbatch": 16,
            "memory_budget": options.memory_budget,
            "spill_dir": str(options.workdir),
            # A run for each epoch: a loader that waits for its turn does nothing meanwhile.
            "epochs": 1,
        }
        seeds = dataset.train[: options.batches * options.batch_size]
        self._loaders = {
            how: Loader(dataset, seeds=seeds, trace=how == "whole", **self.settings) for how in RECORDED
        }
        # No setting does that: a loader's advice comes from what it records.
        setattr(self._loaders["none"], "_timeline", None)  # noqa: B010
        self.settings["spill_dir"] = "DIR"
        self._state = self._loaders["none"].state_dict()
        self._sink: Callable[[ReadyBatch], None] = make_sink("sage", dataset, 2)

    def measure(self, rounds: int) -> dict[str, Any]:
        """Return the ratios of epochs that are recorded to one that is not, and the seconds of a batch of that."""
        for _ in range(2):  # kernels are compiled, caches are filled, and hold the same from then on
            for how in RECORDED:
                self._epoch(how)
        taken: dict[str, list[tuple[float, float]]] = {how: [] for how in RECORDED}
        for number in range(rounds):
            for how in _in_turn(number):
                taken[how].append(self._epoch(how))
        none = np.array(taken["none"])
        found: dict[str, Any] = {
            "rounds": rounds,
            "batch_s": float(np.median(none[:, 0])) / len(self._loaders["none"]),
        }
        for how in RECORDED[1:]:
            ratios = np.array(taken[how]) / none
            found[how] = {
                "seconds": _spread(ratios[:, 0]),
                "cpu_seconds": _spread(ratios[:, 1]),
            }
        return found

    def events_per_batch(self, workdir: Path) -> dict[str, float]:
        """Return how many pieces of work of each kind a batch was, in all epochs that were recorded."""
        path = workdir / "timeline-overhead.json"
        self._loaders["whole"].write_trace(path)
        recording = read_recording(path)
        path.unlink()
        counts = Counter("trace" if event.notes.get("ahead") else event.stage for event in recording.events)
        return {name: counts[name] / counts["compute"] for name in KINDS}

    def close(self) -> None:
        """Close the loaders."""
        for loader in self._loaders.values():
            loader.close()

    def _epoch(self, how: str) -> tuple[float, float]:
        """Return the seconds, and processor seconds, of the epoch."""
        loader = self._loaders[how]
        loader.load_state_dict(self._state)
        began, cpu_began = time.perf_counter(), time.process_time()
        for batch in loader:
            self._sink(batch)
        return time.perf_counter() - began, time.process_time() - cpu_began


def _spread(ratios: NDArray[np.float64]) -> dict[str, Any]:
    """Return the median of ``ratios``, its interval, and all of them. Pure."""
    low, high = _interval(ratios)
    return {"ratio": float(np.median(ratios)), "low": low, "high": high, "ratios": ratios.tolist()}


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the bounds of a bootstrap interval of the median. Pure."""
    numbers = np.random.default_rng(0)
    medians = np.median(numbers.choice(values, (_RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(medians, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def _table(result: dict[str, Any]) -> str:
    """Return what was measured, for people. Pure."""
    batch, epochs = result["batch"], result["epochs"]
    lines = ["ns of work   none  recent adds             whole adds              a batch"]
    for name, event in result["events"].items():
        added = [
            f"{one['added_ns']:6,.0f} ({one['low_ns']:,.0f} to {one['high_ns']:,.0f})"
            for one in (event[how] for how in RECORDED[1:])
        ]
        lines.append(
            f"{name:<10} {event['none_ns']:6,.0f}  {added[0]:<22}  {added[1]:<22}  {batch['events'][name]:.2f}"
        )
    for how in RECORDED[1:]:
        lines.append(
            f"{how}: {batch['added_s'][how] * 1e6:.1f} us are added to a batch of {batch['seconds'] * 1e3:.1f} ms: "
            f"{batch['ratio'][how]:.5f} (goal: {GOAL}); of {epochs['rounds']} rounds of an epoch:"
        )
        lines += [
            f"    {name}: {one['ratio']:.4f} ({one['low']:.4f} to {one['high']:.4f})"
            for name, one in epochs[how].items()
        ]
    return "\n".join(lines)


def _parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="on an SSD; takes the dataset")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the figures")
    parser.add_argument("--nodes", type=int, default=400_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--batches", type=int, default=48, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=20, help="of epochs, at least 10")
    parser.add_argument("--turns", type=int, default=400, help="of each loop of events")
    parser.add_argument("--memory-budget", default="1GB")
    options = parser.parse_args(words)
    if options.rounds < 10:
        parser.error(f"--rounds is {options.rounds}; an interval needs at least 10")
    return options


if __name__ == "__main__":
    main()
