"""OGB's folders convert to the same data as the official package delivers."""

import socket
import warnings

import numpy as np
import pytest
from convert_helpers import read_all
from ogb_layout import LINK_SPLITS, SPLITS, write_mag240m, write_ogb, write_ogbl, write_ogbn_mag

from gloader.convert.options import SourceOptions
from gloader.convert.sources.mag import open_mag240m, open_papers
from gloader.convert.sources.ogb import open_ogb


@pytest.fixture(scope="module", autouse=True)
def offline():
    """Refuse every connection."""

    def refuse(*_args, **_options):
        raise OSError("the network is not for tests")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DGLBACKEND", "pytorch")
        patch.setattr(socket.socket, "connect", refuse)
        yield


@pytest.fixture
def quiet():
    """Let OGB warn without failing the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", SPLITS)
def test_data_sets_equal_the_official_loader(tmp_path, quiet, name):
    from ogb.nodeproppred import NodePropPredDataset

    write_ogb(tmp_path, name)
    source = open_ogb(name, SourceOptions(root=tmp_path))
    theirs = NodePropPredDataset(name, root=str(tmp_path))
    graph, labels = theirs[0]
    splits = theirs.get_idx_split()
    assert read_all(source.edges.chunks(37)) == [tuple(pair) for pair in graph["edge_index"].T.tolist()]
    assert source.edges.num_edges == graph["edge_index"].shape[1]
    assert np.array_equal(np.concatenate(list(source.features.chunks(7))), graph["node_feat"])
    assert (source.num_nodes, source.num_classes) == (graph["num_nodes"], theirs.num_classes)
    assert np.array_equal(source.labels, np.nan_to_num(labels[:, 0], nan=-1).astype(np.int64))
    for part in ("train", "valid", "test"):
        assert np.array_equal(getattr(source.splits, part), splits[part])


def test_ogbn_mag_equals_the_official_loader(tmp_path, quiet):
    from ogb.nodeproppred import NodePropPredDataset

    write_ogbn_mag(tmp_path)
    source = open_ogb("ogbn-mag", SourceOptions(root=tmp_path))
    theirs = NodePropPredDataset("ogbn-mag", root=str(tmp_path))
    graph, labels = theirs[0]
    splits = theirs.get_idx_split()
    assert {nodes.name: nodes.num_nodes for nodes in source.nodes} == graph["num_nodes_dict"]
    assert [each.relation for each in source.relations] == list(graph["edge_index_dict"])
    for each in source.relations:
        pairs = graph["edge_index_dict"][each.relation].T.tolist()
        assert read_all(each.edges.chunks(37)) == [tuple(pair) for pair in pairs]
    papers = next(nodes for nodes in source.nodes if nodes.name == "paper")
    assert np.array_equal(np.concatenate(list(papers.features.chunks(7))), graph["node_feat_dict"]["paper"])
    assert (source.labelled, source.num_classes) == ("paper", theirs.num_classes)
    assert np.array_equal(source.labels, labels["paper"][:, 0])
    for part in ("train", "valid", "test"):
        assert np.array_equal(getattr(source.splits, part), splits[part]["paper"])


@pytest.mark.parametrize(
    ("source_type", "destination"), [("author", "paper"), ("author", "institution"), ("paper", "paper")]
)
def test_relations_of_mag240m_equal_the_official_loader(
    tmp_path, quiet, monkeypatch, source_type, destination
):
    from ogb.lsc import MAG240MDataset

    (write_mag240m(tmp_path, num_papers=50) / "RELEASE_v1.txt").write_text("made up")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # the official loader needs it, ours does not
    theirs = MAG240MDataset(str(tmp_path))
    monkeypatch.delenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    source = open_mag240m(str(tmp_path), SourceOptions())
    counts = {
        "paper": theirs.num_papers,
        "author": theirs.num_authors,
        "institution": theirs.num_institutions,
    }
    assert {nodes.name: nodes.num_nodes for nodes in source.nodes} == counts
    (each,) = [each for each in source.relations if each.relation[::2] == (source_type, destination)]
    pairs = theirs.edge_index(source_type, destination).T.tolist()
    assert read_all(each.edges.chunks(9)) == [tuple(pair) for pair in pairs]


def test_mag240m_equals_the_official_loader(tmp_path, quiet, monkeypatch):
    from ogb.lsc import MAG240MDataset

    folder = write_mag240m(tmp_path, num_papers=50)
    (folder / "RELEASE_v1.txt").write_text("made up")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # the official loader needs it, ours does not
    theirs = MAG240MDataset(str(tmp_path))
    features, edges = theirs.paper_feat, theirs.edge_index("paper", "paper")
    monkeypatch.delenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    source = open_papers(str(tmp_path), SourceOptions())
    assert np.array_equal(np.concatenate(list(source.features.chunks(7))), features)
    assert read_all(source.edges.chunks(1000)) == [tuple(pair) for pair in edges.T.tolist()]
    assert np.array_equal(source.labels, np.nan_to_num(theirs.paper_label, nan=-1).astype(np.int64))
    for part, name in (("train", "train"), ("valid", "valid"), ("test", "test-dev")):
        assert np.array_equal(getattr(source.splits, part), theirs.get_idx_split(name))


@pytest.mark.parametrize("name", LINK_SPLITS)
def test_link_data_sets_equal_the_official_loader(tmp_path, quiet, monkeypatch, name):
    from ogb.linkproppred import LinkPropPredDataset

    write_ogbl(tmp_path, name)
    source = open_ogb(name, SourceOptions(root=tmp_path))
    theirs = LinkPropPredDataset(name, root=str(tmp_path))
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # the official loader needs it, ours does not
    splits = theirs.get_edge_split()
    monkeypatch.delenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    graph = theirs[0]
    assert read_all(source.edges.chunks(37)) == [tuple(pair) for pair in graph["edge_index"].T.tolist()]
    assert (source.num_nodes, source.edges.num_edges) == (graph["num_nodes"], graph["edge_index"].shape[1])
    if graph["node_feat"] is not None:
        assert np.array_equal(np.concatenate(list(source.features.chunks(7))), graph["node_feat"])
    if "edge_weight" in graph:
        weights = np.concatenate([chunk.weight for chunk in source.edges.chunks(37)])
        assert np.array_equal(weights, graph["edge_weight"][:, 0])
    tables = {table.name: table.rows for table in source.links}
    for part, held in splits.items():
        if "edge" in held:
            pairs, wrong = held["edge"], held.get("edge_neg")
        else:
            pairs, wrong = np.stack([held["source_node"], held["target_node"]], 1), None
        assert read_all(tables[part].chunks(7)) == [tuple(pair) for pair in pairs.tolist()]
        if wrong is not None:
            assert read_all(tables[f"{part}_neg"].chunks(7)) == [tuple(pair) for pair in wrong.tolist()]
        if "target_node_neg" in held:
            assert np.array_equal(np.concatenate(list(tables[part].negatives(7))), held["target_node_neg"])
