"""Rows that a batch has of a table: nodes of a type, or the edges of all its blocks, each perhaps more than once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.pipeline.sample import count_rows, distinct_rows, is_of_edges, ordered_rows, rows_of
from gloader.types import BatchId, Block, HeteroBatch, SampledBatch

FIRST = BatchId(epoch=0, index=0)


def _block(edge_ids: list[int]) -> Block:
    return Block(
        indptr=np.array([0, len(edge_ids)], np.int32),
        indices=np.zeros(len(edge_ids), np.int32),
        edge_ids=np.array(edge_ids, np.int64),
        num_src=1,
        num_dst=1,
    )


def _batch(nodes: list[int], edges: list[list[int]], *, trees: bool = False) -> SampledBatch:
    return SampledBatch(
        id=FIRST,
        nodes=np.array(nodes, np.int64),
        num_seeds=1,
        blocks=tuple(map(_block, edges)),
        trees=np.zeros(len(nodes), np.int32) if trees else None,
    )


@given(
    st.lists(st.integers(0, 30), max_size=40),
    st.sampled_from([0, 2**31 + 5, 2**40]),  # ids that one word has room for beside a place, and others
)
def test_rows_that_repeat_are_planned_once_and_copied(nodes: list[int], beyond: int) -> None:
    rows = [node + beyond for node in nodes]
    batch = _batch(rows, [], trees=True)
    found = ordered_rows(batch, 0)
    assert found.ascending.tolist() == sorted(set(rows))
    assert np.array_equal(distinct_rows(batch, 0), found.ascending)
    first = {row: rows.index(row) for row in rows}
    assert found.order.tolist() == [first[row] for row in found.ascending.tolist()]
    # What is filled where a row is first comes to every other place.
    x = np.full((len(rows), 1), -1.0, np.float32)
    x[found.order, 0] = found.ascending - beyond
    found.copy_repeats(x)
    assert x[:, 0].tolist() == nodes


def test_nodes_that_are_distinct_have_no_repeats() -> None:
    found = ordered_rows(_batch([5, 2, 9], []), 0)
    assert (found.ascending.tolist(), found.order.tolist(), found.repeats) == ([2, 5, 9], [1, 0, 2], None)


def test_the_rows_of_edges_are_those_of_all_blocks() -> None:
    batch = _batch([0, 1], [[7, 3, 3], [3, 1]])
    assert rows_of(batch, 1).tolist() == [7, 3, 3, 3, 1]
    assert [count_rows(batch, number) for number in (0, 1)] == [2, 5]
    assert distinct_rows(batch, 1).tolist() == [1, 3, 7]
    assert ordered_rows(batch, 1).order.tolist() == [4, 1, 0]
    assert not is_of_edges(batch, 0)
    assert is_of_edges(batch, 1)


@pytest.mark.parametrize(("number", "expected"), [(0, [4]), (1, [5, 6]), (2, [1, 2, 9]), (3, [8])])
def test_tables_of_several_types_come_before_those_of_relations(number: int, expected: list[int]) -> None:
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    batch = HeteroBatch(
        id=FIRST,
        nodes={"author": np.array([4]), "paper": np.array([5, 6])},
        num_seeds={"author": 0, "paper": 2},
        blocks=({cites: _block([1, 2]), writes: _block([])}, {cites: _block([9]), writes: _block([8])}),
    )
    assert rows_of(batch, number).tolist() == expected
    assert count_rows(batch, number) == len(expected)
