"""Models of triples: scores by the formulas of the papers, gradients, and what a batch must have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from knowledge_worlds import triple_score

from gloader.config import KNOWLEDGE_MODELS
from gloader.errors import ConfigError
from gloader.models import KnowledgeNetwork
from gloader.types import BatchId, HeteroReadyBatch, LinkBatch

DIM, ENTITIES, RELATIONS = 8, 11, 3
MODELS = [*((name, 1) for name in KNOWLEDGE_MODELS), ("transe", 2)]


def network_of(name, norm=1):
    torch.manual_seed(0)
    return KnowledgeNetwork(name, dim=DIM, num_relations=RELATIONS, norm=norm)


def batch_of(x, pairs, labels, shared):
    empty = torch.zeros(0, 0)
    ready = HeteroReadyBatch(
        id=BatchId(epoch=0, index=0),
        x={"entity": x, "relation": empty},
        y=torch.tensor(labels),
        blocks=(),
        nodes={"entity": np.arange(len(x)), "relation": np.arange(0)},
        num_seeds={"entity": len(x), "relation": 0},
    )
    return LinkBatch(
        batch=ready,
        pairs=torch.tensor(pairs),
        labels=torch.tensor(labels),
        edge_ids=np.arange(len(pairs)),
        num_positives=len(pairs),
        shared=None if shared is None else torch.tensor(shared),
    )


@pytest.mark.parametrize(("name", "norm"), MODELS)
def test_scores_are_those_of_the_formulas(name, norm):
    network, x = network_of(name, norm), torch.randn(ENTITIES, DIM)
    pairs, labels, shared = [[0, 1], [4, 4], [7, 2]], [2, 0, 1], [[3, 5, 4, 3], [1, 9, 2, 1]]
    outputs = network(batch_of(x, pairs, labels, shared))
    assert outputs.shape == (3, 1 + 2 * 4)
    for (h, t), r, found in zip(pairs, labels, outputs.tolist(), strict=True):
        wanted = [triple_score(network, x, h, r, t)]
        wanted += [-1e9 if wrong == t else triple_score(network, x, h, r, wrong) for wrong in shared[1]]
        wanted += [-1e9 if wrong == h else triple_score(network, x, wrong, r, t) for wrong in shared[0]]
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("name", "norm"), MODELS)
def test_both_ways_to_score_agree_and_a_query_asks_either_end(name, norm):
    network, x = network_of(name, norm).double(), torch.randn(ENTITIES, DIM).double()
    heads, tails = torch.tensor([0, 3]), torch.tensor([5, 5])
    relations = network.relation_rows(torch.tensor([1, 2]))
    tail_queries = network.queries(x[heads], relations, asks_heads=False)
    head_queries = network.queries(x[tails], relations, asks_heads=True)
    scores = network.between(tail_queries, x[tails])
    torch.testing.assert_close(network.between(head_queries, x[heads]), scores)
    torch.testing.assert_close(network.against(tail_queries, x)[[0, 1], tails], scores)
    torch.testing.assert_close(network.against(head_queries, x)[[0, 1], heads], scores)


@pytest.mark.parametrize(("name", "norm"), MODELS)
def test_gradients_are_right_and_finite_where_rows_are_equal(name, norm):
    network = network_of(name, norm).double()
    x = torch.randn(4, DIM).double().requires_grad_()
    relations = network.relation_rows(torch.tensor([1]))

    def scores(rows):
        return network.against(network.queries(rows[:1], relations.detach(), asks_heads=True), rows[1:])

    assert torch.autograd.gradcheck(scores, (x,))
    rows = torch.zeros(3, DIM, requires_grad=True)
    network.float()(batch_of(rows, [[0, 1]], [0], [[2], [2]])).sum().backward()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()
    assert network.relations.grad is not None
    assert network.relations.grad.isfinite().all()


def test_rotate_turns_every_number_without_a_change_of_its_length():
    network, x = network_of("rotate"), torch.randn(5, DIM)
    turned = network.queries(x, network.relation_rows(torch.tensor([0, 1, 2, 0, 1])), asks_heads=False)
    lengths = [torch.hypot(*rows.chunk(2, dim=1)) for rows in (x, turned)]
    torch.testing.assert_close(*lengths)
    assert network.relations.shape == (RELATIONS, DIM // 2)


def test_what_is_not_allowed_is_refused():
    with pytest.raises(
        ConfigError, match=r"model 'sage' does not score triples; allowed: complex, distmult, transe, rotate"
    ):
        KnowledgeNetwork("sage", dim=4, num_relations=1)
    for name in ("complex", "rotate"):
        with pytest.raises(ConfigError, match=rf"dim is 5, and model '{name}' has complex numbers"):
            KnowledgeNetwork(name, dim=5, num_relations=1)
    KnowledgeNetwork("distmult", dim=5, num_relations=1)
    with pytest.raises(ConfigError, match="no negatives that its triples share; give the loader negatives="):
        network_of("complex")(batch_of(torch.randn(3, DIM), [[0, 1]], [0], None))
