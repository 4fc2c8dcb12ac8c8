"""A DGL file read without DGL equals the result of DGL's own reader."""

from __future__ import annotations

from dataclasses import replace

import dgl_files
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gloader.convert.options import SourceOptions
from gloader.convert.readers.attributes import SavedGraph
from gloader.convert.readers.dgl_file import DglFile, Form
from gloader.convert.readers.edge_columns import array_column, weighted_edges
from gloader.convert.registry import open_source
from gloader.convert.sources.dgl import DglGraph, quiet_dgl, stored_edges

torch = pytest.importorskip("torch")
pytest.importorskip("dgl")

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
FORMS = ([], ["coo"], ["csr"], ["csc"], ["coo", "csc"], ["csr", "csc"], ["coo", "csr", "csc"])
names = st.text(min_size=1, max_size=6).filter(lambda name: "\0" not in name)


@st.composite
def column(draw, rows):
    shape = (rows, *draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)])))
    values = torch.arange(int(np.prod(shape))).remainder(100).reshape(shape)
    # DGL itself cannot read an empty array of bfloat16.
    dtypes = DTYPES if values.numel() else [name for name in DTYPES if name != "bfloat16"]
    return values.to(getattr(torch, draw(st.sampled_from(dtypes))))


@st.composite
def graphs(draw):
    num_nodes = draw(st.integers(0, 8))
    ids = st.integers(0, num_nodes - 1)
    ends = draw(st.lists(st.tuples(ids, ids), max_size=20)) if num_nodes else []
    src, dst = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T
    with quiet_dgl("drawing graphs needs") as dgl:
        graph = dgl.graph(
            (src.contiguous(), dst.contiguous()),
            num_nodes=num_nodes,
            idtype=draw(st.sampled_from([torch.int32, torch.int64])),
        )
        if draw(st.booleans()):
            graph = graph.formats(draw(st.sampled_from(["coo", "csr", "csc"])))
    for data, rows in ((graph.ndata, num_nodes), (graph.edata, len(ends))):
        for name in draw(st.lists(names, max_size=3, unique=True)):
            data[name] = draw(column(rows))
    beside = {name: draw(column(draw(st.integers(0, 3)))) for name in draw(st.lists(names, max_size=2))}
    return graph, ends, beside


def numbers(tensor):
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def same(stored, tensors):
    assert sorted(stored) == sorted(tensors)
    for name, tensor in tensors.items():
        for values in (stored[name].load(), stored[name].values()[:]):
            assert values.dtype == numbers(tensor).dtype
            assert np.array_equal(values, numbers(tensor))


def edge_list(src, dst, ids):
    return sorted(zip(*(np.asarray(each).tolist() for each in (src, dst, ids)), strict=True))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=graphs(), forms=st.sampled_from(FORMS))
def test_the_reader_agrees_with_dgl(tmp_path, drawn, forms):
    graph, ends, beside = drawn
    path = tmp_path / "graph.bin"
    with quiet_dgl("this test needs") as dgl:
        allowed = graph.formats()["created"] + graph.formats()["not created"]
        dgl.save_graphs(
            str(path), [graph], beside, formats=[form for form in forms if form in allowed] or None
        )
        (theirs,), their_beside = dgl.load_graphs(str(path))
        saved = theirs.formats()["created"]
    file = DglFile.open(path)
    assert file.is_homogeneous
    assert file.num_nodes == (theirs.num_nodes(),)
    of_forms = {"coo": Form.PAIRS, "csr": Form.BY_SOURCE, "csc": Form.BY_DESTINATION}
    assert {*file.relations[0]} >= {of_forms[form] for form in saved if form in forms}
    same(file.node_columns[0], dict(theirs.ndata))
    same(file.edge_columns[0], dict(theirs.edata))
    same(file.graph_labels, their_beside)
    expected = sorted((*pair, number) for number, pair in enumerate(ends))
    stored = file.relations[0]
    for form in stored:
        alone = replace(
            file,
            relations=({form: stored[form]},),
            # The order of edges is looked at where they have data.
            edge_columns=({"number": file.graph_labels.get("number", stored[form].second)},),
            graph_labels={},
        )
        arrays = stored_edges(alone, 0)
        chunks = list(arrays.stream.chunks(7))
        found_src = [node for chunk in chunks for node in chunk.src.tolist()]
        found_dst = [node for chunk in chunks for node in chunk.dst.tolist()]
        order = range(len(found_src)) if arrays.order is None else arrays.order
        assert edge_list(found_src, found_dst, order) == expected


