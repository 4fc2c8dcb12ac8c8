"""From a typed source to a dataset directory that holds the same, or to nothing at all."""

import json
from dataclasses import replace

import numpy as np
import pytest
from convert_helpers import ListEdges, expected_neighbors
from typed_sources import CITES, IN, WRITES, expected_relation, neighbors, rows_of, typed_graph

from gloader.convert.csc import external_csc
from gloader.convert.options import EdgeRules, PrepareOptions
from gloader.convert.prepare import prepare
from gloader.convert.readers.arrays import array_features
from gloader.convert.source import MeanOf, NodeSource, RelationSource
from gloader.dataset import Dataset
from gloader.errors import BudgetError, ConfigError, GloaderError, GraphError, ShapeError, SourceError

MB = 10**6
SMALL = PrepareOptions(memory_budget_bytes=40 * MB)


class Steps:
    def __init__(self):
        self.seen = []

    def advance(self, stage, done, total, unit):
        self.seen.append((stage, done, total, unit))


def run(source, tmp_path, options=SMALL, **keywords):
    report = prepare(source, tmp_path / "out", options, **keywords)
    return Dataset.open(tmp_path / "out"), report


def test_a_typed_dataset_holds_what_the_source_held(tmp_path):
    graph, steps = typed_graph(), Steps()
    dataset, report = run(graph.source(), tmp_path, progress=steps)
    assert dataset.kind == "hetero"
    assert dataset.node_types == ("paper", "author", "place")
    assert dataset.relations == (WRITES, CITES, IN)
    for relation, edges in graph.edges.items():
        count, weighted = graph.num_nodes[relation[2]], relation in graph.weighted
        assert neighbors(dataset, relation) == expected_relation(edges, count, weighted=weighted)
        assert dataset.edge_tables[relation].num_sources == graph.num_nodes[relation[0]]
    for name, rows in graph.features.items():
        assert np.array_equal(rows_of(dataset, name), rows)
    assert not dataset.node_tables["author"].has_features
    assert dataset.labelled.name == "paper"
    assert np.array_equal(dataset.labels, graph.labels)
    for part, ids in graph.splits.items():
        assert np.array_equal(getattr(dataset, part), ids)
    assert report.relations["author:writes:paper"].num_edges == 80
    assert report.node_types["author"].feature_dim == 0
    assert report.dataset_bytes == sum(
        file.stat().st_size for file in (tmp_path / "out").rglob("*") if file.is_file()
    )
    assert ("sorting edges of author:writes:paper", 80, 80, "edges") in steps.seen
    assert ("writing features of place", 40, 40, "bytes") in steps.seen


def test_reverses_stand_behind_all_others(tmp_path):
    graph = typed_graph()
    options = replace(SMALL, add_reverse=True, symmetrize=("cites",))
    dataset, _ = run(graph.source(), tmp_path, options)
    written, located = ("paper", "rev_writes", "author"), ("place", "rev_in", "author")
    assert dataset.relations == (WRITES, CITES, IN, written, located)  # cites has both directions
    for relation, given in ((written, WRITES), (located, IN)):
        back = [(edge[1], edge[0], *edge[2:]) for edge in graph.edges[given]]
        expected = expected_relation(back, graph.num_nodes["author"], weighted=given in graph.weighted)
        assert neighbors(dataset, relation) == expected
    both = expected_neighbors(graph.edges[CITES], graph.num_nodes["paper"], EdgeRules(symmetrize=True))
    assert neighbors(dataset, CITES) == both
    assert dataset.edge_tables[written].has_weights
    recorded = json.loads((tmp_path / "out" / "dataset.json").read_text())["metadata"]
    assert recorded["source"] == "made:tiny"
    assert recorded["options"] == {
        "symmetrize": ["paper:cites:paper"],
        "add_reverse": True,
        "self_loops": False,
        "deduplicate": False,
        "dtype": "float32",
        "order": "none",
    }


def test_a_relation_within_a_type_gets_a_reverse_where_it_is_not_symmetrized(tmp_path):
    dataset, _ = run(typed_graph().source(), tmp_path, replace(SMALL, add_reverse=True))
    assert dataset.relations[3:] == (
        ("paper", "rev_writes", "author"),
        ("paper", "rev_cites", "paper"),
        ("place", "rev_in", "author"),
    )


