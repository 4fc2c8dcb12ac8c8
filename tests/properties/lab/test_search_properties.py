"""The search against all settings that there are."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import BudgetError
from gloader.lab.analyze.autotune import SearchedKnob, search
from gloader.replay.changes import NO_CHANGES, Changes, parse_changes

if TYPE_CHECKING:
    from collections.abc import Iterator

KNOBS = (
    SearchedKnob(name="threads", values=("1", "2", "3")),
    SearchedKnob(name="superbatch", values=("8", "16", "32", "64")),
    SearchedKnob(name="strategy", values=("direct", "staged", "packed")),
)
# Of seconds: what gains less than a five-hundredth of the best is left.
_LEFT = (1 - 0.002) ** -(2 * len(KNOBS))

Point = tuple[str | None, ...]


def points() -> Iterator[Point]:
    yield from itertools.product(*((None, *knob.values) for knob in KNOBS))


def changes_of(point: Point) -> Changes:
    words = [f"{knob.name}={text}" for knob, text in zip(KNOBS, point, strict=True) if text is not None]
    return parse_changes(",".join(words)) if words else NO_CHANGES


class Table:
    """Seconds of every setting; None: not possible."""

    def __init__(self, seconds: dict[Point, float | None]) -> None:
        self.seconds = {changes_of(point).text: value for point, value in seconds.items()}
        self.asked: list[str] = []

    def __call__(self, changes: Changes) -> float:
        self.asked.append(changes.text)
        seconds = self.seconds[changes.text]
        if seconds is None:
            raise BudgetError("there is no room for it")
        return seconds

    @property
    def best(self) -> float:
        return min(value for value in self.seconds.values() if value is not None)


@st.composite
def separable(draw: st.DrawFn) -> Table:
    """Each knob adds its own seconds, whatever the others are."""
    parts = [[draw(st.floats(1.0, 9.0)) for _ in range(1 + len(knob.values))] for knob in KNOBS]
    choices = [(None, *knob.values) for knob in KNOBS]
    return Table(
        {
            point: sum(
                part[options.index(text)] for part, options, text in zip(parts, choices, point, strict=True)
            )
            for point in points()
        }
    )


@st.composite
def arbitrary(draw: st.DrawFn) -> Table:
    seconds = st.one_of(st.none(), st.floats(1.0, 100.0))
    found: dict[Point, float | None] = {point: draw(seconds) for point in points()}
    found[None, None, None] = draw(st.floats(1.0, 100.0))
    return Table(found)


@given(separable())
def test_knobs_that_do_not_meddle_are_all_found(table: Table) -> None:
    found = search(KNOBS, table, floor=lambda: 0.0)
    assert found.best.seconds <= table.best * _LEFT


@given(arbitrary())
def test_no_single_knob_makes_it_better(table: Table) -> None:
    found = search(KNOBS, table, floor=lambda: 0.0)
    assert found.best.seconds <= found.start.seconds
    for number, knob in enumerate(KNOBS):
        for text in (None, *knob.values):
            point = [
                str(found.best.changes.values[one.name]) if one.name in found.best.changes.values else None
                for one in KNOBS
            ]
            point[number] = text
            other = table.seconds[changes_of(tuple(point)).text]
            assert other is None or other >= found.best.seconds * (1 - 0.002)


@given(arbitrary())
def test_nothing_is_predicted_twice_and_the_same_is_found_again(table: Table) -> None:
    found = search(KNOBS, table, floor=lambda: 0.0)
    assert len(set(table.asked)) == len(table.asked) == len(found.tried)
    again = search(KNOBS, Table.__call__.__get__(table), floor=lambda: 0.0)
    assert again == found


@given(arbitrary(), st.floats(0.5, 1.0))
def test_an_end_at_the_floor_is_close_to_the_best_of_all(table: Table, share: float) -> None:
    # A floor that holds: no setting takes less.
    found = search(KNOBS, table, floor=lambda: share * table.best)
    if found.is_at_floor:
        assert found.best.seconds <= 1.03 * table.best
