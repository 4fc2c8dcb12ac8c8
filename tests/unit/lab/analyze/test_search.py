"""The search: what it tries, when it ends, and what it does with what is not possible."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from gloader.errors import BudgetError, ConfigError, ReplayError
from gloader.lab.analyze.autotune import SearchedKnob, search
from gloader.replay.changes import Ratio

if TYPE_CHECKING:
    from gloader.replay.changes import Changes

THREADS = SearchedKnob(name="threads", values=("1", "2", "4"))
SUPERBATCH = SearchedKnob(name="superbatch", values=("8", "64"))
WAYS = SearchedKnob(name="strategy", values=("direct", "packed"))


def no_floor() -> float:
    return 0.0


class Model:
    """Seconds of an epoch, and what was asked for."""

    def __init__(self, seconds: dict[str, float], *, start: float = 10.0) -> None:
        self.seconds = seconds
        self.start = start
        self.asked: list[str] = []

    def __call__(self, changes: Changes) -> float:
        self.asked.append(changes.text)
        total = self.start
        for name, value in changes.values.items():
            total += self.seconds[f"{name}={value}"]
        return total


def test_each_knob_is_tried_with_the_best_of_the_others() -> None:
    model = Model(
        {
            "threads=1": 1.0,
            "threads=2": -2.0,
            "threads=4": -1.0,
            "superbatch=8": 1.0,
            "superbatch=64": -3.0,
        }
    )
    found = search((THREADS, SUPERBATCH), model, floor=no_floor)
    assert (found.start.seconds, found.best.seconds) == (10.0, 5.0)
    assert found.best.changes.values == {"threads": 2, "superbatch": 64}
    assert not found.is_at_floor
    assert model.asked == [
        "",
        "threads=1",
        "threads=2",
        "threads=4",
        "threads=2,superbatch=8",
        "threads=2,superbatch=64",
        # The second round: threads again, with the best superbatch; the rest is known.
        "superbatch=64",
        "threads=1,superbatch=64",
        "threads=4,superbatch=64",
    ]
    assert [tried.changes.text for tried in found.tried] == model.asked


def test_a_knob_goes_back_to_where_it_was() -> None:
    # More threads help alone, and are in the way of large superbatches.
    model = Model(
        {"threads=1": 5.0, "threads=2": -1.0, "threads=4": 5.0, "superbatch=8": 1.0, "superbatch=64": -4.0}
    )

    def predict(changes: Changes) -> float:
        return model(changes) + 2.0 * (len(changes.values) == 2)

    found = search((THREADS, SUPERBATCH), predict, floor=no_floor)
    assert found.best.changes.values == {"superbatch": 64}
    assert found.best.seconds == 6.0


def test_knobs_that_make_room_for_each_other_are_tried_together_where_none_alone_helps() -> None:
    cache = SearchedKnob(name="cache", values=("0B", "1GB"))
    asked: list[str] = []

    def predict(changes: Changes) -> float:
        asked.append(changes.text)
        if changes.values.get("strategy") == "packed" and changes.values.get("cache", 1) != 0:
            raise BudgetError("a cache leaves no room for packs")
        return 5.0 if "strategy=packed" in changes.text else 10.0 + (changes.values.get("cache") == 0)

    assert search((cache, THREADS, WAYS), predict, floor=no_floor).best.seconds == 10.0
    asked.clear()
    found = search((cache, THREADS, WAYS), predict, floor=no_floor, together=("strategy", "cache"))
    assert found.best.changes.values == {"cache": 0, "strategy": "packed"}
    assert asked[:9] == ["", "cache=0B", "cache=1GB", *(f"threads={one}" for one in (1, 2, 4)),
                         "strategy=direct", "strategy=packed", "cache=0B,strategy=direct"]  # fmt: skip
    assert len(asked) == len(set(asked))


def test_the_search_begins_elsewhere_where_that_is_faster() -> None:
    seconds = {"threads=1": 0.0, "threads=2": -1.0, "threads=4": 0.0, "strategy=direct": 0.0}
    also = {"threads": "4", "strategy": "packed"}
    model = Model(seconds | {"strategy=packed": -5.0})
    found = search((THREADS, WAYS), model, floor=no_floor, also=also)
    assert model.asked[:2] == ["", "threads=4,strategy=packed"]
    assert (found.start.seconds, found.best.seconds) == (10.0, 4.0)
    assert found.best.changes.values == {"threads": 2, "strategy": "packed"}
    # It is tried, and left alone, where it is not; and not tried where nothing could be much better.
    slower = search((THREADS, WAYS), Model(seconds | {"strategy=packed": 5.0}), floor=no_floor, also=also)
    assert slower.best.changes.values == {"threads": 2}
    assert search((THREADS, WAYS), model, floor=lambda: 9.9, also=also).best is not found.best
    assert len(search((THREADS, WAYS), model, floor=lambda: 9.9, also=also).tried) == 1


def test_the_search_ends_close_to_the_floor() -> None:
    model = Model(
        {"threads=1": 0.0, "threads=2": -2.0, "threads=4": -2.9, "superbatch=8": 0.0, "superbatch=64": -1.0}
    )
    found = search((THREADS, SUPERBATCH), model, floor=lambda: 7.0)
    assert found.is_at_floor
    assert found.best.changes.values == {"threads": 4}
    assert len(found.tried) == 4
    # 7.1 is a little more than 3% above this one.
    assert not search((THREADS,), model, floor=lambda: 7.1 / 1.031).is_at_floor
    assert search((THREADS,), model, floor=lambda: 7.1 / 1.029).is_at_floor
    assert search((THREADS,), model, floor=lambda: 9.99).tried[1:] == ()


def test_a_gain_that_no_measurement_shows_is_none() -> None:
    found = search((WAYS,), Model({"strategy=direct": -0.01, "strategy=packed": -0.015}), floor=no_floor)
    assert found.best.changes.values == {}
    assert found.best is found.start


@pytest.mark.parametrize("error", [BudgetError, ConfigError, ReplayError])
def test_what_is_not_possible_is_passed_over_and_told(error: type[Exception]) -> None:
    def predict(changes: Changes) -> float:
        if changes.values.get("superbatch") == 64:
            raise error("no room for it")
        return 9.0 if changes.values else 10.0

    found = search((SUPERBATCH,), predict, floor=no_floor)
    assert found.best.changes.values == {"superbatch": 8}
    assert [(one.changes.text, one.seconds, one.reason) for one in found.tried[1:]] == [
        ("superbatch=8", 9.0, ""),
        ("superbatch=64", math.inf, "no room for it"),
    ]


def test_what_the_start_raises_is_raised() -> None:
    def predict(changes: Changes) -> float:
        raise ReplayError("12% that it cannot explain")

    with pytest.raises(ReplayError, match="12% that it cannot explain"):
        search((WAYS,), predict, floor=no_floor)


def test_values_are_read_as_those_of_a_what_if() -> None:
    seen: list[object] = []

    def predict(changes: Changes) -> float:
        seen.extend(changes.values.values())
        return 1.0

    search((SearchedKnob(name="cache", values=("2GB", "20%", "2x")),), predict, floor=no_floor)
    assert seen == [2_000_000_000, 0.2, Ratio(factor=2.0)]
