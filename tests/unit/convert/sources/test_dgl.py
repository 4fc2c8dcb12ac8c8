from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source
from gloader.convert.sources.dgl import quiet_dgl
from gloader.errors import SourceError

N, E = 40, 120


@pytest.fixture
def dgl():
    with quiet_dgl("dgl: sources need") as module:
        yield module


@pytest.fixture
def graph(dgl):
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, N, (2, E), generator=generator)
    made = dgl.graph((src, dst), num_nodes=N)
    number = torch.arange(N)
    made.ndata["feat"] = torch.randn(N, 5, generator=generator)
    made.ndata["label"] = number % 3
    made.ndata["train_mask"] = number < 20
    made.ndata["val_mask"] = ((number >= 20) & (number < 30)).to(torch.uint8)  # as older versions saved them
    made.ndata["test_mask"] = number >= 30
    return made


def opened(dgl, graphs, tmp_path, labels=None):
    dgl.save_graphs(str(tmp_path / "graph.bin"), graphs, labels)
    return open_source(f"dgl:{tmp_path / 'graph.bin'}", SourceOptions())


def test_what_dgl_saves_is_read(dgl, graph, tmp_path):
    graph.edata["weight"] = torch.rand(E)
    source = opened(dgl, [graph], tmp_path)
    (chunk,) = source.edges.chunks(1000)
    (rows,) = source.features.chunks(1000)
    src, dst = graph.edges(order="eid")
    assert np.array_equal(chunk.src, src)
    assert np.array_equal(chunk.dst, dst)
    assert np.array_equal(chunk.weight, graph.edata["weight"])
    assert np.array_equal(rows, graph.ndata["feat"])
    assert np.array_equal(source.labels, graph.ndata["label"])
    assert np.array_equal(source.splits.valid, np.arange(20, 30))
    assert (source.name, source.num_nodes, source.num_classes) == ("graph", N, 3)


def test_splits_may_stand_beside_the_graph(dgl, graph, tmp_path):
    for key in ("train_mask", "val_mask", "test_mask"):
        del graph.ndata[key]
    ids = {"train_idx": torch.arange(5), "valid_idx": torch.arange(5, 7), "test_idx": torch.arange(7, 9)}
    source = opened(dgl, [graph], tmp_path, ids)
    assert np.array_equal(source.splits.train, np.arange(5))
    assert len(opened(dgl, [graph], tmp_path).splits.train) == 24  # drawn


def test_other_than_one_graph_is_refused(dgl, graph, tmp_path):
    with pytest.raises(SourceError, match="holds 2 graphs; save one"):
        opened(dgl, [graph, graph], tmp_path)


def test_a_missing_key_is_named(dgl, graph, tmp_path):
    del graph.ndata["feat"]
    with pytest.raises(SourceError, match=r"has no features \(feat or features or x\); it has label"):
        opened(dgl, [graph], tmp_path)


def test_a_damaged_or_missing_file_is_named(dgl, graph, tmp_path):
    opened(dgl, [graph], tmp_path)
    content = (tmp_path / "graph.bin").read_bytes()
    cut = tmp_path / "cut.bin"
    for size, message in ((0, "signature"), (7, "signature"), (12, "damaged"), (16, "damaged")):
        cut.write_bytes(content[:size])
        with pytest.raises(SourceError, match=message):
            open_source(f"dgl:{cut}", SourceOptions())
    with pytest.raises(SourceError, match="does not exist"):
        open_source(f"dgl:{tmp_path / 'nothing'}", SourceOptions())


def test_the_environment_is_left_as_it_was(monkeypatch):
    for value in (None, "tensorflow"):
        monkeypatch.delenv("DGLBACKEND", raising=False)
        if value is not None:
            monkeypatch.setenv("DGLBACKEND", value)
        with quiet_dgl("dgl: sources need"):
            assert os.environ["DGLBACKEND"] == "pytorch"
        assert os.environ.get("DGLBACKEND") == value
