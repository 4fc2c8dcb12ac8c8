"""Link benchmarks: from a folder in OGB's layout to the official evaluator's score, and what is noticed on the way."""

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import citation_scale
import numpy as np
import pytest
import run as runner
import torch
from benchmarks import BenchmarkError, load_benchmarks
from fabricate_links import LINK_SHAPES, fabricate_links
from judged_links import JudgedLinks
from ogb_runner import in_this_process, words
from scores import is_of_links, score_links

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source

OGB = Path(__file__).parents[3] / "experiments" / "ogb"
ROWS = {
    "citation2-graphsage": ("ogbl-citation2", 0.0002, 80.44, "mrr"),
    "collab-graphsage": ("ogbl-collab", 0.002, 48.10, "hits@50"),
    "ppa-graphsage": ("ogbl-ppa", 0.0005, 16.55, "hits@100"),
}
SMALL = ("epochs=1", "batch-size=256", "hidden=8", "fanout=3,3,3")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three made-up data sets, with few negatives for each citation."""
    root = tmp_path_factory.mktemp("data")
    for name, scale, _, _ in ROWS.values():
        shape = LINK_SHAPES[name].scaled(scale)
        fabricate_links(root, name, replace(shape, each=min(shape.each, 20)))
    return root


@pytest.mark.parametrize("row", ROWS)
def test_a_link_benchmark_becomes_a_row_by_the_official_evaluator(tmp_path, data, monkeypatch, row):
    name, _, published, metric = ROWS[row]
    monkeypatch.setattr(runner, "_gloader", in_this_process)
    monkeypatch.setattr(sys, "argv", words(tmp_path, row, "--set", *SMALL, root=data))
    assert runner.main() == 0
    (found,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert (found["name"], found["split"], found["published"]["mean"]) == (row, "test", published)
    trained = json.loads((tmp_path / "work" / row / "result.json").read_text())
    assert (trained["task"], trained["metric"]) == ("link", metric)
    assert found["scores"] == [pytest.approx(trained["runs"][0][f"test_{metric}"], abs=1e-3)]
    assert 0 <= found["scores"][0] <= 1  # so few steps may rank no edge of ppa above its 1,500 negatives
    # Pairs take 1.4 GB at citation2's size, so only the scores stay.
    assert sorted(path.name for path in (tmp_path / "work" / row).glob("*.npy")) == ["scores.npy"]
    assert load_benchmarks(OGB / "benchmarks.yaml", root=data)[row].evaluator == f"ogb:{name}"


def test_negatives_that_are_not_the_datasets_are_noticed(tmp_path, data, monkeypatch, capsys):
    monkeypatch.setattr(runner, "_gloader", in_this_process)
    monkeypatch.setattr(sys, "argv", words(tmp_path, "collab-graphsage", "--set", *SMALL, root=data))
    assert runner.main() == 0
    real = JudgedLinks.of

    def others(tables, split):
        judged = real(tables, split)
        return replace(judged, pairs=np.concatenate([judged.pairs[: judged.num_edges]] * 2))

    monkeypatch.setattr(JudgedLinks, "of", others)
    keep = words(tmp_path, "collab-graphsage", "--keep", "--set", *SMALL, root=data)
    monkeypatch.setattr(sys, "argv", keep)
    capsys.readouterr()
    assert runner.main() == 1
    assert "edges, gloader said" in capsys.readouterr().err


@pytest.mark.parametrize("row", ROWS)
def test_what_is_judged_are_the_files_pairs(data, row):
    name = ROWS[row][0]
    judged = JudgedLinks.of(open_source(f"ogb:{name}@{data}", SourceOptions()).links, "valid")
    file = data / name.replace("-", "_") / "split" / LINK_SHAPES[name].split / "valid.pt"
    held = torch.load(file, weights_only=False)
    if name == "ogbl-citation2":
        edges = np.stack([held["source_node"], held["target_node"]], 1)
        negatives = held["target_node_neg"]
        assert judged.negatives_per_edge == negatives.shape[1] == 20
        assert np.array_equal(judged.pairs[len(edges) :, 0], edges[:, 0].repeat(20))
        assert np.array_equal(judged.pairs[len(edges) :, 1], negatives.reshape(-1))
        shape = negatives.shape
    else:
        edges = held["edge"]
        assert np.array_equal(judged.pairs[len(edges) :], held["edge_neg"])
        shape = (len(held["edge_neg"]),)
    assert np.array_equal(judged.pairs[: len(edges)], edges)
    scores = np.arange(len(judged.pairs), dtype=np.float32)
    of_edges, of_negatives = judged.parted(scores)
    assert (of_edges.shape, of_negatives.shape) == ((len(edges),), shape)
    assert np.array_equal(np.concatenate([of_edges, of_negatives.reshape(-1)]), scores)


def test_a_source_without_negatives_cannot_be_judged(data):
    links = open_source(f"ogb:ogbl-collab@{data}", SourceOptions()).links
    for split, text in (("train", "gives no negatives for links 'train'"), ("tset", "has no links 'tset'")):
        with pytest.raises(BenchmarkError, match=text):
            JudgedLinks.of(links, split)


def test_official_evaluators_rank_and_count():
    edges = np.array([3.0, 1.0], np.float32)
    assert is_of_links("ogb:ogbl-ppa")
    assert not is_of_links("ogb:ogbn-mag")
    negatives = np.array([[0.0, 1.0], [2.0, 3.0]], np.float32)
    assert score_links("ogb:ogbl-citation2", edges, negatives) == pytest.approx((1 + 1 / 3) / 2)
    many = np.linspace(0, 2, 101, dtype=np.float32)  # 50 of them are above 1, 100 below 3
    assert score_links("ogb:ogbl-collab", edges, many) == pytest.approx(0.5)
    assert score_links("ogb:ogbl-ppa", edges, many - 1.5) == pytest.approx(1.0)


def test_citation2_has_its_true_numbers():
    shape = LINK_SHAPES["ogbl-citation2"]
    assert shape.train + shape.valid + shape.test == 30_561_187
    shrunk = shape.scaled(0.05)
    assert (shrunk.nodes, shrunk.dim, shrunk.each) == (146_398, 128, 1000)


@pytest.mark.long
def test_a_dry_run_at_citation2s_shape_says_what_it_took(tmp_path, monkeypatch, capsys):
    small = [
        "--scale",
        "0.0003",
        "--batches",
        "2",
        "--held-out",
        "50",
        "--hidden",
        "8",
        "--workdir",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", ["citation_scale.py", *small, "--out", str(tmp_path / "found")])
    citation_scale.main()
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["train"]["metric"] == "mrr"
    assert (found["train"]["batches"], found["graph"]["nodes"], found["graph"]["valid"]) == (2, 878, 50)
    assert found["prepare"]["watched"]["peak_anonymous_bytes"] > 0
    assert "| pairs scored, MRR of made-up edges | 100,100, 0." in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"found.json", "found.md"}


@pytest.mark.parametrize("name", LINK_SHAPES)
def test_the_official_package_loads_what_was_made_up(tmp_path, monkeypatch, name):
    monkeypatch.setenv("DGLBACKEND", "pytorch")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # the official loader needs it, ours does not
    shape = LINK_SHAPES[name].scaled(0.0001)
    fabricate_links(tmp_path, name, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ogb.linkproppred import LinkPropPredDataset

        found = LinkPropPredDataset(name, root=str(tmp_path))
        graph, split = found[0], found.get_edge_split()
    assert graph["num_nodes"] == shape.nodes
    assert graph["node_feat"].shape == (shape.nodes, shape.dim)
    edges = graph["edge_index"].T if name == "ogbl-citation2" else graph["edge_index"].T[::2]
    assert len(edges) == shape.train
    for part in ("train", "valid", "test"):
        held = split[part]
        pairs = held["edge"] if "edge" in held else np.stack([held["source_node"], held["target_node"]], 1)
        assert len(pairs) == getattr(shape, part)
        if part == "train":
            assert np.array_equal(pairs, edges)
        else:
            negatives = held["edge_neg"] if "edge" in held else held["target_node_neg"]
            assert negatives.shape == ((shape.shared, 2) if shape.shared else (len(pairs), shape.each))
