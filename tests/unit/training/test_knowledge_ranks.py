"""Exact ranks and answers of knowledge graphs, against plain loops over all entities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from knowledge_worlds import HeldEntities, plain_rank, prepare_parts, random_parts, triple_score

from gloader.config import KNOWLEDGE_MODELS
from gloader.errors import BudgetError, DivergedError
from gloader.models.knowledge import KnowledgeNetwork
from gloader.training.knowledge_ranks import (
    RankPlan,
    TripleRanker,
    Triples,
    plan_ranks,
    rank_figures,
    read_triples,
)

DIM = 6


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return prepare_parts(tmp_path_factory.mktemp("ranks"), random_parts())


def tables_of(dataset):
    return [dataset.link_table(name) for name in ("train", "valid", "test")]


def triples_of(table):
    (found,) = read_triples(table)
    return found


def listed(triples):
    return list(zip(triples.heads.tolist(), triples.relations.tolist(), triples.tails.tolist(), strict=True))


def made(dataset, name, *, norm=1):
    torch.manual_seed(3)
    network = KnowledgeNetwork(name, dim=DIM, num_relations=4, norm=norm)
    rows = torch.randn(dataset.node_tables["entity"].num_nodes, DIM)
    rows[5] = rows[7]  # equal scores
    rows[6] = rows[7]
    return network, rows


@pytest.mark.parametrize("asks_heads", [False, True])
@pytest.mark.parametrize(("name", "norm"), [*((name, 1) for name in KNOWLEDGE_MODELS), ("transe", 2)])
@pytest.mark.parametrize("plan", [None, RankPlan(num_queries=3, piece_rows=4, tile_queries=2)])
def test_ranks_are_those_of_a_plain_loop(world, monkeypatch, name, norm, asks_heads, plan):
    network, rows = made(world, name, norm=norm)
    entities = HeldEntities(rows)
    if plan is not None:
        monkeypatch.setattr("gloader.training.knowledge_ranks.plan_ranks", lambda **_: plan)
    known = {triple for table in tables_of(world) for triple in listed(triples_of(table))}
    ranker = TripleRanker(network=network, entities=entities, known=tables_of(world), budget_bytes=64 << 20)
    test = triples_of(world.link_table("test"))
    ranks = ranker.ranks(test, asks_heads=asks_heads)
    wanted = [plain_rank(network, rows, triple, known, asks_heads=asks_heads) for triple in listed(test)]
    assert ranks.tolist() == wanted
    assert plan is None or entities.most == plan.piece_rows


def test_equal_rows_share_a_rank_and_every_score_is_the_same_in_every_piece(world, monkeypatch):
    network, _ = made(world, "complex")
    rows = torch.randn(1, DIM).repeat(23, 1)  # all entities are alike
    ranker = TripleRanker(
        network=network, entities=HeldEntities(rows), known=tables_of(world), budget_bytes=1 << 20
    )
    monkeypatch.setattr(
        "gloader.training.knowledge_ranks.plan_ranks",
        lambda **_: RankPlan(num_queries=7, piece_rows=5, tile_queries=3),
    )
    test = triples_of(world.link_table("test"))
    known = {triple for table in tables_of(world) for triple in listed(triples_of(table))}
    others = [sum((h, r, e) not in known for e in range(23)) for h, r, _ in listed(test)]
    assert ranker.ranks(test, asks_heads=False).tolist() == [1 + count / 2 for count in others]


def test_answers_are_the_best_entities_and_known_ones_are_left_out(world):
    network, rows = made(world, "distmult")
    ranker = TripleRanker(
        network=network, entities=HeldEntities(rows), known=tables_of(world), budget_bytes=1 << 20
    )
    test = triples_of(world.link_table("test"))
    known = {triple for table in tables_of(world) for triple in listed(triples_of(table))}
    for is_filtered in (False, True):
        parts = list(ranker.answers(test, asks_heads=False, k=4, is_filtered=is_filtered))
        ids, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
        for (h, r, _), found, theirs in zip(listed(test), ids.tolist(), scores.tolist(), strict=True):
            allowed = [e for e in range(23) if not (is_filtered and (h, r, e) in known)]
            wanted = sorted(allowed, key=lambda e: -np.float32(triple_score(network, rows, h, r, e)))[:4]
            assert found == wanted
            assert theirs == [np.float32(triple_score(network, rows, h, r, e)) for e in wanted]


def test_too_few_entities_are_filled_with_minus_one(world):
    network, rows = made(world, "transe")
    ranker = TripleRanker(network=network, entities=HeldEntities(rows), known=[], budget_bytes=1 << 20)
    one = triples_of(world.link_table("test")).part(0, 1)
    ((ids, scores),) = ranker.answers(one, asks_heads=True, k=30, is_filtered=False)
    assert sorted(ids[0, :23].tolist()) == list(range(23))
    assert set(ids[0, 23:].tolist()) == {-1}
    assert np.isneginf(scores[0, 23:]).all()


def test_known_answers_that_do_not_fit_make_blocks_smaller(world, monkeypatch):
    network, rows = made(world, "complex")
    test = triples_of(world.link_table("test"))

    def ranks(budget):
        ranker = TripleRanker(
            network=network, entities=HeldEntities(rows), known=tables_of(world), budget_bytes=budget
        )
        monkeypatch.setattr(
            "gloader.training.knowledge_ranks.plan_ranks",
            lambda **_: RankPlan(num_queries=25, piece_rows=23, tile_queries=25),
        )
        return ranker.ranks(test, asks_heads=False)

    blocks = []
    make = TripleRanker._block
    monkeypatch.setattr(TripleRanker, "_block", lambda *a, **k: blocks.append(make(*a, **k)) or blocks[-1])
    assert ranks(4000).tolist() == ranks(1 << 20).tolist()
    assert None in blocks
    with pytest.raises(BudgetError, match=r"known answers of one query do not fit a quarter of 100 B"):
        ranks(100)


def test_nan_scores_are_refused(world):
    network, rows = made(world, "complex")
    rows[4] = torch.nan
    ranker = TripleRanker(network=network, entities=HeldEntities(rows), known=[], budget_bytes=1 << 20)
    with pytest.raises(DivergedError, match="scores of triples are NaN"):
        ranker.ranks(triples_of(world.link_table("test")), asks_heads=False)


@pytest.mark.parametrize("name", KNOWLEDGE_MODELS)
def test_a_plan_keeps_within_its_memory_or_says_what_is_enough(name):
    for budget in (8 << 20, 64 << 20, 1 << 30):
        plan = plan_ranks(dim=200, name=name, budget_bytes=budget)
        score = 24 + (32 * 200 if name == "rotate" else 0)
        assert plan.piece_rows * 12 * 200 <= budget / 8
        assert plan.tile_queries == 1 or plan.tile_queries * plan.piece_rows * score <= budget / 4
        assert plan.num_queries * (40 * 200 + 64) <= budget / 4
    with pytest.raises(BudgetError, match=r"takes at least .*; the memory budget leaves 1\.02 KB") as caught:
        plan_ranks(dim=200, name=name, budget_bytes=1024)
    plan_ranks(dim=200, name=name, budget_bytes=1024 + caught.value.short_bytes)


def test_figures():
    figures = rank_figures(np.array([1.0, 2.0, 2.5, 4.0, 11.0]))
    assert figures["mrr"] == pytest.approx((1 + 0.5 + 0.4 + 0.25 + 1 / 11) / 5)
    assert [figures[f"hits@{k}"] for k in (1, 3, 10)] == [0.2, 0.6, 0.8]
    assert figures["mean_rank"] == pytest.approx(4.1)


def test_a_part_of_triples():
    triples = Triples(heads=np.arange(5), relations=np.zeros(5, np.int64), tails=np.arange(5))
    assert len(triples) == 5
    assert triples.part(1, 3).tails.tolist() == [1, 2]
