"""Scripts of DGL run with their import lines changed, where there is no DGL, and do what they do with it."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gloader
import gloader.compat.dgl as dgl
from gloader.errors import ConfigError, DglFeatureError, SourceError

SCRIPTS = Path(__file__).parents[2] / "dgl_scripts"
NUM_NODES, NUM_CLASSES = 300, 3


@pytest.fixture(autouse=True)
def without_dgl(monkeypatch):
    """Have ``import dgl`` fail."""
    monkeypatch.setitem(sys.modules, "dgl", None)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A graph of three groups whose nodes are joined to their like, with a label that neighbours tell."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, NUM_CLASSES, NUM_NODES)
    src = rng.integers(0, NUM_NODES, 6 * NUM_NODES)
    alike = [np.flatnonzero(labels == label) for label in range(NUM_CLASSES)]
    dst = np.array([rng.choice(alike[labels[node]]) for node in src])
    features = rng.standard_normal((NUM_NODES, 8)).astype(np.float32)
    features[np.arange(NUM_NODES), labels] += 1
    order = rng.permutation(NUM_NODES)
    return gloader.Dataset.from_numpy(
        tmp_path_factory.mktemp("scripts") / "groups",
        features=features,
        labels=labels,
        edge_index=np.stack([src, dst]),
        train=order[:150],
        valid=order[150:200],
        test=order[200:],
        edge_split=(0.8, 0.1, 0.1),
    )


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """Papers with features and labels, authors without."""
    rng = np.random.default_rng(6)
    pairs = np.stack([rng.integers(0, 80, 400), rng.integers(0, 120, 400)])
    order = rng.permutation(120)
    return gloader.Dataset.from_numpy_hetero(
        tmp_path_factory.mktemp("scripts") / "typed",
        num_nodes={"paper": 120, "author": 80},
        features={"paper": rng.standard_normal((120, 5)).astype(np.float32)},
        edges={
            ("author", "writes", "paper"): pairs,
            ("paper", "written_by", "author"): pairs[::-1].copy(),
            ("paper", "cites", "paper"): rng.integers(0, 120, (2, 300)),
        },
        labels={"paper": rng.integers(0, 3, 120)},
        train=order[:70],
        valid=order[70:90],
        test=order[90:],
    )


def changed(text):
    """Return a script with its import lines changed, and nothing else."""
    text, count = re.subn(r"^import dgl$", "import gloader.compat.dgl as dgl", text, flags=re.MULTILINE)
    assert count == 1
    return re.sub(r"^(import|from) dgl\.", r"\1 gloader.compat.dgl.", text, flags=re.MULTILINE)


def run(name, *arguments, capsys, monkeypatch):
    """Run a script; return what it prints."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    script = compile(changed((SCRIPTS / name).read_text()), name, "exec")
    exec(script, {"__name__": "__main__"})  # noqa: S102 - of this repository
    return capsys.readouterr().out


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "own"])
def test_node_classification_learns(model, dataset, capsys, monkeypatch):
    out = run(
        "node_classification.py",
        *(dataset.root, "--model", model, "--epochs", 6, "--batch-size", 50, "--hidden", 16),
        capsys=capsys,
        monkeypatch=monkeypatch,
    )
    found = json.loads(out)
    assert len(found["losses"]) == 18
    assert found["test"] > 0.8  # a third by chance


def test_a_loop_that_takes_rows_by_itself_reads_them_once(dataset, capsys, monkeypatch):
    read = []
    gather = gloader.bridges.cached_rows.CachedRows.gather
    monkeypatch.setattr(
        gloader.bridges.cached_rows.CachedRows,
        "gather",
        lambda rows, ids: read.append(len(ids)) or gather(rows, ids),
    )
    out = run("old_style.py", dataset.root, capsys=capsys, monkeypatch=monkeypatch)
    assert re.fullmatch(r"(step [01] loss \d+\.\d{4} edges \d+\n){2}", out)
    assert not read  # the pipeline has brought them


def test_link_prediction_over_a_link_table(dataset, capsys, monkeypatch):
    out = run("link_prediction.py", dataset.root, "train", capsys=capsys, monkeypatch=monkeypatch)
    assert re.fullmatch(r"(step [01] loss \d+\.\d{4}\n){2}", out)
    with pytest.raises(DglFeatureError, match="edges to predict are a link table of the dataset"):
        run("link_prediction.py", dataset.root, capsys=capsys, monkeypatch=monkeypatch)


def test_edges_of_several_types_in_one_graph(dataset, capsys, monkeypatch):
    out = run("relational.py", dataset.root, capsys=capsys, monkeypatch=monkeypatch)
    assert re.fullmatch(r"(step [01] loss \d+\.\d{4}\n){2}", out)


def test_several_types(typed, capsys, monkeypatch):
    out = run("typed.py", typed.root, "paper", capsys=capsys, monkeypatch=monkeypatch)
    assert re.fullmatch(r"(step [01] loss \d+\.\d{4}\n){2}", out)


def test_features_come_from_the_ssd_where_the_loader_is_told_a_budget(dataset):
    """The changed loader lines: a `gloader.Dataset`, and the memory that it may take."""
    seeds = torch.from_numpy(dataset.train.copy())
    sampler = dgl.dataloading.NeighborSampler([5, 5])
    keywords = {"batch_size": 32, "shuffle": True}
    in_memory = dgl.dataloading.DataLoader(dataset, seeds, sampler, features="ram", **keywords)
    with dgl.dataloading.DataLoader(
        dgl.DGLGraph(dataset), seeds, sampler, features="ssd", memory_budget="300MB", **keywords
    ) as on_ssd:
        assert "ssd" in on_ssd.loader.explain().lower()
        for (inputs, outputs, blocks), (others, _, theirs) in zip(on_ssd, in_memory, strict=True):
            assert torch.equal(inputs, others)
            assert torch.equal(blocks[0].srcdata["feat"], theirs[0].srcdata["feat"])
            assert torch.equal(blocks[-1].dstdata["_ID"], outputs)
    in_memory.close()


