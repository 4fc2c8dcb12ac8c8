"""Seeds of batches of links: frequencies, strict negatives at their limits, what is refused, edges on the SSD."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy import stats
from unit.samplers.graphs import random_graph
from unit.samplers.hetero_graphs import CITES, WRITES, WRITTEN, typed_graph
from unit.samplers.links import HeldLinks, LinkOracle, as_lists, edges_of, links_of

from gloader.core.negatives import Binary, InBatch, Table, Uniform
from gloader.dataset import Dataset
from gloader.dataset.topology import open_topology
from gloader.errors import ConfigError, GraphError
from gloader.samplers import CscGraph, HeteroGraph, Topology, edge_lookup
from gloader.samplers.link_draws import distinct
from gloader.samplers.link_seeds import LinkSeeds
from gloader.types import BatchId, BatchSeeds, Relation

FIRST = BatchId(epoch=0, index=0)
STRICT = [Uniform(3, strict=True), Binary(3.0, strict=True)]
ONE_IN_TEN_THOUSAND = 1e-4


def batches(seeds: LinkSeeds, rows: np.ndarray, count: int) -> list[BatchSeeds]:
    return [seeds.of(BatchId(epoch=i % 3, index=i), rows) for i in range(count)]


def wrong_pairs(batch: BatchSeeds) -> np.ndarray:
    """The negatives (Q, 2) of a batch of one type, as ids."""
    assert batch.links is not None
    found: np.ndarray = batch.nodes[batch.links.pairs[batch.links.num_positives :]]
    return found


def of_pairs(num_nodes: int, pairs: list[tuple[int, int]]) -> CscGraph:
    """A graph of edges (source, destination)."""
    ordered = sorted(pairs, key=lambda pair: pair[1])
    degrees = np.bincount([destination for _, destination in ordered], minlength=num_nodes)
    return CscGraph(
        indptr=np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64),
        indices=np.array([source for source, _ in ordered], dtype=np.int32),
    )


def assert_uniform(values: np.ndarray, count: int) -> None:
    """Compare how often each of ``count`` values came with the chi-square distribution."""
    observed = np.bincount(values, minlength=count)
    assert len(observed) == count
    statistic = float(((observed - len(values) / count) ** 2).sum() * count / len(values))
    low, high = stats.chi2.ppf([ONE_IN_TEN_THOUSAND, 1 - ONE_IN_TEN_THOUSAND], count - 1)
    assert low < statistic < high, f"chi-square {statistic:.0f}, expected {low:.0f} to {high:.0f}"


def test_each_node_is_equally_likely_to_be_a_negative() -> None:
    graph = random_graph(50, 6)
    table = links_of(graph, [(3, 4), (9, 8), (5, 5)])
    rows = np.arange(3)
    made = batches(LinkSeeds(graph, table, negatives=Uniform(7), seed=1), rows, 1000)
    pairs = np.concatenate(list(map(wrong_pairs, made)))
    assert_uniform(pairs[:, 1], 50)
    # Neither is one drawn with another of its positive, of its number, or of its batch.
    drawn = pairs[:, 1].reshape(1000, 3, 7)
    for one, other in ((drawn[:, 0], drawn[:, 1]), (drawn[..., 0], drawn[..., 1]), (drawn[1:], drawn[:-1])):
        assert_uniform((one - other).reshape(-1) % 50, 50)


def shared_ids(batch: BatchSeeds) -> np.ndarray:
    """The wrong sources and destinations (2, k) of a batch of one type, as ids."""
    assert batch.links is not None
    assert batch.links.shared is not None
    found: np.ndarray = batch.nodes[batch.links.shared]
    return found


def test_shared_negatives_are_drawn_once_for_a_batch_whatever_its_rows_are() -> None:
    graph = random_graph(50, 6)
    labels = np.array([7, 8, 9])
    table = links_of(graph, [(3, 4), (9, 8), (5, 5)], labels=labels)
    seeds = LinkSeeds(graph, table, negatives=Uniform(11, shared=True), seed=1)
    made = batches(seeds, np.arange(3), 1000)
    drawn = np.stack(list(map(shared_ids, made)))
    np.testing.assert_array_equal(
        drawn[:, 0], drawn[:, 1]
    )  # of one type, wrong sources are wrong destinations too
    assert_uniform(drawn[:, 0].reshape(-1), 50)
    assert_uniform((drawn[1:, 0] - drawn[:-1, 0]).reshape(-1) % 50, 50)
    for batch in made[:5]:
        assert batch.links is not None
        assert batch.links.labels.tolist() == [7, 8, 9]
        assert batch.nodes[batch.links.pairs].tolist() == [[3, 4], [9, 8], [5, 5]]
        assert len(batch.nodes) == len(np.unique(batch.nodes))
    other = seeds.of(FIRST, np.array([2]))
    np.testing.assert_array_equal(shared_ids(other), shared_ids(made[0]))
    assert seeds.call_bytes(3) < LinkSeeds(graph, table, negatives=Uniform(11)).call_bytes(3)


def test_shared_negatives_of_two_types_differ_by_end() -> None:
    graph = typed_graph({"author": 40, "paper": 40}, [WRITES])
    table = links_of(graph.relations[WRITES], [(3, 4), (9, 8)], relation=WRITES, reverse_relation=None)
    batch = LinkSeeds(graph, table, negatives=Uniform(60, shared=True)).of(FIRST, np.arange(2))
    assert batch.links is not None
    assert batch.links.shared is not None
    authors, papers = (batch.nodes[batch.nodes < 40], batch.nodes[batch.nodes >= 40] - 40)
    sources, destinations = batch.links.shared
    assert np.count_nonzero(authors[sources] == papers[destinations]) < 10
    assert authors[batch.links.pairs[:, 0]].tolist() == [3, 9]
    assert papers[batch.links.pairs[:, 1]].tolist() == [4, 8]
    assert batch.links.labels.tolist() == [1, 1]  # a table without labels


def test_shared_negatives_need_nodes_on_both_sides_and_no_times() -> None:
    graph = typed_graph({"author": 0, "paper": 9}, [WRITES])
    table = HeldLinks(relation=WRITES, reverse_relation=None, pairs=np.empty((0, 4), np.int64))
    with pytest.raises(ConfigError, match=r"uniform:3,shared draws negatives from an empty type: 'author'"):
        LinkSeeds(graph, table, negatives=Uniform(3, shared=True))
    plain = random_graph(9, 2)
    with pytest.raises(
        ConfigError, match=r"uniform:3,shared: negatives that all edges of a batch share have no time"
    ):
        LinkSeeds(
            plain,
            links_of(plain, [(1, 2)], times=np.zeros(1, np.int64)),
            negatives=Uniform(3, shared=True),
            has_times=True,
        )


def test_both_ends_of_a_binary_negative_are_equally_likely_and_independent() -> None:
    graph = random_graph(12, 3)
    made = batches(
        LinkSeeds(graph, links_of(graph, [(3, 4), (9, 8)]), negatives=Binary(5.0), seed=1), np.arange(2), 2000
    )
    pairs = np.concatenate(list(map(wrong_pairs, made)))
    assert_uniform(pairs[:, 0] * 12 + pairs[:, 1], 144)


def test_rows_of_a_table_of_negatives_are_equally_likely() -> None:
    graph = random_graph(30, 3)
    wrong = links_of(graph, [(i, 29 - i) for i in range(30)])
    seeds = LinkSeeds(graph, links_of(graph, [(1, 2)] * 4), negatives=Table("wrong"), negative_table=wrong)
    pairs = np.concatenate([wrong_pairs(batch) for batch in batches(seeds, np.arange(4), 500)])
    np.testing.assert_array_equal(pairs.sum(axis=1), 29)
    assert_uniform(pairs[:, 0], 30)


def test_strict_negatives_are_equally_likely_among_those_that_are_no_edges() -> None:
    graph = of_pairs(20, [(0, d) for d in range(1, 12)])
    seeds = LinkSeeds(graph, links_of(graph, [(0, 3)]), negatives=Uniform(10, strict=True))
    pairs = np.concatenate([wrong_pairs(batch) for batch in batches(seeds, np.arange(1), 300)])
    assert_uniform(pairs[:, 1] - 12, 8)


# Node 0 leads to all but a few of 400: 64 attempts nearly never find one, and those that are left are counted.
def test_strict_negatives_are_equally_likely_where_hardly_any_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge_lookup, "_MOST_NODES", 150)  # a graph that is looked through in parts
    graph = of_pairs(400, [(0, d) for d in range(1, 397)])
    table = links_of(graph, [(0, 3), (1, 2)])
    seeds = LinkSeeds(graph, table, negatives=Uniform(40, strict=True))
    made = batches(seeds, np.arange(2), 20)
    pairs = np.concatenate([wrong_pairs(batch) for batch in made])
    assert_uniform(pairs[pairs[:, 0] == 0][:, 1] - 397, 3)
    oracle = LinkOracle(graph=graph, table=table, negatives=Uniform(40, strict=True))
    assert as_lists(made[1]) == oracle.batch(BatchId(epoch=1, index=1), [0, 1])


def test_strict_pairs_are_equally_likely_where_hardly_any_is_left() -> None:
    free = {(3, 1), (50, 1), (0, 7), (49, 48), (59, 59)}
    # Some edges are there twice.
    graph = of_pairs(
        60, [(s, d) for s in range(60) for d in range(60) if (s, d) not in free] + [(4, 1), (9, 8)] * 5
    )
    table = links_of(graph, [(1, 3)] * 10)
    seeds = LinkSeeds(graph, table, negatives=Binary(1.0, strict=True))
    pairs = np.concatenate([wrong_pairs(batch) for batch in batches(seeds, np.arange(10), 60)])
    ranks = [sorted(free).index(pair) for pair in map(tuple, pairs.tolist())]
    assert_uniform(np.array(ranks), 5)


@pytest.mark.parametrize("negatives", STRICT, ids=str)
@pytest.mark.parametrize("max_degree", [5, 40, 300])
def test_strict_negatives_are_no_edges(negatives: Any, max_degree: int) -> None:
    graph = random_graph(60, max_degree, seed=max_degree)
    edges = edges_of(graph)
    table = links_of(graph, edges[:: max(len(edges) // 50, 1)])
    pairs = np.concatenate(
        [
            wrong_pairs(batch)
            for batch in batches(LinkSeeds(graph, table, negatives=negatives), np.arange(table.num_rows), 5)
        ]
    )
    assert not set(edges) & set(map(tuple, pairs.tolist()))
    if isinstance(negatives, Uniform):
        assert (pairs[:, 0] != pairs[:, 1]).all()


def test_edges_that_are_not_in_the_graph_may_be_strict_negatives() -> None:
    graph = of_pairs(3, [(0, 1)])
    table = links_of(graph, [(0, 1), (0, 2)])  # (0, 2) is held out
    batch = LinkSeeds(graph, table, negatives=Uniform(1, strict=True)).of(FIRST, np.array([0]))
    assert wrong_pairs(batch).tolist() == [[0, 2]]


@pytest.mark.parametrize("most_bytes", [1, 150, 1 << 20])  # marks of one source at a time, of two, of all
@pytest.mark.parametrize("negatives", STRICT, ids=str)
def test_those_that_are_looked_for_are_those_of_the_plain_twin(
    negatives: Any, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_lookup, "_MOST_BYTES", most_bytes)
    # Two of sixty destinations are free of each source: one negative of nine is no edge by none of its attempts.
    is_edge = np.ones((60, 60), dtype=bool)
    for step in (7, 31):
        is_edge[(np.arange(60) + step) % 60, np.arange(60)] = False
    indptr = np.concatenate([[0], np.cumsum(is_edge.sum(axis=1))])
    graph = CscGraph(indptr=indptr, indices=np.nonzero(is_edge)[1].copy())
    table = links_of(graph, [(node, node) for node in range(60)])
    rows = list(range(0, 60, 3))
    expected = LinkOracle(graph=graph, table=table, negatives=negatives).batch(FIRST, rows)
    assert as_lists(LinkSeeds(graph, table, negatives=negatives).of(FIRST, np.array(rows))) == expected


def test_a_source_without_strict_negatives_is_named() -> None:
    graph = of_pairs(4, [(2, 0), (2, 1), (2, 3), (1, 1)])
    seeds = LinkSeeds(graph, links_of(graph, [(1, 1), (2, 0)]), negatives=Uniform(2, strict=True))
    assert len(seeds.of(FIRST, np.array([0])).nodes)
    with pytest.raises(
        ConfigError,
        match=r"^node 2 of type 'node' has an edge of node:to:node to every other node of type 'node', so that none of "
        r"its negatives can be strict: pass strict=False$",
    ):
        seeds.of(FIRST, np.array([0, 1]))


def test_a_full_relation_has_no_strict_pairs() -> None:
    graph = of_pairs(2, [(0, 0), (0, 1), (1, 0), (1, 1)])
    seeds = LinkSeeds(graph, links_of(graph, [(1, 1)]), negatives=Binary(1.0, strict=True))
    with pytest.raises(ConfigError, match=r"^every pair of nodes is an edge of node:to:node"):
        seeds.of(FIRST, np.array([0]))


def test_a_node_of_another_type_may_have_the_number_of_its_negative() -> None:
    graph = HeteroGraph(
        num_nodes={"author": 1, "paper": 1},
        relations={
            WRITES: CscGraph(indptr=np.array([0, 0]), indices=np.array([], dtype=np.int32), num_sources=1)
        },
    )
    table = links_of(graph.relations[WRITES], [(0, 0)], relation=WRITES, reverse_relation=None)
    batch = LinkSeeds(graph, table, negatives=Uniform(2, strict=True)).of(FIRST, np.array([0]))
    assert batch.nodes.tolist() == [0, 1]
    assert batch.links is not None
    assert batch.links.pairs.tolist() == [[0, 0]] * 3


def test_batches_are_the_same_on_every_machine_and_in_every_version() -> None:
    graph = of_pairs(100, [(i, i * 7 % 100) for i in range(100)])
    table = links_of(graph, [(i, i * 7 % 100) for i in range(20)])
    batch = LinkSeeds(graph, table, negatives=Uniform(2), exclude="reverse", seed=3).of(
        BatchId(epoch=2, index=5), np.array([4, 0, 11])
    )
    assert as_lists(batch) == {
        "nodes": [0, 4, 6, 11, 17, 21, 28, 61, 71, 77],
        "times": None,
        "pairs": [[1, 6], [0, 0], [3, 9], [1, 7], [1, 5], [0, 8], [0, 2], [3, 9], [3, 4]],
        "labels": [1.0] * 3 + [0.0] * 6,
        "edge_ids": [4, 0, 11, *[-1] * 6],
        "num_positives": 3,
        "excluded": [[0, 28, 77]],
    }


def test_a_batch_is_a_function_of_its_address_and_rows_in_any_thread() -> None:
    graph = random_graph(300, 20)
    edges = edges_of(graph)
    table = links_of(graph, edges[::7], times=np.arange(len(edges[::7])))
    settings: dict[str, Any] = {"exclude": "reverse", "duplicates": True, "seed": 2, "has_times": True}
    seeds = LinkSeeds(graph, table, negatives=Uniform(3, strict=True), **settings)
    others = LinkSeeds(graph, table, negatives=Uniform(3, strict=True), **settings)
    rows = [np.random.default_rng(i).permutation(table.num_rows)[:64] for i in range(8)]
    addresses = [BatchId(epoch=i // 3, index=i % 3) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        parallel = list(pool.map(seeds.of, addresses * 4, rows * 4))
    alone = [as_lists(others.of(*each)) for each in reversed(list(zip(addresses, rows, strict=True)))]
    assert list(map(as_lists, parallel)) == alone[::-1] * 4
    # Another batch, epoch or seed draws others.
    keyed = {
        str(
            wrong_pairs(
                LinkSeeds(graph, table, negatives=Uniform(3), seed=seed).of(address, rows[0])
            ).tolist()
        )
        for seed in (0, 1)
        for address in addresses
    }
    assert len(keyed) == 16


def test_the_negatives_of_a_row_do_not_depend_on_the_rows_beside_it() -> None:
    graph = random_graph(100, 5)
    table = links_of(graph, [(i, i + 1) for i in range(20)])
    seeds = LinkSeeds(graph, table, negatives=Uniform(4))
    alone = wrong_pairs(seeds.of(FIRST, np.array([7]))).tolist()
    assert wrong_pairs(seeds.of(FIRST, np.array([3, 7, 5]))).tolist()[4:8] == alone


def test_an_edge_that_is_not_in_the_graph_excludes_nothing() -> None:
    graph = of_pairs(4, [(0, 1), (1, 0)])
    seeds = LinkSeeds(graph, links_of(graph, [(2, 3), (0, 1)]), negatives=Uniform(1), exclude="reverse")
    assert seeds.of(FIRST, np.array([0])).excluded == ()
    assert [array.tolist() for array in seeds.of(FIRST, np.array([0, 1])).excluded] == [[0, 1]]


def test_a_held_out_edge_excludes_its_duplicates() -> None:
    graph = of_pairs(4, [(0, 1), (0, 1), (2, 1)])
    table = HeldLinks(pairs=np.array([[0, 1, -1, -1]]))
    seeds = LinkSeeds(graph, table, negatives=Uniform(1), exclude="self", duplicates=True)
    assert [array.tolist() for array in seeds.of(FIRST, np.array([0])).excluded] == [[0, 1]]


def test_duplicates_of_an_edge_and_of_the_one_that_leads_back_are_found() -> None:
    graph = of_pairs(4, [(0, 1), (0, 1), (1, 0), (1, 0), (1, 0), (2, 1), (2, 0)])
    for exclude, expected in (("self", {(0, 1): 2}), ("reverse", {(0, 1): 2, (1, 0): 3})):
        seeds = LinkSeeds(
            graph,
            links_of(graph, [(0, 1)]),
            negatives=Uniform(1),
            exclude=exclude,  # type: ignore[arg-type]
            duplicates=True,
        )
        (positions,) = seeds.of(FIRST, np.array([0])).excluded
        assert Counter(edges_of(graph)[at] for at in positions.tolist()) == expected


def test_more_duplicates_than_pairs_are_found() -> None:
    graph = of_pairs(4, [(0, 1)] * 50 + [(2, 1)] * 3)
    seeds = LinkSeeds(graph, links_of(graph, [(0, 1)]), negatives=Uniform(1), exclude="self", duplicates=True)
    assert seeds.of(FIRST, np.array([0])).excluded[0].tolist() == list(range(50))


def test_in_batch_negatives_are_the_destinations_of_the_others_once() -> None:
    graph = of_pairs(10, [])
    table = links_of(graph, [(0, 5), (1, 6), (0, 7), (2, 5)], times=np.array([4, 4, 5, 4]))
    plain = LinkSeeds(graph, table, negatives=InBatch()).of(FIRST, np.arange(4))
    # (0, 5) and (0, 7) are positive; what 0 has comes with the first edge of 0.
    assert wrong_pairs(plain).tolist() == [[0, 6], [1, 5], [1, 7], [2, 6], [2, 7]]
    timed = LinkSeeds(graph, table, negatives=InBatch(), has_times=True).of(FIRST, np.arange(4))
    assert wrong_pairs(timed).tolist() == [[0, 6], [1, 5], [1, 7], [0, 6], [2, 6], [2, 7]]
    assert timed.times is not None
    assert timed.times.tolist() == [4, 4, 5, 4, 4, 4, 5, 4, 4, 4, 4, 5, 4, 4]


def test_a_batch_without_rows_is_empty() -> None:
    graph = random_graph(10, 3)
    table = links_of(
        graph, [(1, 2)], negatives=np.zeros((1, 2), dtype=np.int64), times=np.zeros(1, dtype=np.int64)
    )
    for negatives in (Uniform(2, strict=True), Binary(strict=True), InBatch(), Table("own")):
        for has_times in (False, True):
            seeds = LinkSeeds(
                graph, table, negatives=negatives, exclude="self", duplicates=True, has_times=has_times
            )
            batch = seeds.of(FIRST, np.array([], dtype=np.int64))
            assert len(batch.nodes) == 0
            assert batch.links is not None
            assert batch.links.pairs.shape == (0, 2)


@pytest.mark.parametrize("limit", [100, 2**61])
def test_distinct_ids_are_ranked_however_large_they_may_be(limit: int) -> None:
    ids = np.random.default_rng(0).integers(0, 100, 300)
    nodes, ranks = distinct(ids, limit)
    expected, inverse = np.unique(ids, return_inverse=True)
    np.testing.assert_array_equal(nodes, expected)
    np.testing.assert_array_equal(ranks, inverse)
    assert distinct(np.array([limit - 1, 0, limit - 1]), limit)[0].tolist() == [0, limit - 1]


@pytest.mark.parametrize("most_edges", [1, 3, 1000])
def test_lists_are_looked_through_in_portions_alike(most_edges: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(40, 12)
    edges = edges_of(graph)
    pairs = np.array([*edges[::5], *[(i, 39 - i) for i in range(40)]])
    monkeypatch.setattr(edge_lookup, "_MOST_EDGES", most_edges)
    monkeypatch.setattr(edge_lookup, "_MOST_NODES", 7)
    found = edge_lookup.are_edges(graph, pairs[:, 0], pairs[:, 1])
    assert found.tolist() == [tuple(pair) in edges for pair in pairs.tolist()]
    between = edge_lookup.edges_between(graph, pairs[:, 0], pairs[:, 1])
    wanted = set(map(tuple, pairs.tolist()))
    assert between.tolist() == [at for at, edge in enumerate(edges) if edge in wanted]
    portions = list(edge_lookup.all_portions(graph))
    assert sum(int(portion.degrees.sum()) for portion in portions) == graph.num_edges
    assert all(portion.degrees.sum() <= most_edges for portion in portions)


ON_DISK = random_graph(400, 60)


@pytest.fixture(scope="module")
def on_ssd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    """`ON_DISK`, read page by page."""
    path = tmp_path_factory.mktemp("links") / "data"
    with Dataset.create(path, name="d", num_nodes=400, num_classes=2) as writer:
        with writer.indptr() as column:
            column.append(ON_DISK.indptr)
        with writer.indices(ON_DISK.num_edges, "int32") as column:
            column.append(ON_DISK.indices)
        with writer.features(1, "float32") as column:
            column.append(np.zeros((400, 1), dtype=np.float32))
        writer.labels(np.zeros(400, dtype=np.int64))
        none = np.empty(0, dtype=np.int64)
        writer.splits(train=np.arange(400), valid=none, test=none)
    with open_topology(Dataset.open(path), max_bytes=0) as paged:
        yield paged


@pytest.mark.parametrize("negatives", STRICT, ids=str)
def test_edges_on_the_ssd_give_the_same_batches(on_ssd: Topology, negatives: Any) -> None:
    table = links_of(ON_DISK, edges_of(ON_DISK)[::90])
    settings: dict[str, Any] = {"negatives": negatives, "exclude": "reverse", "duplicates": True}
    rows = np.arange(table.num_rows)
    expected = batches(LinkSeeds(ON_DISK, table, **settings), rows, 2)
    found = batches(LinkSeeds(on_ssd, table, **settings), rows, 2)
    assert list(map(as_lists, found)) == list(map(as_lists, expected))


NEGATIVES = [
    Uniform(1),
    Uniform(5, strict=True),
    Binary(3.0, strict=True),
    InBatch(),
    Table("own"),
    Table("other"),
    None,
]


@pytest.mark.parametrize("negatives", NEGATIVES, ids=str)
@pytest.mark.parametrize("has_times", [False, True])
def test_what_a_call_takes_is_counted(negatives: Any, has_times: bool) -> None:
    graph = random_graph(5000, 10)
    random = np.random.default_rng(0)
    table = HeldLinks(
        pairs=np.concatenate(
            [random.integers(0, 5000, (2000, 2)), np.tile(np.arange(2000)[:, None], 2)], axis=1
        ),
        labels=np.ones(2000, dtype=np.float32),
        times=np.arange(2000),
        negatives=random.integers(0, 5000, (2000, 7)),
    )
    seeds = LinkSeeds(
        graph,
        table,
        negatives=negatives,
        exclude="reverse",
        duplicates=True,
        has_times=has_times,
        negative_table=table if negatives == Table("other") else None,
    )
    rows = random.permutation(2000)[:700]
    seeds.of(FIRST, rows)
    tracemalloc.start()
    batch = seeds.of(FIRST, rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert batch.links is not None
    assert peak < seeds.call_bytes(700) < 8 * peak


def test_lists_on_the_ssd_are_counted_where_they_are_looked_through(on_ssd: Topology) -> None:
    table = HeldLinks(pairs=np.zeros((1, 4), dtype=np.int64))
    lists = on_ssd.sources.list_bytes(on_ssd.num_edges)
    plain = LinkSeeds(on_ssd, table, negatives=Uniform(1), exclude="self").call_bytes(10)
    strict = LinkSeeds(on_ssd, table, negatives=Uniform(1, strict=True)).call_bytes(10)
    parallel = LinkSeeds(on_ssd, table, negatives=Uniform(1), exclude="self", duplicates=True).call_bytes(10)
    assert strict == parallel == plain + lists > plain


@pytest.mark.parametrize("own", [0, 1])
def test_of_two_relations_the_longer_lists_are_counted(on_ssd: Topology, own: int) -> None:
    names: list[Relation] = [("node", "to", "node"), ("node", "back", "node")]
    graph = HeteroGraph(
        num_nodes={"node": on_ssd.num_nodes}, relations=dict(zip(names, [on_ssd, ON_DISK], strict=True))
    )
    table = HeldLinks(
        pairs=np.zeros((1, 4), dtype=np.int64), relation=names[own], reverse_relation=names[1 - own]
    )
    settings: dict[str, Any] = {"negatives": Uniform(1), "exclude": "reverse"}
    plain, parallel = (
        LinkSeeds(graph, table, duplicates=duplicates, **settings).call_bytes(10)
        for duplicates in (False, True)
    )
    assert parallel == plain + on_ssd.sources.list_bytes(on_ssd.num_edges) > plain


def test_a_damaged_list_is_named_and_not_read() -> None:
    graph = CscGraph(
        indptr=np.array([0, 9, 2, 3]), indices=np.array([0, 1, 2], dtype=np.int32), validate=False
    )
    with pytest.raises(GraphError, match=r"indptr\[0:2\] = \[0, 9\], the in-edges of node 0"):
        edge_lookup.are_edges(graph, np.array([1]), np.array([0]))


PAPERS = {"paper": 5, "author": 3, "nobody": 0}
FROM_NOBODY: Relation = ("nobody", "reads", "paper")
TO_NOBODY: Relation = ("paper", "for", "nobody")


def typed(relation: Relation, **columns: Any) -> HeldLinks:
    return HeldLinks(
        relation=relation, reverse_relation=None, pairs=np.zeros((1, 4), dtype=np.int64), **columns
    )


@pytest.mark.parametrize(
    ("table", "settings", "message"),
    [
        (
            typed(("paper", "about", "paper")),
            {"negatives": Uniform(1, strict=True)},
            (
                "uniform:1,strict: strict negatives are no edges of paper:about:paper, and the graph has no such "
                "relation; leave strict out"
            ),
        ),
        (
            typed(("paper", "about", "paper")),
            {"negatives": Uniform(1), "exclude": "self"},
            "exclude='self': the graph has no edges of paper:about:paper to leave out; pass exclude='none'",
        ),
        (
            typed(TO_NOBODY),
            {"negatives": Uniform(1)},
            "uniform:1 draws negatives from an empty type: 'nobody' of paper:for:nobody has no nodes",
        ),
        (
            typed(FROM_NOBODY),
            {"negatives": Binary()},
            "binary:1.0 draws negatives from an empty type: 'nobody' of nobody:reads:paper has no nodes",
        ),
        (
            typed(WRITES),
            {"negatives": None},
            (
                "the link table of author:writes:paper has no labels, and no negatives are drawn, so that every "
                "pair is right: pass negatives such as Uniform(1), or prepare it with labels"
            ),
        ),
        (
            typed(WRITES),
            {"negatives": Uniform(1), "has_times": True},
            (
                "the link table of author:writes:paper has no times, and sampling by time needs a time for each pair: "
                "prepare it with --edge-time"
            ),
        ),
        (
            typed(WRITES),
            {"negatives": Table("own")},
            "the link table of author:writes:paper has no negatives of its own; name another table, or pass Uniform(k)",
        ),
        (
            typed(WRITES),
            {"negatives": Table("other"), "negative_table": typed(CITES)},
            (
                "the table of negatives is of paper:cites:paper, where edges of author:writes:paper are predicted; it "
                "must lead from 'author' to 'paper'"
            ),
        ),
        (
            typed(WRITES),
            {
                "negatives": Table("other"),
                "negative_table": HeldLinks(relation=WRITES, pairs=np.zeros((0, 4), dtype=np.int64)),
            },
            "the table of negatives of author:writes:paper is empty; name one with rows, or pass Uniform(k)",
        ),
        (
            typed(WRITES),
            {"negatives": Uniform(1), "exclude": "reverse"},
            (
                "exclude='reverse': the relation author:writes:paper has no reverse; "
                "prepare it with --add-reverse, or pass exclude='self'"
            ),
        ),
        (
            HeldLinks(relation=WRITES, reverse_relation=WRITTEN, pairs=np.zeros((1, 4), dtype=np.int64)),
            {"negatives": Uniform(1), "exclude": "reverse"},
            (
                "the reverse relation of the link table is paper:by:author, which the graph does not have; it has "
                "paper:cites:paper, author:writes:paper, nobody:reads:paper, paper:for:nobody"
            ),
        ),
        (
            typed(WRITES),
            {"negatives": Uniform(1), "exclude": "pairs"},
            "exclude='pairs' is not one of 'none', 'self', 'reverse' in this version",
        ),
        (
            typed(WRITES),
            {"negatives": Uniform(1), "duplicates": True},
            "duplicates are excluded together with the edges themselves: pass exclude='self' or 'reverse' as well",
        ),
        (typed(WRITES), {"negatives": Uniform(1), "seed": 1.5}, "seed is 1.5; it must be an integer"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(
    table: HeldLinks, settings: dict[str, Any], message: str
) -> None:
    graph = typed_graph(PAPERS, [CITES, WRITES, FROM_NOBODY, TO_NOBODY], max_degree=2)
    with pytest.raises(ConfigError) as caught:
        LinkSeeds(graph, table, **settings)
    assert str(caught.value) == message


@pytest.mark.parametrize("negatives", [Uniform(2), Binary(), InBatch()])
def test_a_table_of_a_relation_that_is_only_predicted_has_the_pairs_of_one_in_the_graph(
    negatives: Any,
) -> None:
    """The graph's edges decide nothing, unless negatives are strict or edges are left out."""
    graph = typed_graph(PAPERS, [CITES, WRITES], max_degree=2)
    pairs = np.array([[0, 1, -1, -1], [2, 0, -1, -1], [1, 1, -1, -1]])
    known, free = (
        LinkSeeds(graph, HeldLinks(relation=relation, pairs=pairs), negatives=negatives).of(
            BatchId(epoch=0, index=3), np.arange(3)
        )
        for relation in (WRITES, ("author", "will_write", "paper"))
    )
    np.testing.assert_array_equal(known.nodes, free.nodes)
    np.testing.assert_array_equal(known.links.pairs, free.links.pairs)
    assert free.excluded == ()


