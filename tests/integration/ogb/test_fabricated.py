"""Fabricated data sets are what the official packages load, and we load the same."""

import socket
import warnings

import numpy as np
import pytest
from fabricate import SHAPES, fabricate, make_content

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source

SCALES = {"ogbn-arxiv": 0.01, "ogbn-products": 0.001, "ogbn-papers100M": 0.00003}
FORMS = {
    "ogbn-arxiv": "raw/edge.csv.gz",
    "ogbn-products": "raw/edge.csv.gz",
    "ogbn-papers100M": "raw/data.npz",
}


@pytest.fixture(scope="module", autouse=True)
def offline():
    """Refuse every connection."""

    def refuse(*_args, **_options):
        raise OSError("the network is not for tests")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DGLBACKEND", "pytorch")
        patch.setattr(socket.socket, "connect", refuse)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ogb.lsc
            import ogb.nodeproppred  # noqa: F401
        yield


@pytest.fixture
def quiet():
    """Let OGB warn without failing the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", SCALES)
def test_ogb_and_we_load_the_same_arrays(tmp_path, quiet, name):
    from ogb.nodeproppred import NodePropPredDataset

    content = fabricate(tmp_path, name, scale=SCALES[name])
    folder = tmp_path / name.replace("-", "_")
    assert (folder / FORMS[name]).is_file()
    ours = open_source(f"ogb:{name}@{tmp_path}", SourceOptions())
    theirs = NodePropPredDataset(name, root=str(tmp_path))
    graph, labels = theirs[0]
    assert theirs.num_classes == ours.num_classes == content.shape.classes
    assert graph["num_nodes"] == ours.num_nodes == content.shape.nodes
    assert np.array_equal(edges_of(ours), graph["edge_index"])
    if name != "ogbn-products":  # there the package adds the other direction
        assert np.array_equal(edges_of(ours), content.edges)
    features = np.concatenate(list(ours.features.chunks(500)))
    assert features.dtype == graph["node_feat"].dtype == np.float32
    assert np.array_equal(features, graph["node_feat"])
    assert np.array_equal(features, content.features)
    assert np.array_equal(ours.labels, np.nan_to_num(labels[:, 0], nan=-1).astype(np.int64))
    for part, ids in theirs.get_idx_split().items():
        assert np.array_equal(getattr(ours.splits, part), ids)
        assert len(ids) == getattr(content.shape, part)


def test_ogb_lsc_and_we_load_the_same_papers(tmp_path, quiet, monkeypatch):
    from ogb.lsc import MAG240MDataset

    content = fabricate(tmp_path, "mag240m", scale=0.00001)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # the official loader needs it, ours does not
    theirs = MAG240MDataset(str(tmp_path))
    monkeypatch.delenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    ours = open_source(f"mag240m-papers:{tmp_path}/mag240m_kddcup2021", SourceOptions())
    assert np.array_equal(np.concatenate(list(ours.features.chunks(100))), theirs.paper_feat)
    assert np.array_equal(edges_of(ours), theirs.edge_index("paper", "paper"))
    assert np.array_equal(ours.labels, np.nan_to_num(theirs.paper_label, nan=-1).astype(np.int64))
    assert np.array_equal(ours.splits.train, theirs.get_idx_split("train"))
    assert np.array_equal(ours.splits.valid, theirs.get_idx_split("valid"))
    assert (ours.labels[content.splits["test"]] == -1).all()


def test_igb_is_what_was_written(tmp_path):
    content = fabricate(tmp_path, "igb-tiny", scale=0.005)
    ours = open_source(f"igb:{tmp_path}/igb/tiny", SourceOptions())
    assert np.array_equal(edges_of(ours), content.edges)
    assert np.array_equal(np.concatenate(list(ours.features.chunks(100))), content.features)
    assert np.array_equal(ours.labels, content.labels)


@pytest.mark.parametrize("name", SHAPES)
def test_scaled_shapes_keep_their_proportions(name):
    shape = SHAPES[name]
    scaled = shape.scaled(0.1)
    assert (scaled.dim, scaled.classes, scaled.split) == (shape.dim, shape.classes, shape.split)
    for number in ("nodes", "edges", "train", "valid", "test"):
        assert getattr(scaled, number) == pytest.approx(0.1 * getattr(shape, number), abs=1)


def test_content_shows_its_classes():
    content = make_content(SHAPES["ogbn-arxiv"].scaled(0.005))
    same = content.labels[content.edges[0]] == content.labels[content.edges[1]]
    assert same.mean() > 0.6
    parts = np.concatenate(list(content.splits.values()))
    assert len(np.unique(parts)) == len(parts)


def edges_of(source):
    chunks = list(source.edges.chunks(10_000))
    return np.stack(
        [np.concatenate([chunk.src for chunk in chunks]), np.concatenate([chunk.dst for chunk in chunks])]
    )
