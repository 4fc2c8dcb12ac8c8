"""Policies by name, and what they refuse."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from cache_traces import arrays, delivered, feature_rows

from gloader.cache import OnlinePolicy, StaticPolicy, make_policy
from gloader.cache.baselines import PolicyName
from gloader.errors import ConfigError, PlanError


@pytest.mark.reliability("C11")
@pytest.mark.parametrize("name", sorted(set(get_args(PolicyName)) - {"static"}))
@pytest.mark.parametrize("capacity", [0, 1, 6, 50])
def test_every_policy_delivers_the_same_rows(name: PolicyName, capacity: int) -> None:
    trace = arrays([[1, 2, 3], [0, 4, 1], [5], [], [3, 1, 5, 0], [2, 1]])
    policy = make_policy(name, num_nodes=6, capacity=capacity)
    for rows, nodes in zip(delivered(map(policy.step, trace), trace, capacity, 6), trace, strict=True):
        assert np.array_equal(rows, feature_rows(6)[nodes])


def test_a_static_policy_keeps_the_first_rows() -> None:
    policy = make_policy("static", num_nodes=9, capacity=2, hot=np.array([4, 7, 1]))
    step = policy.step(np.array([1, 7, 4]))
    assert policy.resident.tolist() == [4, 7]
    assert (step.hit_pos.tolist(), step.hit_slot.tolist(), step.miss_row.tolist()) == ([1, 2], [1, 0], [1])


def test_none_keeps_nothing() -> None:
    policy = make_policy("none", num_nodes=9, capacity=5)
    assert policy.step(np.array([3, 1])).miss_row.tolist() == [3, 1]
    assert len(policy.resident) == 0


def test_sieve_keeps_what_is_visited_where_lru_is_flushed() -> None:
    scan = [[0], [0], *([node] for node in range(1, 9)), [0]]
    hit = {}
    for name in ("lru", "sieve"):
        policy = OnlinePolicy(name, num_nodes=9, capacity=3)
        hit[name] = [len(policy.step(np.array(nodes)).hit_pos) for nodes in scan][-1]
    assert hit == {"lru": 0, "sieve": 1}


def test_what_is_unknown_or_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"'no such' is not one of {', '.join(get_args(PolicyName))}"):
        make_policy("no such", num_nodes=3, capacity=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'none' is not one of"):
        OnlinePolicy("none", num_nodes=3, capacity=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="capacity is -1"):
        OnlinePolicy("lru", num_nodes=3, capacity=-1)
    for policy in (OnlinePolicy("lru", num_nodes=3, capacity=1), StaticPolicy(np.array([1]), num_nodes=3)):
        for bad in (3, -1):
            with pytest.raises(PlanError, match=r"node ids must be in 0\.\.2"):
                policy.step(np.array([bad]))
