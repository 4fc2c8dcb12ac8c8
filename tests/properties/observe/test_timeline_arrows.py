"""Whatever the stages did: each batch's arrow visits every slice that worked on it, in the order of time."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from gloader.observe.timeline import TimelineRecorder
from gloader.types import BatchId

US = 1000


@dataclass(frozen=True)
class Run:
    """A run of superbatches over epochs of ``per_epoch`` batches, one thread per stage, gaps between the work."""

    per_epoch: int
    sizes: list[int]
    gaps: list[int]

    def ids(self) -> list[BatchId]:
        return [BatchId(epoch=i // self.per_epoch, index=i % self.per_epoch) for i in range(sum(self.sizes))]


runs = st.builds(
    Run,
    per_epoch=st.integers(1, 7),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    gaps=st.lists(st.integers(2, 50), min_size=1, max_size=9),
)


def _record(timeline: TimelineRecorder, run: Run) -> dict[str, list[tuple[int, int, range]]]:
    """Record ``run``; return begin, end and batches of each slice of each stage."""
    done: dict[str, list[tuple[int, int, range]]] = defaultdict(list)
    now, first, tick = 0, 0, 0
    for size in run.sizes:
        work = [("sample", range(i, i + 1)) for i in range(first, first + size)]
        work.append(("inspect", range(first, first + size)))
        work += [
            (stage, range(i, i + 1)) for i in range(first, first + size) for stage in ("read", "compute")
        ]
        for stage, batches in work:
            length = run.gaps[tick % len(run.gaps)]
            done[stage].append((now * US, (now + length) * US, batches))
            now, tick = now + length + 1, tick + 1
        first += size
    ids = run.ids()

    def play(stage: str) -> None:
        for begin, end, batches in done[stage]:
            timeline.record(stage, ids[batches.start], len(batches), begin, end)  # type: ignore[arg-type]

    for stage in done:
        thread = Thread(target=play, args=(stage,), name=stage)
        thread.start()
        thread.join()
    return done


@given(runs)
def test_arrows_visit_every_slice_of_their_batch(run: Run) -> None:
    timeline = TimelineRecorder()
    done = _record(timeline, run)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        timeline.write(path)
        events = json.loads(path.read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[int, list[tuple[float, str, str]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            found[event["id"]].append((event["ts"], event["ph"], tracks[event["tid"]]))
    expected = Counter(
        tuple(
            ((begin + end) / 2 / US, stage)
            for stage in ("sample", "inspect", "read", "compute")
            for begin, end, batches in done[stage]
            if batch in batches
        )
        for batch in range(sum(run.sizes))
    )
    assert Counter(tuple((at, stage) for at, _, stage in stops) for stops in found.values()) == expected
    assert {"".join(phase for _, phase, _ in stops) for stops in found.values()} == {"sttf"}
