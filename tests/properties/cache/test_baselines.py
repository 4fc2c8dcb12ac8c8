"""Online policies: steps that are possible, and the eviction order of plain-Python twins."""

from __future__ import annotations

from collections import OrderedDict
from typing import get_args

import numpy as np
import pytest
from cache_traces import SlotModel, arrays, batches
from hypothesis import given
from hypothesis import strategies as st

from gloader.cache import OnlineName, OnlinePolicy

NUM_NODES = 12
NAMES: tuple[OnlineName, ...] = get_args(OnlineName)
REQUESTS = st.lists(st.integers(0, NUM_NODES - 1), max_size=60)


@pytest.mark.reliability("C12")
@pytest.mark.parametrize("name", NAMES)
@given(trace=batches(NUM_NODES, max_batches=20, max_rows=NUM_NODES), capacity=st.integers(0, 14))
def test_steps_are_possible_and_no_resident_row_is_read(
    name: OnlineName, trace: list[list[int]], capacity: int
) -> None:
    policy, model = OnlinePolicy(name, num_nodes=NUM_NODES, capacity=capacity), SlotModel()
    for nodes in trace:
        held = set(policy.resident.tolist())
        step = policy.step(np.array(nodes, dtype=np.int64))
        model.apply(step, nodes)
        assert set(nodes) & held == {nodes[position] for position in step.hit_pos}
        assert model.agrees(policy.resident)
        rows = policy.resident[policy.resident >= 0].tolist()
        assert len(set(rows)) == len(rows)
        assert len(rows) >= min(capacity, len(held - {-1} | set(nodes)))


@given(trace=batches(NUM_NODES, max_batches=20, max_rows=NUM_NODES), capacity=st.integers(1, 9))
def test_lru_keeps_the_rows_used_last(trace: list[list[int]], capacity: int) -> None:
    policy, recent = OnlinePolicy("lru", num_nodes=NUM_NODES, capacity=capacity), OrderedDict[int, None]()
    for nodes in arrays(trace):
        policy.step(nodes)
        for node in nodes.tolist():
            recent[node] = None
            recent.move_to_end(node)
        while len(recent) > capacity:
            recent.popitem(last=False)
        assert sorted(policy.resident[policy.resident >= 0].tolist()) == sorted(recent)


def _twin(name: OnlineName, requests: list[int], capacity: int) -> list[bool]:
    """Return which requests hit, one at a time, with a list as the queue (its head last)."""
    queue: list[int] = []
    visited: dict[int, bool] = {}
    hand: int | None = None
    hits = []
    for node in requests:
        hits.append(node in visited)
        if node in visited:
            visited[node] = name != "fifo"
            continue
        if len(queue) == capacity:
            at = queue.index(hand) if name == "sieve" and hand in queue else 0
            while visited[queue[at]]:
                visited[queue[at]] = False
                if name == "clock":
                    queue.append(queue.pop(0))
                else:
                    at = (at + 1) % capacity
            hand = queue[at + 1] if at + 1 < len(queue) else None
            del visited[queue.pop(at)]
        queue.append(node)
        visited[node] = False
    return hits


@pytest.mark.parametrize("name", ["fifo", "clock", "sieve"])
@given(requests=REQUESTS, capacity=st.integers(1, 8))
def test_single_requests_hit_as_in_the_twin(name: OnlineName, requests: list[int], capacity: int) -> None:
    policy = OnlinePolicy(name, num_nodes=NUM_NODES, capacity=capacity)
    hits = [len(policy.step(np.array([node])).hit_pos) == 1 for node in requests]
    assert hits == _twin(name, requests, capacity)


def _s3fifo_twin(requests: list[int], capacity: int) -> list[bool]:
    """Return which requests hit (Yang et al., SOSP'23, algorithm 1)."""
    target = max(capacity // 10, 1)
    small: list[int] = []
    main: list[int] = []
    ghosts: list[int] = []
    visits: dict[int, int] = {}
    hits = []
    for node in requests:
        hits.append(node in visits)
        if node in visits:
            visits[node] = min(visits[node] + 1, 3)
            continue
        while len(visits) == capacity:
            if small and (len(small) >= target or not main):
                tail = small.pop(0)
                if visits[tail] > 1:
                    visits[tail] = 0
                    main.append(tail)
                else:
                    del visits[tail]
                    ghosts.append(tail)
            else:
                tail = main.pop(0)
                if visits[tail] > 0:
                    visits[tail] -= 1
                    main.append(tail)
                else:
                    del visits[tail]
        recent = ghosts[len(ghosts) - min(len(ghosts), capacity - target) :]
        (main if node in recent else small).append(node)
        if node in recent:
            ghosts[len(ghosts) - 1 - ghosts[::-1].index(node)] = -1
        visits[node] = 0
    return hits


@given(requests=REQUESTS, capacity=st.integers(1, 10))
def test_s3fifo_hits_as_in_the_paper(requests: list[int], capacity: int) -> None:
    policy = OnlinePolicy("s3fifo", num_nodes=NUM_NODES, capacity=capacity)
    hits = [len(policy.step(np.array([node])).hit_pos) == 1 for node in requests]
    assert hits == _s3fifo_twin(requests, capacity)
