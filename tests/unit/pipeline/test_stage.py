"""The verb "stage": a plan in, a source of its missing rows out."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gloader.cache import CachePlan
from gloader.core.signals import Cancellation
from gloader.errors import ChannelClosedError, MachineLeftError, SpillError
from gloader.observe.instruments import Instruments, Work
from gloader.observe.timeline import TimelineRecorder
from gloader.pipeline.stage import MissRetrieval, StageMisses
from gloader.pipeline.superbatch import PlannedSuperbatch, RunFeedback, StagedTable
from gloader.ssd_store.cost.io_rates import Calibration
from gloader.ssd_store.cost.strategy import Choice
from gloader.ssd_store.miss_sources import DirectMisses, MissSource
from gloader.ssd_store.sweep.sweeper import SweepCost
from gloader.types import BatchId, ReadStats

from .items import NODES, instruments, plan, seconds_of, staged

PLANNED = PlannedSuperbatch(number=1, first=BatchId(epoch=0, index=3), plans=(plan(),))
COST = SweepCost(read=ReadStats(rows=5, requests=2, bytes_read=8192), writes=1, bytes_written=4096)


class _Retrieval:
    """Stages as it is told, and asks whether it has to end."""

    def __init__(self, error: BaseException | None = None, choice: Choice | None = None) -> None:
        self.error = error
        self.choice = staged().tables[0].choice if choice is None else choice

    def request(self, _plan: CachePlan, _calibration: Calibration) -> Any:
        return SimpleNamespace(own=self.choice, counts=SimpleNamespace(unique_rows=4))

    def begin(
        self, _request: Any, choice: Choice, *, superbatch: int, cancellation: Cancellation
    ) -> StagedTable:
        if self.error is not None:
            raise self.error
        if cancellation.is_set():
            raise ChannelClosedError("cancelled")
        misses: MissSource = SimpleNamespace(cost=COST, close=lambda: None)  # type: ignore[assignment]
        return replace(staged(superbatch, misses).tables[0], choice=choice)


def test_what_a_sweep_moved_is_counted() -> None:
    found = instruments()
    result = StageMisses([_Retrieval()], RunFeedback(), found).process(PLANNED)  # type: ignore[list-item]
    assert result.number == 1
    stats = found.recorder(0).snapshot()
    assert (stats.bytes_read, stats.bytes_written, stats.requests) == (8192, 4096, 2)
    assert stats.tables == {}
    assert seconds_of(found, "stage") > 0


def test_counting_what_is_missing_is_no_use_of_the_disk() -> None:
    feedback = RunFeedback()
    users: list[int] = []

    class Watching(_Retrieval):
        def request(self, plan: CachePlan, calibration: Calibration) -> Any:
            users.append(feedback.device._num_users)
            return super().request(plan, calibration)

        def begin(self, *how: Any, **named: Any) -> StagedTable:
            users.append(feedback.device._num_users)
            return super().begin(*how, **named)

    StageMisses([Watching()], feedback, instruments()).process(PLANNED)  # type: ignore[list-item]
    assert users == [0, 1]


def test_of_several_tables_each_is_counted_by_its_name() -> None:
    found, feedback = instruments(), RunFeedback(table_names=("paper", "author"))
    both = replace(PLANNED, plans=(plan(), plan()))
    StageMisses([_Retrieval(), _Retrieval()], feedback, found).process(both)  # type: ignore[list-item]
    stats = found.recorder(0).snapshot()
    assert stats.bytes_read == 2 * 8192
    assert {name: counts["bytes_read"] for name, counts in stats.tables.items()} == {
        "paper": 8192,
        "author": 8192,
    }


def test_the_timeline_shows_what_was_staged_and_how_most_of_it_is_read(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    few = replace(staged().tables[0].choice, read_bytes=10)
    most = Choice(strategy="packed", predicted={"packed": 1.0}, reason="by hand", read_bytes=20)
    retrievals: Any = [_Retrieval(choice=few), _Retrieval(choice=most), _Retrieval(choice=few)]
    three, feedback = replace(PLANNED, plans=(plan(),) * 3), RunFeedback(table_names=("a", "b", "c"))
    StageMisses(retrievals, feedback, Instruments(timeline=timeline)).process(three)
    timeline.write(tmp_path / "trace.json")
    (found,) = (
        e["args"] for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"
    )
    assert found.pop("cpu_us") > 0
    assert found == {
        "epoch": 0,
        "batch": 3,
        "batches": 2,
        "superbatch": 1,
        "strategy": "packed",
        "misses": 3 * plan().num_misses,
        "unique_rows": 3 * 4,
        "accesses": 3 * sum(map(len, NODES)),
        "requests": 3 * COST.read.requests,
        "bytes_read": 3 * COST.read.bytes_read,
        "bytes_written": 3 * COST.bytes_written,
    }


def test_a_sweep_ends_when_the_stage_is_cancelled() -> None:
    stage = StageMisses([_Retrieval()], RunFeedback(), instruments())  # type: ignore[list-item]
    stage.cancel()
    with pytest.raises(ChannelClosedError):
        stage.process(PLANNED)


def test_a_look_for_a_cancellation_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[str] = []
    monkeypatch.setattr(Work, "beat", lambda work: beats.append(work.stage))

    class Looking(_Retrieval):
        def begin(self, *how: Any, cancellation: Cancellation, **named: Any) -> StagedTable:
            before = len(beats)
            cancellation.raise_if_set("a sweep")
            assert beats[before:] == ["stage"]
            return super().begin(*how, cancellation=cancellation, **named)

    stage = StageMisses([Looking()], RunFeedback(), instruments())  # type: ignore[list-item]
    assert stage.process(PLANNED).number == 1


def test_an_error_names_the_batches() -> None:
    stage = StageMisses([_Retrieval(SpillError("full"))], RunFeedback(), instruments())  # type: ignore[list-item]
    with pytest.raises(SpillError, match="full") as caught:
        stage.process(PLANNED)
    assert caught.value.__notes__ == ["in stage stage, epoch 0, batch 3 and the 1 after it"]


def test_what_was_staged_of_one_table_is_released_where_another_fails() -> None:
    first, misses = _Retrieval(), SimpleNamespace(cost=COST, num_closed=0)
    misses.close = lambda: setattr(misses, "num_closed", misses.num_closed + 1)
    first.begin = lambda *_, **__: staged(1, misses).tables[0]  # type: ignore[method-assign]
    stage = StageMisses([first, _Retrieval(SpillError("full"))], RunFeedback(), instruments())  # type: ignore[list-item]
    planned = PlannedSuperbatch(number=1, first=PLANNED.first, plans=(plan(), plan()))
    with pytest.raises(SpillError, match="full"):
        stage.process(planned)
    assert misses.num_closed == 1


@pytest.mark.parametrize("is_needed", [False, True])
def test_rows_that_arrived_are_released_where_another_machine_leaves_before_it_is_served(
    is_needed: bool,
) -> None:
    events: list[str] = []

    class Exchanged(_Retrieval):
        def union(self, _request: Any, *, cancellation: Cancellation) -> Any:
            return NODES[0]

        def offer(self, _request: Any) -> None:
            """Offer nothing: the exchange below needs no offer."""

        def begin(self, *how: Any, arriving: Any = None, **named: Any) -> StagedTable:
            name = "own" if arriving is None else "exchanged"
            events.append(name)
            misses: Any = SimpleNamespace(cost=COST, close=lambda: events.append(f"{name} released"))
            return replace(super().begin(*how, **named), misses=misses)

    @contextmanager
    def fetch(*_: Any, **__: Any) -> Iterator[Any]:
        yield "rows"
        raise MachineLeftError("rank 1 has left")

    shared = replace(staged().tables[0].choice, is_exchanged=True)
    exchange: Any = SimpleNamespace(
        choose=lambda *_, **__: (shared,), fetch=fetch, is_needed=is_needed, bytes_read=0
    )
    stage = StageMisses([Exchanged()], RunFeedback(), instruments(), exchange)  # type: ignore[list-item]
    if is_needed:
        with pytest.raises(MachineLeftError):
            stage.process(PLANNED)
        assert events == ["exchanged", "exchanged released"]
    else:
        stage.process(PLANNED)
        assert events == ["exchanged", "exchanged released", "own"]


def test_a_superbatch_gives_every_table_back_though_one_of_them_fails() -> None:
    closed: list[str] = []

    def fail() -> None:
        closed.append("last")
        raise SpillError("gone")

    sources = [SimpleNamespace(close=lambda: closed.append("first")), SimpleNamespace(close=fail)]
    superbatch = replace(staged(), tables=tuple(staged(misses=misses).tables[0] for misses in sources))
    with pytest.raises(SpillError, match="gone"):
        superbatch.close()
    assert sorted(closed) == ["first", "last"]


@pytest.mark.parametrize(("forced", "expected"), [("auto", 25), ("packed", 90)])
def test_packs_of_a_table_take_their_share_of_the_disk_unless_they_were_asked_for(
    forced: str, expected: int
) -> None:
    folder, packer = SimpleNamespace(budget_bytes=100, room_bytes=90), SimpleNamespace()
    retrieval = SimpleNamespace(_spill=folder, _packer=packer, _forced=forced, _spill_share=0.25)
    spill_bytes: Any = MissRetrieval.spill_bytes
    assert spill_bytes.fget(retrieval) == expected
    folder.room_bytes = 10
    assert spill_bytes.fget(retrieval) == 10


def test_direct_reads_go_over_the_holes_that_the_stage_chose() -> None:
    asked: list[Any] = []
    store: Any = SimpleNamespace(read_into=lambda *_, **named: asked.append(named))
    for gap_bytes in (None, 4096):
        DirectMisses(store, gap_bytes=gap_bytes).read_into(0, None, None, at=None)  # type: ignore[list-item]
    assert asked == [{"at": None}, {"at": None, "gap_bytes": 4096}]
