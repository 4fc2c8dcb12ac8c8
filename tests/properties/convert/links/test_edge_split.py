"""Edges that are dealt out: what is one edge to people is on one side, and what is held out is not in the graph."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from convert_helpers import ListEdges, expected_neighbors
from hypothesis import given, settings
from hypothesis import strategies as st
from link_tables import check_positions, edges_by_position, read_table, rows_of

from gloader.convert.options import PARTS, EdgeRules, PrepareOptions, edge_shares
from gloader.convert.prepare import prepare
from gloader.convert.readers.arrays import array_features
from gloader.convert.source import Source, Splits
from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.types import EDGE

RULES = [
    {},
    {"symmetrize": True},
    {"deduplicate": True},
    {"self_loops": True},
    {"symmetrize": True, "order": "degree"},
    {"order": "degree"},
]


@st.composite
def edge_lists(draw):
    num_nodes = draw(st.integers(3, 12))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), min_size=4, max_size=50))
    # Parallel edges, and the other directions of edges.
    again = draw(st.lists(st.sampled_from(edges), max_size=15))
    return num_nodes, edges + again + [(v, u) for u, v in draw(st.lists(st.sampled_from(edges), max_size=15))]


def dataset_of(folder, num_nodes, edges, **options):
    return Dataset.from_numpy(
        Path(folder) / "made",
        features=np.ones((num_nodes, 2), np.float32),
        labels=np.full(num_nodes, -1),
        edge_index=np.array(edges, np.int64).T,
        memory_budget="60MB",
        **options,
    )


def timed_dataset(folder, num_nodes, edges, times):
    none = np.empty(0, np.int64)
    source = Source(
        name="made",
        origin="made",
        num_nodes=num_nodes,
        num_classes=1,
        edges=ListEdges(edges, times=times),
        features=array_features(np.ones((num_nodes, 2), np.float32)),
        labels=np.full(num_nodes, -1),
        splits=Splits(train=none, valid=none, test=none),
        # The number of an edge tells, wherever it went, which one it was.
        edge_features=array_features(np.arange(len(edges), dtype=np.float32)[:, None]),
    )
    options = PrepareOptions(
        edge_split=(0.5, 0.25, 0.25), edge_split_by="time", memory_budget_bytes=60 * 10**6
    )
    prepare(source, Path(folder) / "made", options)
    return Dataset.open(Path(folder) / "made")


@settings(max_examples=40)
@given(graph=edge_lists(), rules=st.sampled_from(RULES), seed=st.integers(0, 99))
def test_random_parts_do_not_leak(graph, rules, seed):
    num_nodes, edges = graph
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = dataset_of(folder, num_nodes, edges, edge_split=(0.5, 0.25, 0.25), seed=seed, **rules)
        except ConfigError as error:
            if "leaves the table" not in str(error):  # of so few pairs one part may get none
                raise
            return
        original = np.arange(num_nodes) if made.original_ids is None else made.original_ids
        tables = {
            name: [(int(original[u]), int(original[v])) for u, v in rows_of(made, name)] for name in PARTS
        }
        for name in PARTS:
            check_positions(made, name)
        stored = [(int(original[u]), int(original[v])) for u, v in edges_by_position(made, EDGE)]
        in_graph = {name: made.link_table(name).in_graph for name in PARTS}
    # Every edge of the source is one row, in its order.
    side = {frozenset(pair): name for name, rows in tables.items() for pair in rows}
    for name, rows in tables.items():
        assert rows == [edge for edge in edges if side[frozenset(edge)] == name]
    # The graph is what the rules make of the training edges alone.
    known = {key: value for key, value in rules.items() if key != "order"}
    expected = expected_neighbors(tables["train"], num_nodes, EdgeRules(**known))
    found = Counter(stored)
    assert found == Counter((u, v) for v, entries in enumerate(expected) for u, _ in entries)
    if not rules.get("self_loops"):  # which every node is given, whoever held one out
        held = {frozenset(pair) for pair in (*tables["valid"], *tables["test"])}
        assert not held.intersection(map(frozenset, stored))
        assert in_graph == {"train": len(tables["train"]), "valid": 0, "test": 0}


@settings(max_examples=25)
@given(graph=edge_lists(), data=st.data())
def test_parts_by_time_are_in_order_of_time(graph, data):
    num_nodes, edges = graph
    second = st.one_of(st.integers(0, 5), st.integers(-(2**62) + 1, 2**62 - 1))
    times = data.draw(st.lists(second, min_size=len(edges), max_size=len(edges)))
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = timed_dataset(folder, num_nodes, edges, times)
        except ConfigError as error:
            if "leaves the table" not in str(error):
                raise
            return
        parts = {name: read_table(made, name).times.tolist() for name in PARTS}
        rows = {name: rows_of(made, name) for name in PARTS}
        positions = read_table(made, "train").positions
        (table,) = made.edge_tables.values()
        numbers = np.empty((table.num_edges, 1), np.float32)
        with table.feature_rows.open_features() as features:
            features.read_into(np.arange(table.num_edges), numbers)
    # A row's edge is the very one, by its time: its features are those of that edge in the source.
    kept = [number for number in range(len(edges)) if times[number] <= max(parts["train"])]
    by_pair = {}
    for number in kept:
        by_pair.setdefault((edges[number], times[number]), []).append(number)
    for number, position in zip(kept, positions.tolist(), strict=True):
        assert int(numbers[position, 0]) in by_pair[edges[number], times[number]]
    assert len(set(positions.tolist())) == len(kept)
    assert max(parts["train"]) < min(parts["valid"]) <= max(parts["valid"]) < min(parts["test"])
    ordered = sorted(times)
    assert max(parts["train"]) == ordered[max(1, round(len(edges) / 2)) - 1]
    for name in PARTS:
        given_rows = [
            (edge, time)
            for edge, time in zip(edges, times, strict=True)
            if min(parts[name]) <= time <= max(parts[name])
        ]
        assert list(zip(rows[name], parts[name], strict=True)) == given_rows


def test_shares_are_met_and_the_seed_decides():
    random = np.random.default_rng(0)
    edges = random.integers(0, 400, (8000, 2)).tolist()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in (0, 1):
            made = dataset_of(Path(folder) / str(seed), 400, edges, edge_split="80/10/10", seed=seed)
            found[seed] = [made.link_table(name).num_rows for name in PARTS]
            assert sum(found[seed]) == 8000
            assert np.allclose(np.array(found[seed]) / 8000, [0.8, 0.1, 0.1], atol=0.02)
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("80/10/20", r"'80/10/20' adds up to 110; it must be 100"),
        ((0.8, 0.1, 0.2), r"\(0.8, 0.1, 0.2\) adds up to 1.1; it must be 100"),
        ("90/0/10", "leaves the table 'valid' empty"),
        ("110/-20/10", "leaves the table 'valid' empty"),
        ("80/20", "write the shares of train, valid and test, such as 80/10/10"),
        ("a/b/c", "write the shares"),
        ("nan/50/50", "adds up to nan"),
        (7, "write the shares"),
    ],
)
def test_shares_that_cannot_be_are_refused(given, text):
    with pytest.raises(ConfigError, match=text):
        edge_shares(given)


def test_shares_are_percents_or_fractions():
    assert edge_shares("80/10/10") == edge_shares((0.8, 0.1, 0.1)) == edge_shares([8e1, 1e1, 1e1])
    assert edge_shares("98.5/0.5/1")[0] == pytest.approx(0.985)
