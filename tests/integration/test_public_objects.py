"""Objects of users: each prints a line or a few, never its arrays, and answers a slip in an attribute's name."""

import copy
import gc
import pickle
import re
from dataclasses import fields

import numpy as np
import pytest
import torch

import gloader
import gloader.compat.dgl as dgl
from gloader.errors import ConfigError, DglFeatureError, SeedError, ShapeError

NAMES = {
    "Dataset": "num_nodes",
    "typed Dataset": "num_nodes",
    "node tables": None,
    "node table": "num_nodes",
    "edge table": "num_edges",
    "link table": "num_rows",
    "store": "num_rows",
    "graph": "num_edges",
    "typed graph": "relations",
    "Loader": "state_dict",
    "HeteroLoader": "state_dict",
    "LinkLoader": "state_dict",
    "batch": "num_seeds",
    "block": "num_dst",
    "typed batch": "blocks",
    "link batch": "num_positives",
    "negatives": None,
    "DGLGraph": "num_nodes",
    "frame": None,
    "stored rows": "shape",
    "nodes": None,
    "edges": None,
    "sampler": None,
    "edge sampler": None,
    "DataLoader": "state_dict",
    "DGL block": "num_src_nodes",
    "GraphData": "num_nodes",
    "HeteroGraphData": "num_nodes",
    "NodeData": "num_nodes",
    "EdgeData": "num_edges",
    "NeighborLoader": "state_dict",
    "LinkNeighborLoader": "state_dict",
    "Data": None,
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """One of each kind, of a graph of many types and large enough that an array would be several lines."""
    root, rng = tmp_path_factory.mktemp("objects"), np.random.default_rng(3)
    features = rng.standard_normal((500, 16)).astype(np.float32)
    one = gloader.Dataset.from_numpy(
        root / "one",
        features=features,
        labels=rng.integers(0, 3, 500),
        edge_index=rng.integers(0, 500, (2, 4000)),
        edge_split=(0.8, 0.1, 0.1),
    )
    several = gloader.Dataset.from_numpy_hetero(
        root / "several",
        edges={("paper", f"cites_{k}", "paper"): rng.integers(0, 500, (2, 900)) for k in range(20)},
        labels={"paper": rng.integers(0, 3, 500)},
        features={"paper": features},
    )
    how = {"fanouts": [5, 5], "batch_size": 128}
    found = {
        "Dataset": one,
        "typed Dataset": several,
        "node tables": several.node_tables,
        "node table": several.node_tables["paper"],
        "edge table": next(iter(several.edge_tables.values())),
        "link table": one.link_table("train"),
        "store": one.open_features(),
        "graph": one.load_graph(),
        "typed graph": several.load_hetero_graph(),
        "Loader": gloader.Loader(one, **how),
        "HeteroLoader": gloader.HeteroLoader(several, **how),
        "LinkLoader": gloader.LinkLoader(one, edges="train", negatives=gloader.Uniform(2), **how),
        "negatives": gloader.Uniform(2),
        "DGLGraph": dgl.DGLGraph(one),
        "sampler": dgl.dataloading.NeighborSampler([5]),
    }
    found["batch"] = next(iter(found["Loader"]))
    found["block"] = found["batch"].blocks[0]
    found["typed batch"] = next(iter(found["HeteroLoader"]))
    found["link batch"] = next(iter(found["LinkLoader"]))
    g = found["DGLGraph"]
    found |= {"frame": g.ndata, "stored rows": g.ndata["feat"], "nodes": g.nodes, "edges": g.edges}
    found["edge sampler"] = dgl.dataloading.as_edge_prediction_sampler(found["sampler"])
    found["DataLoader"] = dgl.dataloading.DataLoader(g, torch.arange(300), found["sampler"], batch_size=100)
    found["DGL block"] = next(iter(found["DataLoader"]))[2][0]
    try:
        from gloader.adapters import pyg
    except ImportError:
        pass
    else:
        found |= {"GraphData": pyg.GraphData(one), "HeteroGraphData": pyg.HeteroGraphData(several)}
        found["NodeData"] = found["HeteroGraphData"]["paper"]
        found["EdgeData"] = found["HeteroGraphData"]["paper", "cites_3", "paper"]
        found["NeighborLoader"] = pyg.NeighborLoader(found["GraphData"], [5], batch_size=100)
        found["LinkNeighborLoader"] = pyg.LinkNeighborLoader(one, [5], neg_sampling="binary", batch_size=100)
        found["Data"] = next(iter(found["NeighborLoader"]))
    yield found
    for each in found.values():
        if callable(close := getattr(each, "close", None)) and not isinstance(each, gloader.Dataset):
            close()
    found.clear()
    gc.collect()


@pytest.mark.parametrize("name", NAMES)
def test_an_object_prints_sizes_and_no_arrays(name, objects):
    if name not in objects:
        pytest.skip("PyG is not installed")
    text = repr(objects[name])
    assert " object at 0x" not in text
    assert "tensor(" not in text
    assert "array(" not in text
    lines = re.sub(r"'/[^']*'", "''", text).splitlines()  # paths are as long as they are
    assert max(map(len, lines)) < 200
    if name != "HeteroGraphData":  # a line for each type, as PyG's HeteroData
        assert "\n" not in text


@pytest.mark.parametrize("name", [name for name, known in NAMES.items() if known is not None])
def test_a_slip_in_an_attribute_is_answered(name, objects):
    if name not in objects:
        pytest.skip("PyG is not installed")
    known = NAMES[name]
    with pytest.raises((AttributeError, DglFeatureError), match=f"did you mean '{known}'"):
        getattr(objects[name], known + known[-1])


def test_what_other_libraries_call_it_is_answered(objects):
    with pytest.raises(AttributeError, match="a Dataset has no 'num_features'; did you mean 'feature_dim'"):
        _ = objects["Dataset"].num_features
    with pytest.raises(AttributeError, match="a Dataset has no 'train_mask'; did you mean 'train'"):
        _ = objects["Dataset"].train_mask
    with pytest.raises(
        AttributeError,
        match="a ReadyBatch has no 'edge_index'; it has blocks, embedded, id, nodes, num_seeds",
    ):
        _ = objects["batch"].edge_index


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("papers", "'papers' is no type or relation of this batch; did you mean 'paper'?"),
        ("venue", "'venue' is no type or relation of this batch; there are 'paper'"),
    ],
)
def test_a_type_that_a_batch_does_not_have_is_answered(key, said, objects):
    batch = objects["typed batch"]
    for mapping in (batch.x, batch.nodes, batch.num_seeds):
        with pytest.raises(KeyError, match=re.escape(said)):
            _ = mapping[key]
        assert mapping.get(key) is None
        assert key not in mapping
        assert copy.copy(mapping) == mapping == dict(mapping)


