"""The out-of-core mean against numpy, with blocks, chunks and holes so small that every one of them is cut."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from convert_helpers import ListEdges
from hypothesis import given
from hypothesis import strategies as st

from gloader.convert import derived
from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.csc.external_csc import ScratchCsc
from gloader.convert.derived import MeanPlan, MeanRows, plan_means
from gloader.convert.options import EdgeRules
from gloader.convert.progress import NO_PROGRESS
from gloader.convert.stored_parts import StoredColumn
from gloader.errors import BudgetError


@pytest.fixture(scope="module", autouse=True)
def small_holes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derived, "_GAP_BYTES", 24)  # two rows of three float32
        yield


@st.composite
def relations(draw):
    num_sources, num_rows = draw(st.integers(1, 25)), draw(st.integers(0, 12))
    edge = st.tuples(st.integers(0, num_sources - 1), st.integers(0, max(0, num_rows - 1)))
    return num_sources, num_rows, draw(st.lists(edge, max_size=60)) if num_rows else []


plans = st.builds(
    MeanPlan,
    block_rows=st.integers(1, 8),
    block_edges=st.integers(1, 20),
    chunk_rows=st.integers(1, 9),
    memory_bytes=st.just(0),
)


@given(
    relation=relations(),
    plan=plans,
    max_rows=st.integers(1, 5),
    dtype=st.sampled_from(["float32", "float16"]),
)
def test_means_equal_numpy(relation, plan, max_rows, dtype):
    num_sources, num_rows, edges = relation
    # Halves and whole numbers: their sums have no rounding, whatever their order.
    values = (np.arange(num_sources * 3).reshape(-1, 3) % 17 / 2).astype(dtype)
    found = means(edges, values, num_rows, plan, dtype=dtype, max_rows=max_rows)
    assert np.array_equal(found, expected_means(edges, values, num_rows))


@given(relation=relations(), plan=plans)
def test_sums_have_the_same_bits_whatever_the_blocks(relation, plan):
    num_sources, num_rows, edges = relation
    values = np.random.default_rng(0).standard_normal((num_sources, 3)).astype(np.float32)
    whole = MeanPlan(block_rows=100, block_edges=1000, chunk_rows=100, memory_bytes=0)
    fine = MeanPlan(block_rows=plan.block_rows, block_edges=1000, chunk_rows=plan.chunk_rows, memory_bytes=0)
    assert np.array_equal(means(edges, values, num_rows, whole), means(edges, values, num_rows, fine))


@given(
    num_rows=st.integers(0, 10**9),
    num_edges=st.integers(0, 10**11),
    dim=st.integers(1, 5000),
    budget=st.integers(0, 10**12),
)
def test_a_plan_stays_within_its_budget_or_is_refused(num_rows, num_edges, dim, budget):
    try:
        plan = plan_means(
            num_rows=num_rows, num_edges=num_edges, dim=dim, source_row_bytes=2 * dim, budget_bytes=budget
        )
    except BudgetError:
        assert budget < 400_000 + 50 * dim
        return
    assert plan.memory_bytes <= budget
    assert plan.block_rows >= 1
    assert plan.block_edges >= 1
    assert plan.chunk_rows >= 1


def expected_means(edges, values, num_rows):
    """Add the rows one by one, by ascending source."""
    sums, counts = np.zeros((num_rows, 3), np.float32), np.zeros(num_rows, np.float32)
    for source, row in sorted(edges):
        sums[row] += values[source].astype(np.float32)
        counts[row] += 1
    return sums / np.maximum(counts, 1)[:, None]


def means(edges, values, num_rows, plan, *, dtype="float32", max_rows=4):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "rows.npy", values)
        column = StoredColumn(rows=folder / "rows.npy", scales=None, dtype=dtype, num_rows=len(values), dim=3)
        ends = EdgeEnds(num_nodes=num_rows, num_sources=len(values), has_names=True)
        with ScratchCsc(folder=folder, ends=ends) as graph:
            graph.fill(ListEdges(edges), rules=EdgeRules(), budget_bytes=10**8, progress=NO_PROGRESS)
            stream = MeanRows(graph=graph, column=column, plan=plan).stream()
            chunks = [chunk.copy() for chunk in stream.chunks(max_rows)]
    assert all(len(chunk) <= max_rows for chunk in chunks)
    return np.concatenate(chunks) if chunks else np.empty((0, 3), np.float32)
