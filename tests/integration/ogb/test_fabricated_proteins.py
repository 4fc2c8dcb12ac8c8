"""A fabricated ogbn-proteins: OGB's package and we load the same labels and features of edges."""

import json
import shutil
import warnings

import numpy as np
import pytest
from fabricate import Proteins, fabricate

from gloader import Dataset
from gloader.cli.main import main
from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source
from gloader.errors import BudgetError, ShapeError, SourceError

SCALE = 0.0005
RAW = "ogbn_proteins/raw"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("proteins")
    return root, fabricate(root, "ogbn-proteins", scale=SCALE)


@pytest.fixture
def root(made, tmp_path):
    """A copy of the data set, to be damaged."""
    shutil.copytree(made[0] / "ogbn_proteins", tmp_path / "ogbn_proteins")
    return tmp_path


def test_ogb_and_we_load_the_same_arrays(made):
    root, content = made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ogb.nodeproppred import NodePropPredDataset

        theirs = NodePropPredDataset("ogbn-proteins", root=str(root))
        graph, labels = theirs[0]
    ours = open_source(f"ogb:ogbn-proteins@{root}", SourceOptions())
    chunks = list(ours.edges.chunks(999))
    edges = np.stack([np.concatenate([getattr(each, end) for each in chunks]) for end in ("src", "dst")])
    np.testing.assert_array_equal(edges, graph["edge_index"])
    assert edges.shape[1] == 2 * content.shape.edges
    np.testing.assert_array_equal(np.concatenate(list(ours.edge_features.chunks(777))), graph["edge_feat"])
    assert ours.labels.dtype == np.float32
    np.testing.assert_array_equal(ours.labels, labels)
    np.testing.assert_array_equal(labels, Proteins.of(content).labels)
    assert ours.num_classes == theirs.num_tasks == 112
    assert graph["node_feat"] is None
    for part, ids in theirs.get_idx_split().items():
        np.testing.assert_array_equal(getattr(ours.splits, part), ids)
    assert ours.unused == ("node_species (N,)",)


@pytest.mark.parametrize("max_rows", [1, 50, 10_000])
def test_features_are_the_means_over_in_edges(made, max_rows):
    root, content = made
    ours = open_source(f"ogb:ogbn-proteins@{root}", SourceOptions())
    rows = np.concatenate(list(ours.features.chunks(max_rows)))
    assert (rows.dtype, rows.shape) == (np.float32, (content.shape.nodes, 8))
    sums = [[] for _ in range(content.shape.nodes)]
    for (src, dst), row in zip(content.edges.T, Proteins.of(content).edge_features, strict=True):
        sums[src].append(row)
        sums[dst].append(row)
    expected = [np.mean(each, axis=0, dtype=np.float64) if each else np.zeros(8) for each in sums]
    np.testing.assert_allclose(rows, expected, rtol=1e-6, atol=1e-7)


def test_it_is_prepared_and_says_what_became_of_it(made, tmp_path, capsys):
    root, content = made
    main(["prepare", f"ogb:ogbn-proteins@{root}", str(tmp_path / "d"), "--json"])
    receipt = json.loads(capsys.readouterr().out)["receipt"]
    assert receipt["columns"] == (
        "features: means of the 8 edge features over a node's in-edges, as OGB's baselines"
    )
    assert receipt["not used"] == "node_species (N,)"
    assert receipt["labels"] == "112 columns of 0 and 1, multilabel"
    dataset = Dataset.open(tmp_path / "d")
    assert (dataset.label_kind, dataset.label_width, dataset.feature_dim) == ("multilabel", 112, 8)
    assert len(dataset.train) == content.shape.train
    (edges,) = dataset.edge_tables.values()
    assert edges.feature_rows is not None
    assert edges.feature_rows.feature_dim == 8
    bare = tmp_path / "bare"
    main(["prepare", f"ogb:ogbn-proteins@{root}", str(bare), "--edge-features", "none", "--json"])
    capsys.readouterr()
    (edges,) = Dataset.open(bare).edge_tables.values()
    assert edges.feature_rows is None
    np.testing.assert_array_equal(Dataset.open(bare).labelled.all_features(), dataset.labelled.all_features())


def test_a_small_budget_is_refused_before_the_labels_are_read(made):
    with pytest.raises(BudgetError, match=r"112 labels of 83 nodes take 37\.2 KB; the memory budget is"):
        open_source(f"ogb:ogbn-proteins@{made[0]}", SourceOptions(memory_budget_bytes=20_000))


@pytest.mark.parametrize(
    ("file", "rows", "error", "said"),
    [
        ("node-label", np.zeros((83, 3)), ShapeError, "has 3 columns; it must have 112, one per label"),
        (
            "node-label",
            np.zeros((60, 112)),
            ShapeError,
            "has 60 rows for 83 nodes; labels are one row per node",
        ),
        ("node-label", np.zeros((90, 112)), ShapeError, "has more than 83 rows; labels are one row per node"),
        ("node-label", np.full((83, 112), 2), SourceError, "has labels other than 0, 1 and nan"),
        ("edge-feat", None, SourceError, "has neither node-feat.csv.gz nor edge-feat.csv.gz"),
        ("edge-feat", np.zeros((9, 8)), ShapeError, "edge features end before edge"),
        (
            "edge-feat",
            np.zeros((30_000, 8)),
            ShapeError,
            "there are more rows of edge features than the 39562 edges",
        ),
        ("edge", np.full((19_781, 2), 83), SourceError, "an edge leads to node 83; nodes are 0..82"),
    ],
)
def test_damage_is_named(root, file, rows, error, said):
    path = root / RAW / f"{file}.csv.gz"
    path.unlink()
    if rows is not None:
        np.savetxt(path, rows, delimiter=",", fmt="%d")
    with pytest.raises(error, match=said):
        list(open_source(f"ogb:ogbn-proteins@{root}", SourceOptions()).features.chunks(100))