def test_a_relation_that_is_not_there_is_answered(objects):
    slip = ("paper", "cite_3", "paper")
    with pytest.raises(KeyError, match=r"did you mean \('paper', 'cites_3', 'paper'\)"):
        _ = objects["typed batch"].blocks[0][slip]
    with pytest.raises(
        KeyError, match=r"no relation of this dataset; did you mean \('paper', 'cites_3', 'paper'\)"
    ):
        _ = objects["typed Dataset"].edge_tables[slip]


@pytest.mark.parametrize("name", ["batch", "typed batch", "link batch", "block", "typed graph"])
def test_what_answers_slips_is_copied_and_pickled_as_before(name, objects):
    """Protocols ask for names that are not there, and take an AttributeError alone for an answer."""
    value = objects[name]
    assert not hasattr(value, "num_seed")
    assert getattr(value, "__array__", None) is None
    assert repr(copy.copy(value)) == repr(value)
    if name != "block":  # its ids are fetched when they are read
        assert repr(pickle.loads(pickle.dumps(value))) == repr(value)  # noqa: S301 - made here
    assert copy.copy(value).__class__(**{each.name: getattr(value, each.name) for each in fields(value)})


def test_what_a_matrix_on_the_ssd_is_not_asked_for_is_said(objects):
    with pytest.raises(
        AttributeError, match=r"a StoredRows has no 'mean': the features stay on the SSD; index the"
    ):
        objects["stored rows"].mean(0)


