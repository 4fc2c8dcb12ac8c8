"""A resource that several use: who has enough when, whoever comes and goes."""

from __future__ import annotations

import math

import pytest

from gloader.replay.engine import Resource


def test_nobody_is_due_where_nobody_is() -> None:
    resource: Resource[str] = Resource(1.0)
    assert resource.due_s == math.inf
    resource.begin("a", 0, 2.0, 1.0, 5.0)
    assert resource.due_s == 7.0
    assert resource.release(7.0) == ["a"]
    assert resource.due_s == math.inf


def test_who_comes_puts_off_those_who_are_there() -> None:
    resource: Resource[str] = Resource(1.0)
    resource.begin("a", 0, 2.0, 1.0, 0.0)
    resource.begin("b", 1, 1.0, 1.0, 1.0)  # both want another second
    assert resource.due_s == 3.0
    assert resource.release(3.0) == ["a", "b"]
    resource.begin("c", 2, 1.0, 1.0, 10.0)
    resource.begin("d", 3, 2.0, 1.0, 10.0)
    assert resource.release(12.0) == ["c"]
    assert resource.due_s == 13.0  # alone from here on


def test_a_wide_user_takes_a_share_for_each_unit() -> None:
    cores: Resource[str] = Resource(2.0)
    cores.begin("wide", 0, 3.0, 3.0, 0.0)  # a second on three units
    assert cores.due_s == 1.5
    cores.begin("narrow", 1, 1.0, 1.0, 0.0)  # four units on two: half of each
    assert cores.due_s == 2.0
    assert cores.release(2.0) == ["wide", "narrow"]
    cores.begin("wide", 2, 3.0, 3.0, 2.0)
    cores.begin("narrow", 3, 2.0, 1.0, 2.0)
    assert cores.release(4.0) == ["wide"]
    assert cores.due_s == pytest.approx(5.0)


@pytest.mark.parametrize("capacity", [4.0, math.inf])
def test_nobody_gets_more_than_all_of_their_units(capacity: float) -> None:
    resource: Resource[int] = Resource(capacity)
    for number in range(4):
        resource.begin(number, number, 1.0 + number, 1.0, 0.0)
    assert [(at, resource.release(at)) for at in (1.0, 2.0, 3.0, 4.0)] == [
        (1.0, [0]),
        (2.0, [1]),
        (3.0, [2]),
        (4.0, [3]),
    ]