def test_reverses_that_are_there_get_none_themselves(tmp_path):
    graph = typed_graph()
    back = [(edge[1], edge[0]) for edge in graph.edges[WRITES]]
    graph.edges[("paper", "rev_writes", "author")] = back
    source = graph.source()
    cites = replace(source.relations[1], is_symmetric=True)
    source = replace(source, relations=(source.relations[0], cites, *source.relations[2:]))
    dataset, _ = run(source, tmp_path, replace(SMALL, add_reverse=True))
    assert dataset.relations == (
        WRITES, CITES, IN, ("paper", "rev_writes", "author"), ("place", "rev_in", "author")
    )  # fmt: skip


def test_edges_that_do_not_fit_are_spilled_and_are_the_same(tmp_path, monkeypatch):
    whole, _ = run(typed_graph().source(), tmp_path)
    for name, value in (("_MIN_CHUNK_EDGES", 7), ("PIECE_BYTES", 64), ("_BUCKET_NODES", 4)):
        monkeypatch.setattr(external_csc, name, value)
    monkeypatch.setattr("gloader.convert.csc.sorted_ranges.PIECE_BYTES", 64)
    monkeypatch.setattr("gloader.convert.prepare_plan.WRITER_BYTES", 0)
    options = PrepareOptions(memory_budget_bytes=2500)
    report = prepare(typed_graph().source(), tmp_path / "small", options)
    assert report.spilled_bytes > 0
    small = Dataset.open(tmp_path / "small")
    assert all(neighbors(small, relation) == neighbors(whole, relation) for relation in whole.relations)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_features_are_derived_from_what_is_stored(tmp_path, dtype):
    graph = typed_graph()
    source = graph.source()
    paper, author, place = source.nodes
    author = replace(author, features=MeanOf(relation=WRITES))
    place = replace(place, features=MeanOf(relation=IN))
    # Places before the authors that they are made of: the order of the types is not that of the work.
    source = replace(source, nodes=(place, author, paper))
    steps = Steps()
    dataset, report = run(source, tmp_path, replace(SMALL, dtype=dtype), progress=steps)
    papers = rows_of(dataset, "paper")
    authors = mean_rows([(p, a) for a, p, _ in graph.edges[WRITES]], papers, 20)
    tolerance = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2, "int8": 2e-2}[dtype]
    assert np.allclose(rows_of(dataset, "author"), authors, atol=tolerance)
    places = mean_rows(graph.edges[IN], rows_of(dataset, "author"), 5)
    assert np.allclose(rows_of(dataset, "place"), places, atol=tolerance)
    assert dataset.node_tables["author"].feature_dtype == dtype
    assert report.node_types["author"].is_derived
    assert ("averaging features of author", 320, 320, "bytes") in steps.seen


def mean_rows(edges, rows, count):
    sums, degrees = np.zeros((count, rows.shape[1])), np.zeros(count)
    for source, row in edges:
        sums[row] += rows[source]
        degrees[row] += 1
    return sums / np.maximum(degrees, 1)[:, None]


def test_a_type_and_a_relation_may_be_empty(tmp_path):
    graph = typed_graph()
    graph.num_nodes["place"] = 0
    graph.features["place"] = np.empty((0, 2), np.float32)
    graph.edges[IN] = []
    dataset, _ = run(graph.source(), tmp_path, replace(SMALL, add_reverse=True))
    assert dataset.node_tables["place"].num_nodes == 0
    assert dataset.edge_tables[IN].num_edges == 0
    assert dataset.edge_tables["place", "rev_in", "author"].num_edges == 0