def test_a_printed_batch_says_its_shapes(objects):
    batch = objects["batch"]
    text = repr(batch)
    assert text.startswith("ReadyBatch(id=BatchId(epoch=0, index=0), x=[")
    assert (
        f"x=[{len(batch.nodes)}, 16], y=[128], blocks=2, nodes=[{len(batch.nodes)}], num_seeds=128)" in text
    )


def test_edge_ids_of_a_block_are_not_fetched_to_print_it(objects):
    asked = []
    batch = objects["batch"]
    block = type(batch.blocks[0])(
        indptr=torch.zeros(2, dtype=torch.int32),
        indices=torch.zeros(0, dtype=torch.int32),
        edge_ids=lambda: asked.append(1),
        src_degree=torch.zeros(1),
        num_src=1,
        num_dst=1,
    )
    assert "num_src=1" in repr(block)
    assert not asked


def seeds_of(loader):
    with loader:
        return np.sort(loader.seeds)


@pytest.mark.parametrize("kind", ["numpy", "torch", "list"])
def test_a_mask_of_all_nodes_stands_for_its_ids(kind, objects):
    """PyG's loaders take ``data.train_mask``."""
    mask = np.zeros(500, bool)
    mask[[3, 8, 499]] = True
    given = {"numpy": mask, "torch": torch.tensor(mask), "list": mask.tolist()}[kind]
    how = {"fanouts": [2], "batch_size": 2}
    assert seeds_of(gloader.Loader(objects["Dataset"], seeds=given, **how)).tolist() == [3, 8, 499]
    for seeds in (given, ("paper", given), {"paper": given}, ("paper", [3, 8, 499])):
        loader = gloader.HeteroLoader(objects["typed Dataset"], seeds=seeds, **how)
        assert seeds_of(loader).tolist() == [3, 8, 499]
    rows = objects["store"].load(given).array
    assert np.array_equal(rows, objects["store"].load([3, 8, 499]).array)
    assert rows.shape == (3, 16)


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ("test", "seeds='test' are not ids; for a split, pass dataset.train, dataset.valid or dataset.test"),
        (np.ones(3, bool), "seeds are a mask of shape (3,); its shape must be (500,), or pass ids"),
        ([[1, 2], [3]], "seeds are [[1, 2], [3]]; they must be one list, or array, of ids"),
        (7, "seeds have shape (); they must have one dimension"),
    ],
)
def test_seeds_that_are_no_ids_are_refused_in_one_sentence(seeds, said, objects):
    for loader, dataset in ((gloader.Loader, "Dataset"), (gloader.HeteroLoader, "typed Dataset")):
        with pytest.raises(SeedError, match=re.escape(said)):
            loader(objects[dataset], seeds=seeds, fanouts=[2], batch_size=2)
    with pytest.raises(SeedError, match=r"seeds by node type are for gloader\.HeteroLoader"):
        gloader.Loader(objects["Dataset"], seeds=("paper", [1]), fanouts=[2], batch_size=1)


@pytest.mark.parametrize(
    "edges",
    [np.array([[0, 1], [1, 2]]), [1, 2], ("train", np.array([1]))],
    ids=lambda each: type(each).__name__,
)
def test_edges_that_are_no_name_of_a_table_are_refused_in_one_sentence(edges, objects):
    said = f"given by the name of a link table, not by a {type(edges).__name__}; there are 'train', 'valid', 'test'."
    with pytest.raises(ConfigError, match=re.escape(said)):
        gloader.LinkLoader(objects["Dataset"], edges=edges, fanouts=[2], batch_size=2)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (5, "rows have shape (); they must have one dimension"),
        ([0.5], "rows have dtype float64; they must be integers"),
        (np.ones(3, bool), "rows are a mask of shape (3,); its shape must be (500,)"),
        ([0, 500], "rows: 1 ids are out of range 0..499: 500"),
    ],
)
def test_rows_that_are_no_ids_are_refused_in_one_sentence(rows, said, objects):
    with pytest.raises(ShapeError, match=re.escape(said)):
        objects["store"].load(rows)
    with pytest.raises(ShapeError, match="rows must be a one-dimensional array of int64"):
        objects["store"].read_into([0.5], np.empty((1, 16), np.float32))
