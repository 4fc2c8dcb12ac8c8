from __future__ import annotations

import numpy as np
import pytest
import torch
from typed_sources import CITES, IN, WRITES

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source
from gloader.convert.source_check import check_source
from gloader.convert.sources.dgl import quiet_dgl
from gloader.errors import SourceError


@pytest.fixture
def dgl():
    with quiet_dgl("dgl: sources need") as module:
        yield module


@pytest.fixture
def graph(dgl):
    generator = torch.Generator().manual_seed(0)

    def pairs(sources, destinations, count):
        return tuple(torch.randint(0, n, (count,), generator=generator) for n in (sources, destinations))

    edges = {WRITES: pairs(7, 40, 60), CITES: pairs(40, 40, 90), IN: pairs(7, 3, 5)}
    made = dgl.heterograph(edges, num_nodes_dict={"paper": 40, "author": 7, "place": 3})
    number = torch.arange(40)
    made.nodes["paper"].data["feat"] = torch.randn(40, 5)
    made.nodes["paper"].data["label"] = number % 3
    made.nodes["paper"].data["train_mask"] = number < 20
    made.nodes["paper"].data["val_mask"] = (number >= 20) & (number < 30)
    made.nodes["paper"].data["test_mask"] = number >= 30
    made.edges[WRITES].data["weight"] = torch.rand(60)
    return made


def opened(dgl, graph, tmp_path, labels=None):
    dgl.save_graphs(str(tmp_path / "graph.bin"), [graph], labels)
    return open_source(f"dgl:{tmp_path / 'graph.bin'}", SourceOptions())


def test_what_dgl_saves_is_read(dgl, graph, tmp_path):
    source = opened(dgl, graph, tmp_path)
    check_source(source)
    assert {nodes.name: nodes.num_nodes for nodes in source.nodes} == {"author": 7, "paper": 40, "place": 3}
    assert {each.relation for each in source.relations} == {WRITES, CITES, IN}
    for each in source.relations:
        (chunk,) = each.edges.chunks(1000)
        src, dst = graph.edges(order="eid", etype=each.relation)
        assert np.array_equal(chunk.src, src)
        assert np.array_equal(chunk.dst, dst)
        if each.relation == WRITES:
            assert np.array_equal(chunk.weight, graph.edges[WRITES].data["weight"])
    features = {nodes.name: nodes.features for nodes in source.nodes}
    (rows,) = features["paper"].chunks(1000)
    assert np.array_equal(rows, graph.nodes["paper"].data["feat"])
    assert features["author"] is None
    assert source.labelled == "paper"
    assert np.array_equal(source.labels, graph.nodes["paper"].data["label"])
    assert np.array_equal(source.splits.test, np.arange(30, 40))
    assert source.resident_bytes == 0  # arrays are mapped


def test_dgls_own_names_count_before_others(dgl, graph, tmp_path):
    graph.nodes["paper"].data["x"] = torch.zeros(40, 2)
    graph.nodes["paper"].data["y"] = torch.zeros(40).long()
    source = opened(dgl, graph, tmp_path)
    assert source.num_classes == 3
    assert next(nodes.features.dim for nodes in source.nodes if nodes.name == "paper") == 5


def test_splits_may_stand_beside_the_graph(dgl, graph, tmp_path):
    for key in ("train_mask", "val_mask", "test_mask"):
        del graph.nodes["paper"].data[key]
    ids = {"train_idx": torch.arange(5), "valid_idx": torch.arange(5, 7), "test_idx": torch.arange(7, 9)}
    assert np.array_equal(opened(dgl, graph, tmp_path, ids).splits.train, np.arange(5))
    assert len(opened(dgl, graph, tmp_path).splits.train) == 24  # drawn


def test_labels_are_on_exactly_one_type(dgl, graph, tmp_path):
    graph.nodes["author"].data["label"] = torch.zeros(7).long()
    with pytest.raises(SourceError, match=r"graph\.bin has labels on 2 node types \(author, paper\)"):
        opened(dgl, graph, tmp_path)
    for node_type in ("author", "paper"):
        del graph.nodes[node_type].data["label"]
    with pytest.raises(SourceError, match=r"graph\.bin has no labels on any node type"):
        opened(dgl, graph, tmp_path)
