"""Hop columns equal plain loops in float64, and their bits depend on nothing but the request."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from propagation_oracle import hop_columns, random_relation, sizes_of

from gloader import Dataset
from gloader.dataset.topology import open_hetero_topology
from gloader.samplers.graph import HeteroGraph
from gloader.training.propagation.chains import PropagateSpec, grow_chains
from gloader.training.propagation.hop_pass import PassLimits
from gloader.training.propagation.propagate_rows import propagate
from gloader.training.propagation.propagation_plan import GraphSizes, plan_propagation
from gloader.training.propagation.state_rows import HeldMatrix
from gloader.types import EDGE, NODE

ENOUGH = 1 << 40
# Sums of at most 60 terms, over 3 hops, in float32.
CLOSE = {"rtol": 2e-5, "atol": 2e-6}

specs = st.builds(
    lambda hops, norm, directions, stats: PropagateSpec(
        hops=hops, norm=norm, alpha=0.25 if norm == "ppr" else 0.0, directions=directions, stats=stats
    ),
    st.integers(1, 3),
    st.sampled_from(["gcn", "mean", "ppr"]),
    st.sampled_from([("in",), ("out",), ("in", "out"), ("out", "in")]),
    st.lists(st.sampled_from(["mean", "min", "max", "std"]), min_size=1, unique=True).map(tuple),
)


def one_type(seed: int, *, weighted: bool, wide: bool):
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(1, 30))
    relation = random_relation(
        rng,
        num_nodes,
        num_nodes,
        int(rng.integers(0, 60)),
        weighted=weighted,
        dtype=np.int64 if wide else np.int32,
    )
    x = rng.standard_normal((num_nodes, int(rng.integers(1, 40)))).astype(np.float32)
    return HeteroGraph.of_one_type(relation), {NODE: x}


one_type_graphs = st.builds(one_type, st.integers(0, 2**32), weighted=st.booleans(), wide=st.booleans())


def columns(
    graph,
    inputs,
    spec,
    target,
    *,
    limits=None,
    loops=True,
    keep=None,
    widths=None,
    work=None,
    dtype="float32",
):
    shapes = {name: x.shape[1] for name, x in inputs.items()}
    trees = grow_chains(spec, widths=shapes, relations=tuple(graph.relations), target=target)
    plan = plan_propagation(
        trees,
        sizes_of(graph, shapes),
        budget_bytes=ENOUGH,
        has_disk=work is not None,
        widths=widths,
        num_kept=None if keep is None else len(keep),
        dtype=dtype,
    )
    if limits is not None:
        plan = replace(plan, limits=limits, rows_per_cut=limits.rows)
    rows = {name: HeldMatrix(x) for name, x in inputs.items()}
    with propagate(graph, rows, plan, add_self_loops=loops, keep=keep, work=work, dtype=dtype) as pieces:
        return trees, pieces.read(0, pieces.num_rows)


def assert_equals_loops(graph, inputs, spec, target, *, loops=True):
    before = {name: x.copy() for name, x in inputs.items()}
    trees, made = columns(graph, inputs, spec, target, loops=loops)
    expected = hop_columns(graph, inputs, spec, target, loops=loops)
    assert {group.name for group in trees.groups} == set(expected)
    for group in trees.groups:
        np.testing.assert_allclose(
            made[:, group.start : group.stop], expected[group.name], **CLOSE, err_msg=group.name
        )
    for name, x in inputs.items():
        np.testing.assert_array_equal(x, before[name], err_msg="the inputs were changed")


@given(one_type_graphs, specs, st.booleans())
@settings(max_examples=120, deadline=None)
def test_columns_of_one_type_equal_plain_loops(world, spec, loops):
    graph, inputs = world
    assert_equals_loops(graph, inputs, spec, NODE, loops=loops)


@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.sampled_from([("in",), ("in", "out")]),
    st.sampled_from([("mean",), ("std", "max"), ("min", "mean")]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_columns_of_several_types_equal_plain_loops(seed, hops, directions, stats, weighted):
    rng = np.random.default_rng(seed)
    counts = {"author": int(rng.integers(1, 12)), "paper": int(rng.integers(1, 12)), "venue": 3}
    ends = [
        ("author", "writes", "paper"),
        ("paper", "cites", "paper"),
        ("venue", "hosts", "paper"),
        ("paper", "rev", "author"),
    ]
    graph = HeteroGraph(
        num_nodes=counts,
        relations={
            each: random_relation(
                rng, counts[each[0]], counts[each[2]], int(rng.integers(0, 25)), weighted=weighted
            )
            for each in ends
        },
    )
    inputs = {
        name: rng.standard_normal((counts[name], width)).astype(np.float32)
        for name, width in (("author", 3), ("paper", 5))
    }
    spec = PropagateSpec(hops=hops, norm="mean", directions=directions, stats=stats)
    assert_equals_loops(graph, inputs, spec, "paper")


@given(one_type_graphs, specs, st.integers(1, 9), st.integers(1, 12), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_bits_do_not_depend_on_pieces_and_threads(world, spec, rows, edges, threads):
    graph, inputs = world
    limits = PassLimits(rows=rows, edges=edges, threads=threads)
    _, one = columns(graph, inputs, spec, NODE)
    _, other = columns(graph, inputs, spec, NODE, limits=limits)
    np.testing.assert_array_equal(one, other)


@given(one_type_graphs, specs, st.integers(1, 40), st.booleans(), st.integers(1, 9))
@settings(max_examples=12, deadline=None)
def test_bits_do_not_depend_on_slabs_and_the_disk(world, spec, width, keeps_some, rows):
    graph, inputs = world
    num_nodes = graph.num_nodes[NODE]
    keep = np.arange(0, num_nodes, 2) if keeps_some else None
    _, one = columns(graph, inputs, spec, NODE)
    limits = PassLimits(rows=rows, edges=7, threads=2)
    with tempfile.TemporaryDirectory() as folder:
        for number, dtype in enumerate(("float32", "float16")):
            work = Path(folder) / str(number)
            # The most slabs are three: every slab writes all its states, and syncs them.
            widths = {NODE: max(width, -(-inputs[NODE].shape[1] // 3))}
            _, other = columns(
                graph, inputs, spec, NODE, limits=limits, keep=keep, widths=widths, work=work, dtype=dtype
            )
            expected = one if keep is None else one[keep]
            x = inputs[NODE].shape[1]
            if keep is None:  # the input columns are the caller's own rows
                np.testing.assert_array_equal(expected[:, :x], other[:, :x])
                expected, other = expected[:, x:], other[:, x:]
            np.testing.assert_array_equal(expected.astype(dtype).astype(np.float32), other)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_edges_on_the_ssd_make_the_bits_of_edges_in_memory(tmp_path, direction):
    rng = np.random.default_rng(7)
    num_nodes, num_edges, width = 3000, 20_000, 12
    ends = np.sort(rng.integers(0, num_nodes, num_edges))
    some = np.arange(3)
    dataset = Dataset.from_numpy(
        tmp_path / "data",
        indptr=np.searchsorted(ends, np.arange(num_nodes + 1)),
        indices=rng.integers(0, num_nodes, num_edges).astype(np.int32),
        edge_weight=rng.random(num_edges).astype(np.float32),
        features=rng.random((num_nodes, width)).astype(np.float32),
        labels=np.zeros(num_nodes, dtype=np.int64), train=some[:1], valid=some[1:2], test=some[2:],
    )  # fmt: skip
    spec = PropagateSpec(hops=2, directions=(direction,), stats=("mean", "std"))
    trees = grow_chains(spec, widths={NODE: width}, relations=(EDGE,), target=NODE)
    plan = plan_propagation(trees, GraphSizes.of_dataset(dataset), budget_bytes=ENOUGH, widths={NODE: 4})
    # A destination with more edges than a piece, and pages that two pieces share.
    plan = replace(plan, limits=PassLimits(rows=700, edges=900, threads=2), rows_per_cut=1024)
    found = []
    for name, max_bytes in (("held", ENOUGH), ("paged", 0)):
        with (
            open_hetero_topology(dataset, max_bytes=max_bytes) as graph,
            propagate(
                graph, {NODE: HeldMatrix(dataset.labelled.all_features())}, plan, work=tmp_path / name
            ) as pieces,
        ):
            found.append((pieces.read(0, num_nodes), pieces.cost.edges_read))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    # The degrees need sources and weights; and so do two means of each of three slabs. Deviations need sources.
    assert found[0][1] == 0
    assert found[1][1] == num_edges * (8 + 3 * (2 * 8 + 2 * 4))