def without(source, number):
    return tuple(nodes for at, nodes in enumerate(source.nodes) if at != number)


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (
            {"relations": (RelationSource(relation=WRITES, edges=ListEdges([])),)},
            {"symmetrize": True},
            ConfigError,
            (
                "--symmetrize is for relations within a type, and made:tiny has none; --add-reverse adds a relation "
                "back to each"
            ),
        ),
        (
            {},
            {"symmetrize": ("writes",)},
            ConfigError,
            (
                "--symmetrize author:writes:paper: the relation runs from 'author' "
                "to 'paper', and only one within a type has both directions; --add-reverse adds a relation back"
            ),
        ),
        (
            {},
            {"symmetrize": ("knows",)},
            ConfigError,
            (
                "relation 'knows' is none of made:tiny's relations; write one "
                "of: author:writes:paper, paper:cites:paper, author:in:place"
            ),
        ),
        (
            {},
            {"self_loops": True},
            ConfigError,
            (
                "--self-loops joins a node with itself, which a relation between two "
                "types such as author:writes:paper cannot; leave it out"
            ),
        ),
        (
            {},
            {"order": "degree"},
            ConfigError,
            ("--order degree is for graphs of one node type; made:tiny has 3: leave it out"),
        ),
        (
            {},
            {"dtype": "float8"},
            ConfigError,
            ("features cannot be stored as 'float8'; allowed: float32, float16, bfloat16, int8"),
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, change, options, error, message):
    with pytest.raises(error) as raised:
        run(typed_graph().source(**change), tmp_path, replace(SMALL, **options))
    assert str(raised.value) == message
    assert not (tmp_path / "out").exists()


def relation(edges, name=WRITES):
    return (RelationSource(relation=name, edges=ListEdges(edges)),)


def types(**changes):
    graph = typed_graph()
    return tuple(
        replace(nodes, **changes[nodes.name]) if nodes.name in changes else nodes
        for nodes in graph.source().nodes
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"relations": relation([(0, 0), (20, 1)])},
            GraphError,
            (
                "made:tiny, relation author:writes:paper: edge 1 "
                "(counted from 0) has source 20; ids of sources must lie in 0..19"
            ),
        ),
        (
            {"relations": relation([(0, 30)])},
            GraphError,
            (
                "made:tiny, relation author:writes:paper: edge 0 (counted "
                "from 0) has destination 30; ids of destinations must lie in 0..29"
            ),
        ),
        (
            {"relations": relation([], ("author", "writes", "book"))},
            GraphError,
            ("relation author:writes:book names the node type 'book'; there are 'paper', 'author', 'place'"),
        ),
        ({"relations": relation([]) * 2}, GraphError, "relations 'author__writes__paper' is there twice"),
        (
            {"nodes": types(place={"num_nodes": 6})},
            ShapeError,
            ("made:tiny, node type 'place': features have 5 rows for 6 nodes"),
        ),
        (
            {"nodes": types(author={"name": "paper"})},
            SourceError,
            "made:tiny has the node type 'paper' twice",
        ),
        (
            {"labelled": "author"},
            ShapeError,
            ("made:tiny, node type 'author': labels have shape (30,); they must be (20,)"),
        ),
        (
            {"labelled": "book"},
            SourceError,
            "made:tiny has no node type 'book'; there are paper, author, place",
        ),
        (
            {"nodes": types(author={"features": MeanOf(relation=CITES)})},
            SourceError,
            (
                "made:tiny: features of 'author' "
                "are to be means over paper:cites:paper, which is no relation between it and another type"
            ),
        ),
        (
            {"nodes": types(place={"features": MeanOf(relation=IN)})},
            SourceError,
            ("made:tiny: features of 'place' are to be means over 'author', which has no features"),
        ),
    ],
)
def test_parts_that_contradict_each_other_are_refused_and_leave_nothing(tmp_path, change, error, message):
    with pytest.raises(error) as raised:
        run(typed_graph().source(**change), tmp_path)
    assert str(raised.value) == message
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_two_relations_have_is_not_unique(tmp_path):
    graph = typed_graph()
    graph.edges[("author", "cites", "author")] = [(0, 1)]
    with pytest.raises(
        ConfigError, match="'cites' names several of made:tiny's relations; write one of: paper:cites"
    ):
        run(graph.source(), tmp_path, replace(SMALL, symmetrize=("cites",)))
    dataset, _ = run(graph.source(), tmp_path, replace(SMALL, symmetrize=("author:cites:author",)))
    assert neighbors(dataset, ("author", "cites", "author"))[:2] == [[(1, 1.0)], [(0, 1.0)]]


