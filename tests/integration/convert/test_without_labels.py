"""Graphs whose edges are predicted need no labels of nodes; others do."""

import json

import numpy as np
import pytest
from convert_helpers import write_folder

from gloader.cli.main import main
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.dataset import Dataset
from gloader.errors import GloaderError

NODES = 20
EDGES = np.random.default_rng(0).integers(0, NODES, (2, 100))
FEATURES = np.ones((NODES, 2), np.float32)
SPLIT = ["--edge-split", "60/20/20", "--memory-budget", "60MB"]
TYPED = "nodes:\n  user: {num_nodes: 20}\n  item: {features: features.npy}\nedges:\n  user:likes:item: edges.csv\n"


def is_without_labels(dataset):
    sizes = dataset.labelled.split_sizes.values()
    return (dataset.labels == -1).all() and not any(sizes) and dataset.num_classes == 1


@pytest.fixture
def folder(tmp_path):
    """Return a folder that is a source of three forms; none of them has labels."""
    absent = dict.fromkeys(("labels", "train", "valid", "test"))
    write_folder(tmp_path / "in", num_nodes=NODES, edges=EDGES.T, features=FEATURES, **absent)
    np.savetxt(tmp_path / "in" / "edges.csv", EDGES.T, "%d", ",", header="src,dst", comments="")
    (tmp_path / "in" / "graph.yaml").write_text(TYPED)
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("form", "hint", "refusal"),
    [
        (
            "edges:{}/edges.csv",
            "--task link",
            "needs labels; name their file with --labels FILE, or predict edges",
        ),
        ("npy:{}", "--task link", "or predict edges: --edge-split 80/10/10"),
        (
            "tables:{}",
            "--task link --model rsage",
            "labels and splits: add some, or predict edges: --edge-split 80/10/10",
        ),
    ],
)
def test_sources_need_labels_only_where_nodes_are_learned(folder, tmp_path, capsys, form, hint, refusal):
    words = ["prepare", form.format(folder), str(tmp_path / "out")]
    if form.startswith("edges"):
        words += ["--features", str(folder / "features.npy")]
    assert main(words) == 2
    assert refusal in " ".join(capsys.readouterr().err.split())
    assert main([*words, *SPLIT]) == 0
    assert f"{hint}\n" in capsys.readouterr().out
    assert is_without_labels(Dataset.open(tmp_path / "out"))
    np.save(tmp_path / "t.npy", EDGES[:, :5])
    assert main([*words, "--edge-table", f"valid={tmp_path / 't.npy'}", "--overwrite", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["links"]) == ["valid"]


def test_labels_that_are_there_are_kept(folder, tmp_path):
    np.save(folder / "labels.npy", np.arange(NODES) % 3)
    options = PrepareOptions(edge_split=(0.6, 0.2, 0.2), memory_budget_bytes=60 * 10**6)
    prepare(open_source(f"npy:{folder}", SourceOptions(needs_labels=False)), tmp_path / "out", options)
    assert Dataset.open(tmp_path / "out").labels.tolist() == [node % 3 for node in range(NODES)]


@pytest.mark.parametrize("links", [{"edge_split": "60/20/20"}, {"links": {"valid": {"edge_index": EDGES}}}])
def test_arrays_and_graphs_need_none_either(tmp_path, links):
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data")
    pairs = torch.from_numpy(EDGES)
    plain = data.Data(x=torch.from_numpy(FEATURES), edge_index=pairs)
    typed = data.HeteroData({"user": {"num_nodes": NODES}, "item": {"x": torch.from_numpy(FEATURES)}})
    typed["user", "likes", "item"].edge_index = pairs
    edges = {("user", "likes", "item"): EDGES}
    counts = {"user": NODES, "item": NODES}

    def ways(path, **options):
        yield lambda: Dataset.from_numpy(path / "numpy", features=FEATURES, edge_index=EDGES, **options)
        yield lambda: Dataset.from_numpy_hetero(path / "hetero", edges=edges, num_nodes=counts, **options)
        yield lambda: Dataset.from_pyg(typed, path / "typed", **options)
        if "links" not in options:
            yield lambda: Dataset.from_pyg(plain, path / "plain", **options)

    for make in ways(tmp_path):
        with pytest.raises(
            GloaderError, match=r"no labels .*or predict edges: .* edge_split=\(0\.8, 0\.1, 0\.1\)"
        ):
            make()
    assert not list(tmp_path.iterdir())
    for make in ways(tmp_path, **links) if "edge_split" in links else list(ways(tmp_path, **links))[:2]:
        assert is_without_labels(make())


def test_dgl_graphs_need_none_either(tmp_path):
    torch = pytest.importorskip("torch")
    dgl = pytest.importorskip("dgl")
    graph = dgl.graph(tuple(map(torch.from_numpy, EDGES)), num_nodes=NODES)
    graph.ndata["feat"] = torch.from_numpy(FEATURES)
    with pytest.raises(
        GloaderError, match=r"no labels .*or predict edges: .* edge_split=\(0\.8, 0\.1, 0\.1\)"
    ):
        Dataset.from_dgl(graph, tmp_path / "out")
    assert is_without_labels(Dataset.from_dgl(graph, tmp_path / "out", edge_split="60/20/20"))
    typed = dgl.heterograph({("user", "likes", "item"): tuple(map(torch.from_numpy, EDGES))})
    assert is_without_labels(Dataset.from_dgl(typed, tmp_path / "typed", edge_split="60/20/20"))


def test_a_way_to_split_without_shares_is_refused(tmp_path, capsys):
    assert main(["prepare", "builtin:digits", str(tmp_path / "out"), "--edge-split-by", "time"]) == 2
    assert "--edge-split-by time needs an edge split: add --edge-split 80/10/10" in capsys.readouterr().err
