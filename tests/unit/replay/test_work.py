"""The needs of work: alone, one piece after another, and on other machines."""

from __future__ import annotations

import math

import pytest
from replay_oracles import batches_of

from gloader.replay.work import NOTHING, RESOURCES, Demands, Machine, RunWork


def test_the_fields_of_demands_are_the_resources_in_their_order() -> None:
    names = [name.removesuffix("_s") for name in Demands._fields]
    assert [names[0], *names[2:-3]] == list(RESOURCES)
    assert (names[1], *names[-3:]) == ("cores", "lag", "held_up", "in_line")


@pytest.mark.parametrize("name", RESOURCES)
def test_work_alone_takes_what_it_needs_most_of(name: str) -> None:
    assert Demands(**{f"{name}_s": 3.0}, lag_s=0.5).alone_s == 3.5
    assert Demands(cpu_s=8.0, cores=4.0, disk_s=1.0).alone_s == 2.0
    assert NOTHING.alone_s == 0.0


def test_what_is_not_named_is_as_fast_as_it_was() -> None:
    machine = Machine(cores=2, speed={"disk": 2.0, "link": math.inf})
    assert [machine.speed_of(name) for name in RESOURCES] == [1.0, 2.0, 1.0, math.inf, 1.0, 1.0]


def test_epochs_are_counted() -> None:
    assert RunWork(batches=batches_of(3, epochs=2)).num_epochs == 2
