"""Files of DGL as graphs: everything that they hold is there by its own name, or is said not to be."""

import logging

import pytest
import torch
from block_pairs import dgl as theirs

import gloader.compat.dgl as dgl

N = 30


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A graph whose data have other names than a dataset's, without labels."""
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(0, N, (2, 80), generator=generator)
    g = theirs.graph((ends[0], ends[1]), num_nodes=N)
    g.ndata["x"] = torch.rand(N, 4, generator=generator)
    g.ndata["pos"] = torch.rand(N, 3, generator=generator)
    g.ndata["part"] = torch.arange(N) % 4
    g.edata["w"] = torch.rand(80, generator=generator)
    g.edata["etype"] = torch.arange(80) % 3
    theirs.save_graphs(str(tmp_path / "graph.bin"), [g], {"glabel": torch.tensor([7])})
    return tmp_path / "graph.bin", g


def test_node_data_keep_their_names(file, caplog):
    path, saved = file
    with caplog.at_level(logging.WARNING):
        (g,), labels = dgl.load_graphs(str(path))
    assert torch.equal(labels["glabel"], torch.tensor([7]))
    for name in ("pos", "part"):
        assert torch.equal(g.ndata[name], saved.ndata[name])
    assert torch.equal(g.ndata["x"][:], saved.ndata["x"])
    assert g.ndata["x"] is g.ndata["feat"]  # and no tensor in memory
    weights = {}
    for graph, sign in ((saved, 1), (g, -1)):
        for u, v, w in zip(*graph.edges(), graph.edata["w"], strict=True):
            weights[int(u), int(v)] = weights.get((int(u), int(v)), 0.0) + sign * float(w)
    assert max(map(abs, weights.values())) < 1e-5
    assert "edge data 'etype' not taken: a dataset has edges in an order of its own" in caplog.text
    loader = dgl.dataloading.DataLoader(
        g, torch.arange(N), dgl.dataloading.NeighborSampler([3]), batch_size=N
    )
    ((nodes, _, blocks),) = list(loader)
    assert torch.equal(blocks[0].srcdata["x"], saved.ndata["x"][nodes])
    assert torch.equal(blocks[0].srcdata["pos"], saved.ndata["pos"][nodes])


def test_edges_may_be_changed_on_their_way(file):
    path, saved = file
    (g,), _ = dgl.load_graphs(path, self_loops=True)
    src, dst = g.edges()
    assert int((src == dst).sum()) == N
    assert g.num_edges() == N + int((saved.edges()[0] != saved.edges()[1]).sum())
