"""What a process without others does; groups of several are tested in `integration/distributed`."""

from __future__ import annotations

import logging

import pytest
import torch

from gloader.errors import RankError
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