def test_a_budget_that_is_too_small_is_refused(tmp_path):
    with pytest.raises(BudgetError, match=r"preparing made:tiny needs .* Give memory_budget="):
        run(typed_graph().source(), tmp_path, replace(SMALL, memory_budget_bytes=MB))


def test_a_stream_that_breaks_leaves_nothing(tmp_path):
    short = array_features(np.full((30, 4), np.nan, np.float32))
    source = typed_graph().source()
    nodes = (NodeSource(name="paper", num_nodes=30, features=short), *source.nodes[1:])
    with pytest.raises(GloaderError):  # int8 takes no NaN
        run(replace(source, nodes=nodes), tmp_path, replace(SMALL, dtype="int8"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"symmetrize": ("cites",)},
            r"--symmetrize cites is for graphs of several .* write --symmetrize alone",
        ),
        (
            {"add_reverse": True},
            r"--add-reverse is for graphs of several node types; .*: write --symmetrize$",
        ),
    ],
)
def test_options_for_several_types_are_refused_for_one(tmp_path, options, message):
    from convert_helpers import write_folder

    from gloader.convert.options import SourceOptions
    from gloader.convert.sources.npy import open_npy

    write_folder(tmp_path / "one")
    with pytest.raises(ConfigError, match=message):
        run(open_npy(str(tmp_path / "one"), SourceOptions()), tmp_path, replace(SMALL, **options))


def test_the_command_prepares_a_typed_graph(tmp_path, capsys):
    import torch

    from gloader.cli.main import main

    graph = typed_graph()
    stores = {
        "paper": {"x": torch.from_numpy(graph.features["paper"]), "y": torch.from_numpy(graph.labels)},
        "author": {"num_nodes": 20},
        CITES: {"edge_index": torch.tensor(graph.edges[CITES]).T},
        WRITES: {"edge_index": torch.tensor([edge[:2] for edge in graph.edges[WRITES]]).T},
    }
    torch.save(stores, tmp_path / "graph.pt")
    words = ["prepare", f"pyg:{tmp_path / 'graph.pt'}", str(tmp_path / "out"), "--memory-budget", "100MB"]
    assert main([*words, "--symmetrize", "cites", "--add-reverse"]) == 0
    told = capsys.readouterr().out
    assert "30 nodes, 4 x float32, labels" in told
    assert "20 nodes, no features" in told
    assert "author:writes:paper" in told
    dataset = Dataset.open(tmp_path / "out")
    assert dataset.relations == (CITES, WRITES, ("paper", "rev_writes", "author"))
    expected = expected_neighbors(graph.edges[CITES], 30, EdgeRules(symmetrize=True))
    assert neighbors(dataset, CITES) == expected


def test_mag240m_gets_authors_and_institutions_from_its_papers(tmp_path):
    from ogb_layout import write_mag240m

    from gloader.convert.options import SourceOptions
    from gloader.convert.registry import open_source

    folder = write_mag240m(tmp_path, num_papers=40, authors=12, institutions=3)
    source = open_source(f"mag240m:{folder}", SourceOptions())
    options = replace(SMALL, dtype="float16", symmetrize=("cites",), add_reverse=True)
    dataset, report = run(source, tmp_path, options)
    papers = np.load(folder / "processed" / "paper" / "node_feat.npy")
    writes, works = (
        np.load(folder / "processed" / name / "edge_index.npy").T.tolist()
        for name in ("author___writes___paper", "author___affiliated_with___institution")
    )
    authors = mean_rows([(paper, author) for author, paper in writes], papers, 12)
    assert np.array_equal(rows_of(dataset, "paper"), papers)
    assert np.allclose(rows_of(dataset, "author"), authors, atol=2e-3)
    institutions = mean_rows(works, rows_of(dataset, "author"), 3)
    assert np.allclose(rows_of(dataset, "institution"), institutions, atol=2e-3)
    assert len(dataset.relations) == 5
    assert report.relations["paper:cites:paper"].num_edges > 160
