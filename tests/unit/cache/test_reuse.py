"""Reuse distances of rows: three batches predict the misses of a cache in the long run."""

from __future__ import annotations

import numpy as np
import pytest

from gloader.cache import make_planner
from gloader.cache.curve import ReuseProfile, cache_outlook, measure_reuse

N, S = 20_000, 8


def _batches(count: int) -> list[np.ndarray]:
    """Nodes that are each in a batch with a chance of their own, some of them often."""
    rng = np.random.default_rng(0)
    chance = np.minimum(0.05 * rng.pareto(1.2, N) + 0.005, 0.9)
    return [np.flatnonzero(rng.random(N) < chance) for _ in range(count)]


BATCHES = _batches(6 * S)
PROFILE = measure_reuse(BATCHES[:3], N)


@pytest.mark.parametrize(("policy", "is_reset"), [("belady", False), ("belady", True), ("lru", False)])
@pytest.mark.parametrize("capacity", [500, 2000, 4000])
def test_misses_are_those_of_the_planner(policy: str, is_reset: bool, capacity: int) -> None:
    planner = make_planner(policy, num_nodes=N, capacity=capacity, reset=is_reset)  # type: ignore[arg-type]
    plans = [planner.plan(BATCHES[k * S : (k + 1) * S], BATCHES[(k + 1) * S : (k + 2) * S]) for k in range(5)]
    missed = np.mean([plan.num_misses / S for plan in plans[2:]])
    unique = np.mean([len(np.unique(np.concatenate([p.miss_rows(b) for b in range(S)]))) for p in plans[2:]])
    outlook = cache_outlook(PROFILE, policy, num_batches=S, is_reset=is_reset)  # type: ignore[arg-type]
    assert outlook.misses(capacity) == pytest.approx(missed, rel=0.2)
    assert outlook.distinct_misses(capacity, S) == pytest.approx(unique, rel=0.25)


@pytest.mark.parametrize("policy", ["belady", "lru", "static", "none"])
@pytest.mark.parametrize("is_reset", [False, True])
def test_misses_fall_with_the_cache(policy: str, is_reset: bool) -> None:
    outlook = cache_outlook(PROFILE, policy, num_batches=S, is_reset=is_reset)  # type: ignore[arg-type]
    misses = [outlook.misses(c) for c in range(0, N + 200, 100)]
    assert (np.diff(misses) <= 1e-9).all()
    assert misses[0] == pytest.approx(PROFILE.rows)
    assert (misses[-1] == 0) == (policy != "none" and not is_reset)
    unique = [outlook.distinct_misses(c, S) for c in range(0, N, 100)]
    assert (np.diff(unique) <= 1e-6).all()


def test_one_batch_or_none_says_nothing_of_the_next() -> None:
    for batches in ([], BATCHES[:1]):
        assert measure_reuse(batches, N).next_uses.sum() == 0


def test_batches_that_are_all_alike_are_used_again_at_once() -> None:
    same = [np.arange(100)] * 3
    profile = measure_reuse(same, N)
    assert profile.next_uses[0] == 100
    assert profile.next_uses[1:].sum() == 0
    assert cache_outlook(profile, "belady", num_batches=4).misses(100) == 0


def test_two_batches_carry_on_evenly() -> None:
    profile = measure_reuse([np.arange(100), np.arange(50, 150)], N)
    assert profile.next_uses[:3].tolist() == pytest.approx([50, 25, 12.5])
    assert isinstance(profile, ReuseProfile)


@pytest.mark.parametrize("policy", ["belady", "lru", "none"])
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_table_without_nodes_misses_nothing(policy: str, is_reset: bool) -> None:
    profile = measure_reuse([np.empty(0, dtype=np.int64)] * 3, 0)
    outlook = cache_outlook(profile, policy, num_batches=S, is_reset=is_reset)  # type: ignore[arg-type]
    assert (outlook.misses(0), outlook.distinct_misses(0, S)) == (0.0, 0.0)