@st.composite
def typed_graphs(draw):
    """Return a graph of several types, of which relations may be empty, and share names."""
    num_nodes = {f"t{k}": draw(st.integers(0, 5)) for k in range(draw(st.integers(1, 3)))}
    names = st.sampled_from([*num_nodes])
    relations = draw(
        st.lists(st.tuples(names, st.sampled_from(["r", "s"]), names), min_size=1, max_size=5, unique=True)
    )
    edges = {}
    for source, name, end in relations:
        count = draw(st.integers(0, 8)) if num_nodes[source] and num_nodes[end] else 0
        ends = [
            draw(st.lists(st.integers(0, max(num_nodes[each] - 1, 0)), min_size=count, max_size=count))
            for each in (source, end)
        ]
        edges[source, name, end] = tuple(torch.tensor(each, dtype=torch.int64) for each in ends)
    with quiet_dgl("drawing graphs needs") as dgl:
        graph = dgl.heterograph(edges, num_nodes, idtype=draw(st.sampled_from([torch.int32, torch.int64])))
    for node_type, count in num_nodes.items():
        if draw(st.booleans()) or node_type == "t0":
            graph.nodes[node_type].data["feat"] = torch.rand(count, 2)
    graph.nodes["t0"].data["label"] = torch.arange(num_nodes["t0"]) % 3
    for relation in relations:
        if draw(st.booleans()):
            count = graph.num_edges(relation)
            graph.edges[relation].data["weight"] = torch.arange(count).float() + 1
            graph.edges[relation].data["feat"] = torch.rand(count, 1)
            graph.edges[relation].data["edge_time"] = torch.arange(count)
    return graph


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=typed_graphs(), forms=st.sampled_from(FORMS))
def test_a_graph_of_several_types_is_what_dgl_reads(tmp_path, graph, forms):
    path = tmp_path / "graph.bin"
    with quiet_dgl("this test needs") as dgl:
        dgl.save_graphs(str(path), [graph], formats=forms or None)
        (theirs,), _ = dgl.load_graphs(str(path))
    file = DglFile.open(path)
    assert file.node_types == tuple(theirs.ntypes)
    assert file.edge_types == tuple(theirs.canonical_etypes)
    assert file.num_nodes == tuple(map(theirs.num_nodes, theirs.ntypes))
    for number, relation in enumerate(file.edge_types):
        found = stored_edges(file, number)
        same(file.edge_columns[number], dict(theirs.edges[relation].data))
        weight = found.data.get("weight")
        stream = found.stream
        if weight is not None:
            stream = weighted_edges(stream, array_column(weight, where="weights", numbers=found.order))
        chunks = list(stream.chunks(3))
        src, dst = (
            [node for chunk in chunks for node in getattr(chunk, end).tolist()] for end in ("src", "dst")
        )
        weights = (
            [0.0] * len(src) if weight is None else [w for chunk in chunks for w in chunk.weight.tolist()]
        )
        columns = theirs.edges[relation].data
        wanted = columns["weight"] if weight is not None else torch.zeros(len(src))
        assert edge_list(src, dst, weights) == edge_list(*theirs.edges(etype=relation, order="eid"), wanted)
    if file.is_homogeneous:
        return
    made = open_source(f"dgl:{path}", SourceOptions())
    kept = DglGraph.of(theirs).source(SavedGraph(name="graph", origin="dgl", where="graph"))
    for ours, other in zip(made.relations, kept.relations, strict=True):
        assert ours.relation == other.relation
        assert rows_by_edge(ours) == rows_by_edge(other)
    assert np.array_equal(made.labels, kept.labels)


def rows_by_edge(relation):
    """Return each edge with its weight, time and row of features, sorted."""
    rows = iter(
        []
        if relation.edge_features is None
        else [row for rows in relation.edge_features.chunks(4) for row in rows]
    )
    return sorted(
        (
            int(chunk.src[k]),
            int(chunk.dst[k]),
            -1.0 if chunk.weight is None else float(chunk.weight[k]),
            -1 if chunk.time is None else int(chunk.time[k]),
            *map(float, next(rows, ())),
        )
        for chunk in relation.edges.chunks(3)
        for k in range(len(chunk.src))
    )


@pytest.mark.parametrize("name", dgl_files.NAMES)
def test_files_that_are_kept_are_what_dgl_writes(name, tmp_path):
    path = tmp_path / "graph.bin"
    dgl_files.save(name, path)
    now, kept = path.read_bytes(), dgl_files.content(name)
    # Behind the 32 bytes of the header DGL leaves what was in memory; columns come in an order of its own.
    assert (now[:32], len(now)) == (kept[:32], len(kept))


def test_dgl_reads_version_1_alike(tmp_path):
    path = tmp_path / "old.bin"
    path.write_bytes(dgl_files.version_1())
    with quiet_dgl("this test needs") as dgl:
        (theirs,), _ = dgl.load_graphs(str(path))
    arrays = stored_edges(DglFile.open(path), 0)
    (chunk,) = arrays.stream.chunks(100)
    assert edge_list(chunk.src, chunk.dst, arrays.order) == edge_list(*theirs.edges("all"))
    same(DglFile.open(path).node_columns[0], dict(theirs.ndata))
