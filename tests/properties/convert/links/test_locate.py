"""Positions of pairs against a dictionary, with buffers so small that everything spills and splits."""

import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.convert.links.locate import LocatedRows, LocatePlan, plan_locate
from gloader.convert.source import LinkChunk
from gloader.convert.stored_parts import StoredCsc
from gloader.errors import BudgetError

TINY = LocatePlan(
    chunk_rows=3, held_bytes=0, join_rows=4, list_edges=3, range_rows=5, bucket_nodes=4, memory_bytes=1
)
ROOMY = plan_locate(30, budget_bytes=64 << 20)


def expected(rows, edges, num_destinations):
    """Return the position of each (source, destination, key), rows of a pair counted in the order of their keys."""
    at, position = {}, 0
    for node in range(num_destinations):
        for source in (edge[0] for edge in edges if edge[1] == node):
            at.setdefault((source, node), []).append(position)
            position += 1
    taken, found = {}, [-1] * len(rows)
    for number, (source, node, _) in sorted(enumerate(rows), key=lambda row: (row[1][2], row[0])):
        there = at.get((source, node), [])
        rank = taken[source, node] = taken.get((source, node), -1) + 1
        if there:
            found[number] = there[min(rank, len(there) - 1)]
    return found


def stored(folder, edges, num_destinations, dtype=np.int32, *, has_times=False):
    folder.mkdir()
    lists = [[edge[0] for edge in edges if edge[1] == node] for node in range(num_destinations)]
    np.save(folder / "indptr.npy", np.cumsum([0, *map(len, lists)]))
    np.save(folder / "indices.npy", np.array([each for part in lists for each in part], dtype))
    return StoredCsc.open(folder / "indptr.npy", folder / "indices.npy", has_times=has_times)


def chunks(rows, size):
    for start in range(0, len(rows), size):
        src, dst, time = np.array(rows[start : start + size], np.int64).T
        yield LinkChunk(src=src, dst=dst, time=time)


@st.composite
def tables(draw):
    sources, destinations = draw(st.integers(1, 20)), draw(st.integers(1, 30))
    source = st.one_of(st.integers(0, sources - 1), st.integers(0, min(1, sources - 1)))
    node = st.one_of(st.integers(0, destinations - 1), st.integers(0, min(1, destinations - 1)))
    edges = draw(st.lists(st.tuples(source, node), max_size=80))
    back = draw(st.lists(st.tuples(node, source), max_size=80))
    row = st.tuples(source, node, st.integers(-3, 3))
    if edges:  # rows that are in the graph, some of them more often than their edges
        row = st.one_of(
            row, st.tuples(st.sampled_from(edges), st.integers(-3, 3)).map(lambda r: (*r[0], r[1]))
        )
    return sources, destinations, edges, back, draw(st.lists(row, max_size=60))


@given(table=tables(), plan=st.sampled_from([TINY, ROOMY]), size=st.integers(1, 9), uses_times=st.booleans())
def test_positions_are_those_of_a_dictionary(table, plan, size, uses_times):
    sources, destinations, edges, back, rows = table
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = stored(folder / "there", edges, destinations, has_times=uses_times)
        reverse = stored(folder / "back", back, sources, np.int64, has_times=uses_times)
        (folder / "scratch").mkdir()
        with LocatedRows(plan, folder / "scratch") as located:
            located.fill(chunks(rows, size), graph, reverse, num_rows=len(rows))
            found = [tuple(row) for part in located.rows() for row in part.tolist()]
        assert not list((folder / "scratch").iterdir())
    keyed = [(source, node, time if uses_times else 0) for source, node, time in rows]
    positions = expected(keyed, edges, destinations)
    reverses = expected([(node, source, time) for source, node, time in keyed], back, sources)
    assert found == [
        (*row[:2], *pair) for row, pair in zip(rows, zip(positions, reverses, strict=True), strict=True)
    ]
    assert located.num_rows == len(rows)
    assert located.num_found == sum(position >= 0 for position in positions)
    assert located.num_reversed == sum(p < 0 <= r for p, r in zip(positions, reverses, strict=True))
    assert (located.spilled_bytes > 0) == (plan is TINY and bool(rows))


@given(table=tables())
def test_without_a_reverse_relation_there_is_no_reverse(table):
    _, destinations, edges, _, rows = table
    with tempfile.TemporaryDirectory() as name:
        graph = stored(Path(name) / "there", edges, destinations)
        with LocatedRows(TINY, Path(name)) as located:
            located.fill(chunks(rows, 7), graph, None, num_rows=None)
            found = [row for part in located.rows() for row in part.tolist()]
    assert [row[3] for row in found] == [-1] * len(rows)
    assert [row[2] for row in found] == expected([(*row[:2], 0) for row in rows], edges, destinations)


@given(
    num_nodes=st.integers(0, 2**40),
    num_rows=st.one_of(st.none(), st.integers(0, 2**40)),
    budget=st.integers(2**20, 2**40),
)
def test_plan_stays_within_its_budget(num_nodes, num_rows, budget):
    try:
        plan = plan_locate(num_nodes, budget_bytes=budget)
    except BudgetError:
        assert num_nodes > 2**20 or budget < 16 << 20
        return
    width = 1 << plan.shift(num_nodes, num_rows)
    assert -(-num_nodes // width) <= 1024
    assert min(num_nodes, width) <= plan.bucket_nodes
    held = 2 * plan.held_bytes
    assert held + 160 * plan.chunk_rows <= budget
    assert held + 24 * min(width, num_nodes) + 320 * plan.join_rows + 8 * plan.list_edges <= budget
    assert held + 120 * plan.range_rows <= budget
    assert min(plan.chunk_rows, plan.join_rows, plan.range_rows) >= 1000


@pytest.mark.parametrize("num_rows", [20_000, 200_000])
def test_memory_is_what_the_plan_says(tmp_path, num_rows):
    random = np.random.default_rng(0)
    pairs = random.integers(0, 3_000, (2, num_rows))
    pairs[1, : num_rows // 4] = 7  # a hub, whose rows do not fit
    order = np.argsort(pairs[1], kind="stable")
    np.save(tmp_path / "indptr.npy", np.searchsorted(pairs[1][order], np.arange(3_001)))
    np.save(tmp_path / "indices.npy", pairs[0][order].astype(np.int32))
    graph = StoredCsc.open(tmp_path / "indptr.npy", tmp_path / "indices.npy")
    plan = plan_locate(3_000, budget_bytes=10 << 20, num_rows=num_rows)

    def parts():
        for start in range(0, num_rows, plan.chunk_rows):
            part = pairs[:, start : start + plan.chunk_rows]
            yield LinkChunk(src=part[0], dst=part[1])

    def locate_all():
        with LocatedRows(plan, tmp_path) as located:
            located.fill(parts(), graph, graph, num_rows=num_rows)
            assert sum(int((found[:, 2] >= 0).sum()) for found in located.rows()) == num_rows

    def traced_peak():
        tracemalloc.start()
        try:
            locate_all()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    locate_all()  # the compiler has memory of its own
    # All threads of the process are traced, also those that an earlier test has left. The search has one thread, and
    # allocates the same in every run, so the smallest of three peaks is the one without the others.
    assert min(traced_peak() for _ in range(3)) <= plan.memory_bytes <= (10 << 20) + 100


def test_budget_that_is_too_small_is_said():
    with pytest.raises(
        BudgetError, match=r"of 1000000000 nodes needs at least .* leaves 10 MB for it. Raise --mem"
    ):
        plan_locate(10**9, budget_bytes=10**7)
