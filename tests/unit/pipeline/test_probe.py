"""The batches that a run is planned by: the first, and one that is much larger where there is one."""

from __future__ import annotations

import numpy as np
import pytest

from gloader.core.order import EpochOrder
from gloader.pipeline.open.first_batches import first_seeds
from gloader.samplers import CscGraph, HeteroGraph
from gloader.types import BatchId, RelationFanouts

NODES, BATCH = 64, 4


def _graph(degrees: np.ndarray) -> CscGraph:
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return CscGraph(indptr=indptr, indices=np.zeros(indptr[-1], np.int32))


def _order(**more: int) -> EpochOrder:
    return EpochOrder(seeds=np.arange(NODES), num_nodes=NODES, batch_size=BATCH, seed=0, **more)


def _with_hub() -> np.ndarray:
    """Return degrees of which the last node to come in the first epoch has most."""
    degrees = np.full(NODES, 2)
    last = _order().seeds_of(_batches(_order())[-1])
    degrees[last[0]] = 40
    return degrees


def _batches(order: EpochOrder, epochs: int = 1) -> list:
    return [BatchId(epoch=e, index=i) for e in range(epochs) for i in range(order.num_batches)]


@pytest.mark.reliability("S11")
@pytest.mark.parametrize("fanouts", [(-1,), (50, 5)])
def test_a_later_batch_with_a_hub_is_among_them(fanouts: tuple[int, ...]) -> None:
    order = _order()
    *first, (batch, seeds) = first_seeds(order, _graph(_with_hub()), fanouts, epochs=1)
    assert [each.index for each, _ in first] == [0, 1, 2]
    assert batch == _batches(order)[-1]
    np.testing.assert_array_equal(seeds, order.seeds_of(batch))


def test_those_that_draw_no_more_than_the_first_are_left_alone() -> None:
    assert len(first_seeds(_order(), _graph(_with_hub()), (2,), epochs=1)) == 3


def test_a_later_epoch_may_have_the_largest() -> None:
    order, degrees = _order(), np.full(NODES, 2)
    hubs = order.seeds_of(_batches(order, 2)[-1])
    degrees[hubs] = 40
    graph = _graph(degrees)
    assert first_seeds(order, graph, (-1,), epochs=2)[-1][0] == _batches(order, 2)[-1]
    assert first_seeds(order, graph, (-1,), epochs=None)[-1][0].epoch == 0


def test_edges_of_every_relation_into_the_seeds_count() -> None:
    likes, cites = ("user", "likes", "item"), ("item", "cites", "item")
    graph = HeteroGraph(
        num_nodes={"user": NODES, "item": NODES},
        relations={likes: _graph(_with_hub()), cites: _graph(np.full(NODES, 1))},
    )
    order = EpochOrder(seeds=NODES + np.arange(NODES), num_nodes=2 * NODES, batch_size=BATCH, seed=0)
    few = RelationFanouts(((likes, (2,)), (cites, (1,))))
    assert len(first_seeds(order, graph, few, epochs=1)) == 3
    assert len(first_seeds(order, graph, RelationFanouts(((likes, (-1,)), (cites, (1,)))), epochs=1)) == 4
