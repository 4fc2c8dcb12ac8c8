"""The seeds of batches of links, and a plain-Python twin's, are equal on any graph, table and setting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.samplers.links import NODE, LinkOracle, NothingFreeError, as_lists, edges_of, links_of

from gloader.core.negatives import Binary, InBatch, Negatives, Table, Uniform
from gloader.errors import ConfigError
from gloader.samplers import CscGraph, HeteroGraph
from gloader.samplers.link_seeds import LinkSeeds
from gloader.types import BatchId, Relation

WRITES: Relation = ("a", "writes", "b")
WRITTEN: Relation = ("b", "written", "a")
SETTINGS = st.sampled_from(
    [
        None,
        Uniform(1),
        Uniform(3, strict=True),
        Binary(0.4),
        Binary(2.5, strict=True),
        InBatch(),
        Table("own"),
        Table("other"),
    ]
)


def csc(random: np.random.Generator, num_sources: int, num_nodes: int, kind: str) -> CscGraph:
    """A relation in which each pair is an edge with some chance, perhaps twice; or in which all are."""
    chance = {"empty": 0.0, "sparse": 0.2, "dense": 0.8, "full": 1.0}[kind]
    copies = (random.random((num_nodes, num_sources)) < chance) * random.integers(
        1, 3, (num_nodes, num_sources)
    )
    lists = [random.permutation(np.repeat(np.arange(num_sources), row)) for row in copies]
    indptr = np.concatenate([[0], np.cumsum(copies.sum(axis=1))]).astype(np.int64)
    dtype = random.choice([np.int32, np.int64])
    return CscGraph(indptr=indptr, indices=np.concatenate(lists).astype(dtype), num_sources=num_sources)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["empty", "sparse", "dense", "full"]))
    graph: CscGraph | HeteroGraph
    if draw(st.booleans()):
        num_sources = num_nodes = draw(st.integers(1, 7))
        graph = forward = backward = csc(random, num_sources, num_nodes, kind)
        names: dict[str, Any] = {"relation": NODE, "reverse_relation": NODE}
    else:
        num_sources, num_nodes = draw(st.integers(1, 5)), draw(st.integers(1, 5))
        forward = csc(random, num_sources, num_nodes, kind)
        backward = csc(random, num_nodes, num_sources, "dense")
        num_of = {"b": num_nodes, "c": 2, "a": num_sources}
        relations: list[tuple[Relation, CscGraph]] = [
            (("c", "to", "c"), csc(random, 2, 2, "dense")),
            (WRITES, forward),
            (WRITTEN, backward),
        ]
        if draw(st.booleans()):  # so that either type may come first
            num_of = dict(reversed(num_of.items()))
        graph = HeteroGraph(num_nodes=num_of, relations=dict(relations))
        names = {"relation": WRITES, "reverse_relation": WRITTEN}

    def table(num_rows: int) -> Any:
        edges = edges_of(forward)
        pairs = [
            edges[random.integers(len(edges))]
            if edges and random.random() < 0.7
            else (int(random.integers(num_sources)), int(random.integers(num_nodes)))
            for _ in range(num_rows)
        ]
        return links_of(
            forward,
            pairs,
            reverse=backward,
            labels=random.integers(-5, 5, num_rows),
            times=random.integers(0, 3, num_rows),
            negatives=random.integers(0, num_nodes, (num_rows, 2)).astype(np.int32),
            **names,
        )

    negatives: Negatives | None = draw(SETTINGS)
    exclude = draw(st.sampled_from(["none", "self", "reverse"]))
    return {
        "graph": graph,
        "table": table(draw(st.integers(1, 10))),
        "negatives": negatives,
        "exclude": exclude,
        "duplicates": exclude != "none" and draw(st.booleans()),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "has_times": draw(st.booleans()),
        "negative_table": table(draw(st.integers(1, 5))) if negatives == Table("other") else None,
    }


@given(case=cases(), data=st.data())
def test_seeds_are_those_of_the_plain_twin(case: dict[str, Any], data: st.DataObject) -> None:
    seeds, oracle = (
        LinkSeeds(case["graph"], **{k: v for k, v in case.items() if k != "graph"}),
        LinkOracle(**case),
    )
    every = data.draw(st.permutations(range(case["table"].num_rows)))
    rows = every[: data.draw(st.integers(0, len(every)))]
    batch_id = BatchId(epoch=data.draw(st.integers(0, 2**40)), index=data.draw(st.integers(0, 2**40)))
    try:
        expected = oracle.batch(batch_id, rows)
    except NothingFreeError:
        with pytest.raises(ConfigError, match="strict"):
            seeds.of(batch_id, np.array(rows, dtype=np.int64))
        return
    found = seeds.of(batch_id, np.array(rows, dtype=np.int64))
    assert as_lists(found) == expected
    assert found.links is not None
    asked = case["table"].times[rows].tolist() if case["has_times"] else None
    assert (None if found.links.times is None else found.links.times.tolist()) == asked
    assert found.links.labels.dtype == (np.int64 if case["negatives"] is None else np.float32)