def test_a_batch_of_too_many_pairs_is_refused() -> None:
    graph = of_pairs(3, [(0, 1)])
    seeds = LinkSeeds(graph, links_of(graph, [(0, 1)] * 10), negatives=Uniform(2**27))
    with pytest.raises(
        ConfigError,
        match=r"^a batch of 10 edges with uniform:134217728 has 1,342,177,280 negatives, and may have 1,073,741,823 "
        r"pairs: lower batch_size or the number of negatives$",
    ):
        seeds.of(FIRST, np.arange(10))


def test_parallel_edges_of_the_reverse_relation_are_left_out_too() -> None:
    writes, written = ("author", "writes", "paper"), ("paper", "rev_writes", "author")
    graph = HeteroGraph(
        num_nodes={"author": 4, "paper": 4},
        relations={
            writes: of_pairs(4, [(0, 1), (0, 1), (2, 1)]),
            written: of_pairs(4, [(1, 0)] * 3 + [(1, 2)]),
        },
    )
    table = links_of(
        graph.relations[writes],
        [(0, 1)],
        relation=writes,
        reverse=graph.relations[written],
        reverse_relation=written,
    )
    seeds = LinkSeeds(graph, table, negatives=Uniform(1), exclude="reverse", duplicates=True)
    left_out = [array.tolist() for array in seeds.of(FIRST, np.array([0])).excluded]
    assert left_out == [[0, 1], [0, 1, 2]]  # of each relation all edges between the two, and no other


def test_a_strict_pair_may_lead_to_its_own_source_where_that_is_no_edge() -> None:
    graph = of_pairs(4, [(0, 1)])
    seeds = LinkSeeds(graph, links_of(graph, [(0, 1)]), negatives=Binary(400.0, strict=True))
    drawn = Counter(map(tuple, wrong_pairs(seeds.of(FIRST, np.array([0]))).tolist()))
    assert set(drawn) == {(source, dst) for source in range(4) for dst in range(4)} - {(0, 1)}
