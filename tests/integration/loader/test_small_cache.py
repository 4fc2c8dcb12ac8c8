"""A batch that does not fit the host cache: what is resident stays resident, the rest bypasses it."""

import numpy as np
import pytest

import gloader
from gloader.errors import BudgetError

from .conftest import DIM, Written

CAPACITY = 5


@pytest.mark.reliability("C12")
@pytest.mark.parametrize("policy", ["belady", "lru"])
def test_rows_come_out_right_though_each_batch_evicts_more_than_the_cache_holds(
    tiny: Written, policy: str
) -> None:
    settings = {
        "fanouts": [4, 3],
        "batch_size": 16,
        "memory_budget": "200MB",
        "features": "ssd",
        "policy": policy,
    }
    with gloader.Loader(tiny.dataset, cache=CAPACITY * DIM * 4, **settings) as loader:
        held: set[int] = set()
        hits = evicted = 0
        for batch in (batch for _ in range(2) for batch in loader):
            assert len(batch.nodes) > CAPACITY
            # A row evicted before the step has read it would come out as the row that took its slot.
            np.testing.assert_array_equal(batch.x.numpy(), tiny.features[batch.nodes])
            resident = set(loader._held.tier.ssd[0].slots.resident.tolist()) - {-1}
            evicted += len(held - resident)
            held = resident
        hits = loader.stats.cache_hits
        assert hits > 0
        assert evicted > CAPACITY


@pytest.mark.reliability("C12")
def test_a_static_cache_hits_the_rows_of_its_start(tiny: Written) -> None:
    """Every epoch hits exactly the rows that were resident at its start: a miss has evicted nothing."""
    out_degree = np.bincount(tiny.indices, minlength=len(tiny.features))
    hottest = np.argsort(-out_degree, kind="stable")[:CAPACITY]  # ties go to the smaller id
    settings = {
        "fanouts": [4, 3],
        "batch_size": 16,
        "memory_budget": "200MB",
        "threads": 2,
        "features": "ssd",
        "policy": "static",
    }
    with gloader.Loader(tiny.dataset, cache=CAPACITY * DIM * 4, **settings) as loader:
        for _ in range(2):
            hits = rows = 0
            for batch in loader:
                assert len(batch.nodes) > CAPACITY
                np.testing.assert_array_equal(batch.x.numpy(), tiny.features[batch.nodes])
                hits += int(np.isin(batch.nodes, hottest).sum())
                rows += len(batch.nodes)
            stats = loader.stats
            assert hits > 0
            assert (stats.cache_hits, stats.rows_read, stats.rows_gathered) == (hits, rows - hits, rows)


@pytest.mark.parametrize("superbatch", [1, 8])
def test_staged_reads_run_to_their_end_or_are_refused_at_the_door(tiny: Written, superbatch: int) -> None:
    settings = {"features": "ssd", "io_strategy": "staged", "superbatch": superbatch, "threads": 1}

    def runs(budget: int) -> bool:
        try:
            loader = gloader.Loader(
                tiny.dataset, fanouts=[4, 3], batch_size=16, epochs=1, memory_budget=budget, **settings
            )
        except BudgetError:
            return False
        with loader:
            for batch in loader:
                np.testing.assert_array_equal(batch.x.numpy(), tiny.features[batch.nodes])
        return True

    too_little, enough = 10**6, 10**8
    while enough - too_little > 20_000:
        budget = (too_little + enough) // 2
        too_little, enough = (too_little, budget) if runs(budget) else (budget, enough)
    assert all(runs(enough + more) for more in (0, 50_000, 500_000))
