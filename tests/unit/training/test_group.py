"""A group of one process; `integration/distributed` tests groups of several."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
import torch

from gloader.core.signals import Cancellation
from gloader.errors import ChannelClosedError, ChecksumError, RankError
from gloader.training.group import RankGroup


def test_a_process_without_a_group_is_alone() -> None:
    group = RankGroup.current()
    assert (group.rank, group.world_size, group.most_local, group.is_first, group.is_alone) == (
        0,
        1,
        1,
        True,
        True,
    )
    assert group.gather({"a": 1}) == [{"a": 1}]
    assert group.sum({"a": 0.5}) == {"a": 0.5}
    assert group.run_on_first(lambda: "done") == "done"
    group.require_equal({"a": 1})
    group.agree(None)
    with pytest.raises(OSError, match="mine"):
        group.agree(OSError("mine"))


def test_ranks_count_on_their_machine() -> None:
    groups = [RankGroup(rank=rank, machines=["a", "b", "a", "b", "b"]) for rank in range(5)]
    assert [group.local_rank for group in groups] == [0, 0, 1, 1, 2]
    assert {group.most_local for group in groups} == {3}
    assert all(group.first_machine == [0, 2] for group in groups)
    assert [group.is_first for group in groups] == [True, False, False, False, False]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"),
        torch.distributed.DistBackendError("NCCL error"),
    ],
)
def test_errors_of_the_transport_speak_of_another_rank(error: RuntimeError) -> None:
    with (
        pytest.raises(RankError, match=r"another rank ended.*from the last checkpoint"),
        RankGroup(rank=0, machines=["a", "a"]).lost_rank_errors(),
    ):
        raise error


@pytest.mark.reliability("J13")
@pytest.mark.parametrize(
    ("gone", "who"),
    [
        ({1}, "rank 1 has ended"),
        ({0, 1}, "ranks 0 and 1 have ended"),
        ({0, 1, 3}, "ranks 0, 1 and 3 have ended"),
    ],
)
def test_lost_ranks_are_named(monkeypatch: pytest.MonkeyPatch, gone: set[int], who: str) -> None:
    monkeypatch.setattr("gloader.distributed.agree.is_gone", lambda process: process["rank"] in gone)
    group = RankGroup(rank=2, machines=["a"] * 4, processes=[{"rank": rank} for rank in range(4)])
    with pytest.raises(RankError, match=f"^{who}; see what it"), group.lost_rank_errors():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")


def test_other_errors_stay_and_are_announced_with_their_rank(caplog: pytest.LogCaptureFixture) -> None:
    error = RuntimeError("shapes do not fit")
    error.add_note("in stage compute")
    with (
        caplog.at_level(logging.ERROR, "gloader"),
        pytest.raises(RuntimeError, match="shapes"),
        RankGroup(rank=1, machines=["a", "a"]).log_failures(),
    ):
        raise error
    assert caplog.messages == ["rank 1 failed: RuntimeError: shapes do not fit (in stage compute)"]


class Waiting(RankGroup):
    """A rank that waits for a first one, which ends when it is told to."""

    def __init__(self, ends: BaseException | None = None) -> None:
        super().__init__(rank=1, machines=["a", "b"])
        self.goes_on = threading.Event()
        self.ends = ends

    def _follow(self) -> Any:
        self.goes_on.wait(10)
        if self.ends is not None:
            raise self.ends
        return "done"


def test_a_rank_may_help_while_it_waits_and_its_help_is_over_before_it_goes_on() -> None:
    group, seen = Waiting(), []

    def help_first(cancellation: Cancellation) -> None:
        group.goes_on.set()
        time.sleep(0.05)
        seen.append(cancellation.is_set())

    assert group.run_on_first(lambda: None, meanwhile=help_first) == "done"
    assert seen == [False]  # it ended by itself
    assert not [thread for thread in threading.enumerate() if thread.name == "gloader-meanwhile"]


def test_help_for_a_rank_that_fails_is_told_to_end() -> None:
    group = Waiting(RankError("rank 0 failed"))
    group.goes_on.set()

    def help_first(cancellation: Cancellation) -> None:
        while not cancellation.is_set():
            time.sleep(0.01)
        raise ChannelClosedError("cancelled")

    with pytest.raises(RankError, match="rank 0 failed"):
        group.run_on_first(lambda: None, meanwhile=help_first)


@pytest.mark.parametrize("ends", [RankError("rank 0 failed: rank 1 failed: it is damaged"), None])
def test_help_that_fails_is_raised_where_it_failed(ends: BaseException | None) -> None:
    group = Waiting(ends)

    def help_first(_: Any) -> None:
        group.goes_on.set()
        raise ChecksumError("it is damaged")

    with pytest.raises(ChecksumError, match="it is damaged") as raised:
        group.run_on_first(lambda: None, meanwhile=help_first)
    assert raised.value.__cause__ is ends
