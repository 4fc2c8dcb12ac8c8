"""Pairs that a loop gives: negatives beside them, and the edges between their ends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader import Binary, Uniform
from gloader.bridges.given_seeds import draw_beside, edges_of_pairs
from gloader.errors import SeedError
from gloader.samplers import CscGraph

NUM_NODES = 12


def graph_of(pairs):
    """A graph of these edges, parallel ones included, with the list of its edges by position."""
    edges = sorted(pairs, key=lambda pair: pair[::-1])
    counts = np.bincount([destination for _, destination in edges], minlength=NUM_NODES)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return CscGraph(indptr=indptr, indices=np.array([source for source, _ in edges], np.int32)), edges


PAIRS = st.lists(st.tuples(st.integers(0, NUM_NODES - 1), st.integers(0, NUM_NODES - 1)), max_size=40)


@given(edges=PAIRS, wanted=PAIRS.filter(len), exclude=st.sampled_from(["self", "reverse"]))
def test_the_edges_between_the_ends_are_all_found_and_no_others(edges, wanted, exclude):
    graph, listed = graph_of(edges)
    out = {*wanted, *([pair[::-1] for pair in wanted] if exclude == "reverse" else [])}
    expected = [position for position, pair in enumerate(listed) if pair in out]
    found = edges_of_pairs(graph, {None: np.array(wanted)}, exclude=exclude, reverse={})
    assert [array.tolist() for array in found] == ([expected] if expected else [])


@pytest.mark.parametrize("negatives", [Uniform(3), Uniform(2, strict=True), Binary(1.5)], ids=str)
def test_negatives_follow_the_pairs_and_say_beside_which_they_are(negatives):
    graph, listed = graph_of([(v, (v + 1) % NUM_NODES) for v in range(NUM_NODES)])
    pairs = np.array(listed)
    first, owners = draw_beside(graph, pairs, None, negatives=negatives, seed=1, epoch=0)
    again, _ = draw_beside(graph, pairs, None, negatives=negatives, seed=1, epoch=0)
    later, _ = draw_beside(graph, pairs, None, negatives=negatives, seed=1, epoch=1)
    assert first.tolist() == again.tolist() != later.tolist()
    assert first[:NUM_NODES].tolist() == pairs.tolist()
    assert owners[:NUM_NODES].tolist() == list(range(NUM_NODES))
    if isinstance(negatives, Uniform):
        assert owners[NUM_NODES:].tolist() == np.repeat(np.arange(NUM_NODES), negatives.k).tolist()
        assert first[:, 0].tolist() == pairs[owners, 0].tolist()
    else:
        assert len(first) == NUM_NODES + 18
    if negatives.strict:
        assert not set(map(tuple, first[NUM_NODES:].tolist())) & set(listed)


def test_ends_that_are_no_nodes_are_refused():
    graph, _ = graph_of([(0, 1)])
    with pytest.raises(SeedError, match=r"1 sources of pairs are not in 0\.\.11, among them \[12\]"):
        draw_beside(graph, np.array([[12, 0]]), None, negatives=Uniform(1), seed=0, epoch=0)
