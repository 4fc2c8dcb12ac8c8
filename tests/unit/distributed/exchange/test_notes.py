"""The end of an exchange, by the notes of all hosts, and the time that a host waits for others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gloader.core.signals import NEVER, Cancellation
from gloader.distributed.exchange import notes
from gloader.distributed.exchange.notes import END, HERE, LOST, STOPPED, Patience, explain, note_of
from gloader.errors import MachineLeftError

NAMES = ("rank 0 (machine a)", "rank 4 (machine b)", "rank 8 (machine c)")

THERE = f"{HERE} 7 3"


class Board:
    """Notes that change as they are read."""

    def __init__(self, *states: Sequence[str | None] | None) -> None:
        self._states = list(states)
        self.written: list[str] = []

    def write(self, text: str) -> None:
        self.written.append(text)

    def read(self) -> Sequence[str | None] | None:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "PATIENCE_S", 0.1)


def told(board: Board) -> str:
    error = explain(
        board, index=0, names=NAMES, keeper=NAMES[0], cause="the transport's text", cancellation=NEVER
    )
    left = isinstance(error, MachineLeftError)
    assert left == ("has left" in str(error))
    return str(error)


@pytest.mark.parametrize(
    ("states", "text", "written"),
    [
        ([[LOST, LOST, THERE]], "rank 8 (machine c) is gone or does not answer", LOST),
        ([[LOST, None, THERE]], "rank 4 (machine b) and rank 8 (machine c) are gone or do not answer", LOST),
        ([[LOST, LOST, None]], "rank 8 (machine c) did not come to the exchange of rows", LOST),
        ([[LOST, LOST, f"{HERE} 9 0"]], "rank 8 (machine c) did not come to the exchange of rows", LOST),
        (
            [[LOST, THERE, THERE], [LOST, LOST, LOST]],
            "broke, and all machines still run: check the network",
            LOST,
        ),
        (
            [[LOST, LOST, THERE], [LOST, LOST, note_of(OSError("boom"))]],
            "rank 8 (machine c) failed: OSError: boom",
            LOST,
        ),
        ([[LOST, STOPPED, LOST]], "rank 4 (machine b) was ended by a signal", LOST),
        ([[LOST, STOPPED, THERE]], "rank 8 (machine c) is gone or does not answer", LOST),
        ([[THERE, THERE, END]], "rank 8 (machine c) has left the run", f"{END} after {NAMES[2]}"),
        (
            [[THERE, f"{END} after {NAMES[2]}", END]],
            "rank 8 (machine c) has left the run",
            f"{END} after {NAMES[2]}",
        ),
        (
            [[THERE, f"{END} after {NAMES[2]}", THERE]],
            "rank 8 (machine c) has left the run",
            f"{END} after {NAMES[2]}",
        ),
        ([[THERE, END, note_of(ValueError("x"))]], "rank 8 (machine c) failed: ValueError: x", LOST),
        ([None], "neither does the store of the process group, which rank 0 (machine a)", LOST),
    ],
)
def test_the_notes_of_all_name_the_one_that_ended_it(
    states: list[Sequence[str | None] | None], text: str, written: str
) -> None:
    board = Board(*states)
    assert text in told(board)
    assert board.written == [written]


def test_who_waits_for_the_notes_of_others_shows_that_it_lives_and_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notes, "PATIENCE_S", 60.0)
    beats = iter([False, False, True])
    board = Board([LOST, LOST, THERE])
    error = explain(
        board,
        index=0,
        names=NAMES,
        keeper=NAMES[0],
        cause="cut",
        cancellation=Cancellation(lambda: next(beats)),
    )
    assert "rank 8 (machine c) is gone" in str(error)
    assert next(beats, None) is None


def test_a_late_machine_is_waited_for_and_a_silent_one_is_not() -> None:
    patience = Patience(index=0, num_hosts=3, call=5, timeout_s=10, now=100.0)
    for second in range(60):  # host 2 is busy elsewhere, and says so
        found = [f"{HERE} {second} 5", f"{HERE} {second} 5", f"{HERE} {second} 4"]
        assert patience.end(found, 100.0 + second) is None
    found = [f"{HERE} 60 5", f"{HERE} 60 5", f"{HERE} 60 4"]
    assert patience.end(found, 160.0) is None
    for second in range(10):
        assert (
            patience.end([f"{HERE} {second} 5", f"{HERE} {70 + second} 5", f"{HERE} 60 4"], 161.0 + second)
            is None
        )
    assert patience.end([f"{HERE} 71 5", f"{HERE} 81 5", f"{HERE} 60 4"], 170.5) == "no sign of life for 10 s"


def test_a_machine_that_never_came_and_a_store_that_is_silent_are_not_waited_for() -> None:
    for found in ([f"{HERE} 1 5", None], None):
        patience = Patience(index=0, num_hosts=2, call=5, timeout_s=10, now=0.0)
        assert patience.end(found, 9.9) is None
        assert patience.end(found, 10.1) == "no sign of life for 10 s"


def test_machines_that_are_all_there_do_not_wait_for_ever() -> None:
    patience = Patience(index=1, num_hosts=2, call=5, timeout_s=10, now=0.0)
    assert patience.end([f"{HERE} 1 4", f"{HERE} 1 5"], 9.0) is None
    for second in range(10, 19):
        assert patience.end([f"{HERE} {second} 5", f"{HERE} {second} 5"], float(second)) is None
    assert patience.end([f"{HERE} 20 5", f"{HERE} 20 5"], 20.0) == "all machines wait for each other for 10 s"


def test_machines_wait_for_ever_where_no_time_out_is_asked_for() -> None:
    patience = Patience(index=0, num_hosts=2, call=5, timeout_s=0, now=0.0)
    assert patience.end([f"{HERE} 1 5", f"{HERE} 1 5"], 1e6) is None
    assert patience.end(None, 2e6) is None
