"""The floor of mixtures, and what is said where it cannot be found."""

from __future__ import annotations

import sys

import pytest

from gloader.errors import MissingDependencyError, ReplayError
from gloader.replay.floor import floor_of, floor_of_mixture


def test_the_floor_of_one_way_is_what_it_needs_most_of() -> None:
    floor = floor_of({"cpu": 2.0, "disk": 3.0, "loop": 1.0})
    assert (floor.seconds, floor.resource) == (3.0, "disk")
    assert floor_of_mixture([{"cpu": 2.0, "disk": 3.0}]) == floor


def test_a_mixture_takes_less_than_each_way_alone() -> None:
    # One is bound by the disk, the other by the cores: half of each leaves neither idle.
    disk, cores = {"disk": 10.0, "cpu": 2.0}, {"disk": 2.0, "cpu": 10.0}
    floor = floor_of_mixture([disk, cores])
    assert floor.seconds == pytest.approx(6.0)
    assert floor.resource in ("disk", "cpu")
    # What no way avoids is the floor whatever else there is.
    floor = floor_of_mixture([disk | {"loop": 9.0}, cores | {"loop": 9.0}])
    assert (floor.seconds, floor.resource) == (pytest.approx(9.0), "loop")


def test_a_resource_that_a_way_does_not_name_is_not_needed_by_it() -> None:
    floor = floor_of_mixture([{"disk": 8.0}, {"spill": 8.0}])
    assert floor.seconds == pytest.approx(4.0)


def test_errors_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReplayError, match="there is no way to run, so there is no floor"):
        floor_of_mixture([])
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingDependencyError, match=r"needs scipy; install .*\[tune\]"):
        floor_of_mixture([{"disk": 1.0}, {"disk": 2.0}])
    assert floor_of_mixture([{"disk": 1.0}]).seconds == 1.0  # of one way it is a maximum