def test_fan_outs_are_in_the_order_of_dgl(dataset):
    seeds = torch.from_numpy(dataset.train.copy())
    # The hop next to the seeds is the last.
    loader = dgl.dataloading.DataLoader(
        dataset, seeds, dgl.dataloading.NeighborSampler([4, 1]), batch_size=150
    )
    (_, _, blocks), *_ = list(loader)
    assert int(blocks[1].in_degrees().max()) == 1
    assert 1 < int(blocks[0].in_degrees().max()) <= 4
    full = dgl.dataloading.MultiLayerFullNeighborSampler(1)
    g = dgl.DGLGraph(dataset)
    with dgl.dataloading.DataLoader(g, torch.arange(NUM_NODES), full, batch_size=100) as loader:
        found = torch.cat([blocks[0].in_degrees() for _, _, blocks in loader])
        assert torch.equal(found, g.in_degrees())
        with loader.enable_cpu_affinity():
            assert len(loader) == 3


def test_data_that_is_written_to_the_graph_comes_with_blocks(dataset):
    g = dgl.DGLGraph(dataset)
    g.ndata["year"] = torch.arange(NUM_NODES)
    g.edata["type"] = torch.arange(g.num_edges()) % 5
    g.ndata["feat"] = torch.ones(NUM_NODES, 2)
    loader = dgl.dataloading.DataLoader(
        g, torch.arange(20), dgl.dataloading.NeighborSampler([3, 3]), batch_size=20
    )
    ((inputs, outputs, blocks),) = list(loader)
    assert torch.equal(blocks[0].srcdata["year"], inputs)
    assert torch.equal(blocks[-1].dstdata["year"], outputs)
    assert torch.equal(blocks[0].edata["type"], blocks[0].edata[dgl.EID] % 5)
    assert blocks[0].srcdata["feat"].shape == (len(inputs), 2)  # and not the dataset's
    src, dst = blocks[0].edges()
    every_src, every_dst = g.edges()
    ids = blocks[0].edata[dgl.EID]
    assert torch.equal(every_src[ids], blocks[0].srcdata[dgl.NID][src])
    assert torch.equal(every_dst[ids], blocks[0].dstdata[dgl.NID][dst])


def test_one_seed_gives_one_stream_of_batches(dataset):
    def stream(seed):
        dgl.seed(seed)
        sampler = dgl.dataloading.NeighborSampler([3, 3])
        loader = dgl.dataloading.DataLoader(dataset, torch.arange(100), sampler, batch_size=40, shuffle=True)
        return [inputs.tolist() for _ in range(2) for inputs, _, _ in loader]

    assert stream(1) == stream(1) != stream(2)
    dgl.seed(0)


def test_what_cannot_be_is_refused_in_words(dataset, typed):
    dataloading = dgl.dataloading
    for keywords, text in (
        ({"edge_dir": "out"}, "edge_dir='out'"),
        ({"replace": True}, "drawn without replacement"),
        ({"mask": "m"}, "leave the edges out"),
        ({"prob": "p"}, "the weights of edges are called 'weight'"),
    ):
        with pytest.raises(DglFeatureError, match=text):
            dataloading.NeighborSampler([2], **keywords)
    sampler = dataloading.NeighborSampler([2, 2])
    with pytest.raises(DglFeatureError, match=r"NeighborSampler.sample_blocks: a DataLoader samples"):
        sampler.sample_blocks(None, None)
    with pytest.raises(DglFeatureError, match=r"dgl.dataloading.DataLoader\(str\)"):
        dataloading.DataLoader("graph", torch.arange(3), sampler)
    with pytest.raises(DglFeatureError, match=r"dgl.dataloading.list: this sampler is not here"):
        dataloading.DataLoader(dataset, torch.arange(3), [2, 2])
    with pytest.raises(ConfigError, match=r"torch.distributed.init_process_group comes first"):
        dataloading.DataLoader(dataset, torch.arange(3), sampler, use_ddp=True)
    with pytest.raises(DglFeatureError, match="exclude is None, 'self'"):
        dataloading.as_edge_prediction_sampler(sampler, exclude=torch.arange(3))
    with pytest.raises(
        ConfigError, match=r"'train' has no labels.* pass negative_sampler=negative_sampler.Uniform"
    ):
        dataloading.DataLoader(dataset, "train", dataloading.as_edge_prediction_sampler(sampler))
    with pytest.raises(DglFeatureError, match=r"DGLGraph.num_node: did you mean 'num_nodes'\?"):
        dgl.DGLGraph(dataset).num_node()
    with pytest.raises(
        SourceError, match=r"data/none does not exist; make it once: gloader prepare dgl:FILE data/none"
    ):
        dgl.load_graphs("data/none")
    with pytest.raises(DglFeatureError, match="negatives are drawn alike"):
        dataloading.as_edge_prediction_sampler(sampler, negative_sampler=lambda graph, edges: None)
    with pytest.raises(ConfigError, match=r"leave out .*written_by"):
        dataloading.DataLoader(
            typed, {"paper": torch.arange(3)}, dataloading.NeighborSampler([{"writes": 2, "cites": 1}])
        )
