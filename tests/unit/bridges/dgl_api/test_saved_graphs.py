"""Files of DGL as graphs: everything that they hold is there by its own name, or is said not to be."""

import errno
import logging
import sys

import pytest
import torch
from block_pairs import dgl as theirs

import gloader
import gloader.compat.dgl as dgl
from gloader.errors import NotAStoreError, SourceError, StoreOpenError

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
    assert "edge data 'etype' not taken: a dataset has its edges in another order" in caplog.text
    loader = dgl.dataloading.DataLoader(
        g, torch.arange(N), dgl.dataloading.NeighborSampler([3]), batch_size=N
    )
    ((nodes, _, blocks),) = list(loader)
    assert torch.equal(blocks[0].srcdata["x"], saved.ndata["x"][nodes])
    assert torch.equal(blocks[0].srcdata["pos"], saved.ndata["pos"][nodes])


def test_edges_may_be_changed_on_their_way(file, caplog):
    path, saved = file
    with caplog.at_level(logging.WARNING):
        (g,), _ = dgl.load_graphs(path, self_loops=True)
        dgl.load_graphs(path, order="degree")
    assert " data/graph --self-loops\n" in caplog.text
    assert caplog.text.count("the same by a command") == 1  # of the other, a flag alone would say too little
    src, dst = g.edges()
    assert int((src == dst).sum()) == N
    assert g.num_edges() == N + int((saved.edges()[0] != saved.edges()[1]).sum())


def test_a_graph_of_several_types_is_read_without_dgl(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))
    ends = torch.randint(0, N, (2, 80), generator=torch.Generator().manual_seed(0)).unbind()
    saved = theirs.heterograph(
        {
            ("user", "rates", "item"): ends,
            ("item", "rated_by", "user"): ends[::-1],
            ("user", "knows", "user"): ends,
        },
        {"user": N, "item": N},
    )
    saved.nodes["user"].data["x"], saved.nodes["item"].data["feat"] = torch.rand(N, 4), torch.rand(N, 2)
    saved.nodes["user"].data["age"], saved.edges["rates"].data["stars"] = torch.arange(N), torch.ones(80)
    theirs.save_graphs(str(tmp_path / "typed.bin"), [saved], {"kind": torch.tensor([3])})
    monkeypatch.setitem(sys.modules, "dgl", None)
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING):
        (g,), beside = dgl.load_graphs("typed.bin")
    assert "typed.bin: prepared into " in caplog.text
    assert "once; the same by a command: gloader prepare dgl:typed.bin data/typed\n" in caplog.text
    assert "edge data 'stars' not taken" in caplog.text
    assert torch.equal(beside["kind"], torch.tensor([3]))
    assert (g.ntypes, g.canonical_etypes) == (saved.ntypes, saved.canonical_etypes)
    assert torch.equal(g.nodes["user"].data["x"][:], saved.nodes["user"].data["x"])
    assert torch.equal(g.nodes["user"].data["age"], torch.arange(N))
    for relation in saved.canonical_etypes:
        assert set(zip(*map(torch.Tensor.tolist, g.edges(etype=relation)), strict=True)) == set(
            zip(*map(torch.Tensor.tolist, saved.edges(etype=relation)), strict=True)
        )
    caplog.clear()
    dgl.load_graphs("typed.bin")
    assert "prepared into" not in caplog.text


@pytest.mark.reliability("S11")
def test_what_is_not_there_says_how_it_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        StoreOpenError, match="a dataset is made once: gloader prepare SOURCE data/graph"
    ) as caught:
        gloader.Dataset.open("data/graph")
    assert caught.value.__suppress_context__  # one traceback, and not the two of what was looked for
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(NotAStoreError, match=r"dataset\.json"):  # a folder is one of a dataset
        dgl.load_graphs(".")
    with pytest.raises(
        SourceError, match=r"data/graph does not exist; make it once: gloader prepare dgl:FILE data/graph"
    ):
        dgl.load_graphs("data/graph")
    with pytest.raises(
        SourceError,
        match=r"graph.bin does not exist; make it with DGL: dgl.save_graphs\('graph.bin', \[g\]\)",
    ):
        dgl.load_graphs("graph.bin")
