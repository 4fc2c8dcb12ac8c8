"""Raw data folders of DGL's GraphBolt."""

import numpy as np
import pytest
import torch
import yaml

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source, source_files
from gloader.convert.source_check import check_source
from gloader.errors import BudgetError, GraphError, ShapeError, SourceError

N, E = 12, 30
DRAW = np.random.default_rng(0)
EDGES = DRAW.integers(0, N, (2, E))
FEATURES = DRAW.standard_normal((N, 3)).astype(np.float32)
LABELS = DRAW.integers(0, 4, N)
PARTS = {"train": np.arange(6), "validation": np.array([8, 7]), "test": np.arange(9, 12)}
OPTIONS = SourceOptions(memory_budget_bytes=10**8)


def save(folder, name, array, form="numpy"):
    """Save an array, and return its entry without a name."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if form == "torch":
        torch.save(torch.as_tensor(array), path)
    elif form == "csv":
        np.savetxt(path, np.transpose(array), "%d", delimiter=",")
    else:
        np.save(path, array)
    return {"format": form, "path": name}


def node_set(folder, part, name="seeds", form="numpy", **columns):
    """Return the entries of a set of nodes."""
    arrays = {name: PARTS[part], "labels": LABELS[PARTS[part]], **columns}
    suffix = "pt" if form == "torch" else "npy"
    return [
        {"name": key, "in_memory": True, **save(folder, f"set/{part}-{key}.{suffix}", array, form)}
        for key, array in arrays.items()
    ]


def one_type(folder, *, edges="csv", features="numpy", sets="numpy", seeds="seeds"):
    """Write the folder of a graph of one type. Return its description."""
    return {
        "dataset_name": "bolt",
        "graph": {
            "nodes": [{"num": N}],
            "edges": [save(folder, "edges.npy" if edges == "numpy" else "edges.csv", EDGES, edges)],
        },
        "feature_data": [
            {
                "domain": "node",
                "type": None,
                "name": "feat",
                **save(folder, "data/feat.x.npy", FEATURES, features),
            },
            {"domain": "node", "name": "year", **save(folder, "data/year.npy", np.arange(N))},
        ],
        "tasks": [
            {
                "name": "node_classification",
                "num_classes": 7,
                **{f"{part}_set": [{"data": node_set(folder, part, seeds, sets)}] for part in PARTS},
            }
        ],
    }


def opened(folder, description, options=OPTIONS):
    (folder / "metadata.yaml").write_text(yaml.safe_dump(description))
    source = open_source(f"graphbolt:{folder}", options)
    check_source(source)
    return source


def pairs(stream):
    return [
        pair
        for chunk in stream.chunks(7)
        for pair in zip(chunk.src.tolist(), chunk.dst.tolist(), strict=True)
    ]


@pytest.mark.parametrize("forms", [("csv", "numpy", "numpy"), ("numpy", "torch", "torch")])
@pytest.mark.parametrize("seeds", ["seeds", "seed_nodes"])
def test_a_graph_of_one_type(tmp_path, forms, seeds):
    edges, features, sets = forms
    source = opened(tmp_path, one_type(tmp_path, edges=edges, features=features, sets=sets, seeds=seeds))
    assert (source.name, source.num_nodes, source.num_classes) == ("bolt", N, 7)
    assert pairs(source.edges) == list(zip(*EDGES.tolist(), strict=True))
    np.testing.assert_array_equal(np.concatenate(list(source.features.chunks(5))), FEATURES)
    expected = np.where(np.isin(np.arange(N), np.concatenate(list(PARTS.values()))), LABELS, -1)
    np.testing.assert_array_equal(source.labels, expected)
    for part, name in zip(("train", "valid", "test"), PARTS, strict=True):
        np.testing.assert_array_equal(getattr(source.splits, part), PARTS[name])
    assert source.unused == ("year (N,)",)


def several_types(folder):
    """Write the folder of a graph with papers and authors. Return its description."""
    both = {
        "author:writes:paper": np.array([[0, 1, 2, 3], [5, 6, 7, 8]]),
        "paper:cites:paper": EDGES,
    }
    weight = {"domain": "edge", "type": "author:writes:paper", "name": "weight"}
    return {
        "graph": {
            "nodes": [{"type": "paper", "num": N}, {"type": "author", "num": 4}],
            "edges": [
                {"type": key, **save(folder, f"{key.replace(':', '-')}.csv", array, "csv")}
                for key, array in both.items()
            ],
            "feature_data": [{**weight, **save(folder, "w.npy", np.array([1.0, 2, 3, 4]))}],
        },
        "feature_data": [
            {"domain": "node", "type": "paper", "name": "feat", **save(folder, "p.npy", FEATURES)},
            {
                "domain": "edge",
                "type": "paper:cites:paper",
                "name": "feat",
                **save(folder, "e.npy", np.ones((E, 2))),
            },
        ],
        "tasks": [{f"{part}_set": [{"type": "paper", "data": node_set(folder, part)}] for part in PARTS}],
    }


def test_a_graph_of_several_types(tmp_path):
    source = opened(tmp_path, several_types(tmp_path))
    assert source.num_nodes == {"paper": N, "author": 4}
    assert (source.labelled, source.num_classes) == ("paper", int(LABELS.max()) + 1)
    writes, cites = source.relations
    (chunk,) = writes.edges.chunks(10)
    assert (writes.relation, chunk.weight.tolist()) == (("author", "writes", "paper"), [1, 2, 3, 4])
    assert (cites.edge_features.num_rows, cites.edge_features.dim) == (E, 2)
    assert [each.features is not None for each in source.nodes] == [True, False]


NEGATIVES = DRAW.integers(0, N, (5, 3))


def link_task(form):
    """Return the arrays of a validation set of pairs, in one of GraphBolt's forms."""
    edges = EDGES[:, :5].T
    if form == "negative_dsts":
        return {"node_pairs": edges, "negative_dsts": NEGATIVES}
    wrong = np.stack([np.repeat(edges[:, 0], 3), NEGATIVES.ravel()], 1)
    order = DRAW.permutation(5 + 15)
    return {
        "seeds": np.concatenate([edges, wrong])[order],
        "labels": np.repeat([1, 0], [5, 15])[order],
        "indexes": np.concatenate([np.arange(5), np.repeat(np.arange(5), 3)])[order],
    }


@pytest.mark.parametrize("form", ["negative_dsts", "indexes"])
@pytest.mark.parametrize("name", [None, "paper:cites:paper"])
def test_pairs_of_nodes_are_link_tables(tmp_path, form, name):
    description = one_type(tmp_path) if name is None else several_types(tmp_path)
    arrays = link_task(form)
    data = [{"name": key, **save(tmp_path, f"set/{key}.npy", array)} for key, array in arrays.items()]
    train = {"name": "seeds", **save(tmp_path, "set/train.npy", EDGES.T)}
    description["tasks"] = [
        {
            "train_set": [{"type": name, "data": [train]}],
            "validation_set": [{"type_name": name, "data": data}],
        }
    ]
    source = opened(tmp_path, description)
    assert [(each.name, each.relation) for each in source.links] == [("train", name), ("valid", name)]
    rows = source.links[1].rows
    got = pairs(rows)
    negatives = dict(zip(got, np.concatenate(list(rows.negatives(2))).tolist(), strict=True))
    given = dict(zip(map(tuple, EDGES[:, :5].T.tolist()), NEGATIVES.tolist(), strict=True))
    assert {key: sorted(values) for key, values in negatives.items()} == {
        key: sorted(values) for key, values in given.items()
    }
    assert (source.labels == -1).all()


def test_labels_of_pairs_are_labels_of_the_table(tmp_path):
    description = one_type(tmp_path)
    arrays = {"seeds": EDGES.T, "labels": np.arange(E) % 3}
    data = [{"name": key, **save(tmp_path, f"set/l-{key}.npy", array)} for key, array in arrays.items()]
    description["tasks"].append({"train_set": [{"data": data}]})
    (table,) = opened(tmp_path, description).links
    np.testing.assert_array_equal(np.concatenate(list(table.rows.labels(9))), arrays["labels"])


def test_another_task_of_nodes_is_named(tmp_path):
    description = one_type(tmp_path)
    description["tasks"].append({"train_set": [{"data": node_set(tmp_path, "train")}]})
    description["citation"] = "someone"
    assert opened(tmp_path, description).unused == (
        "year (N,)",
        "seeds of train of another task",
        "labels of train of another task",
        "citation of metadata.yaml",
    )


def test_node_data_named_label_do_not_hide_the_labels_of_the_task(tmp_path):
    description = one_type(tmp_path)
    description["feature_data"].append(
        {"domain": "node", "name": "label", **save(tmp_path, "l.npy", np.full(N, 3))}
    )
    source = opened(tmp_path, description)
    assert source.labels[0] == LABELS[0]
    assert "label (feature_data) (N,)" in source.unused


def test_node_data_named_label_are_labels_without_a_task(tmp_path):
    description = one_type(tmp_path)
    description["feature_data"].append({"domain": "node", "name": "label", **save(tmp_path, "l.npy", LABELS)})
    del description["tasks"]
    np.testing.assert_array_equal(opened(tmp_path, description).labels, LABELS)


def test_the_files_are_those_of_the_description(tmp_path):
    opened(tmp_path, one_type(tmp_path))
    (tmp_path / "preprocessed").mkdir()
    (tmp_path / "preprocessed/other.pt").write_bytes(b"")
    files = {path.relative_to(tmp_path).as_posix() for path in source_files(f"graphbolt:{tmp_path}", OPTIONS)}
    assert files == {"metadata.yaml", "edges.csv", "data/feat.x.npy", "data/year.npy"} | {
        f"set/{part}-{name}.npy" for part in PARTS for name in ("seeds", "labels")
    }


def test_preprocessed_data_are_refused(tmp_path):
    (tmp_path / "preprocessed").mkdir()
    text = r"preprocessed data, which is never read; give the raw folder, whose metadata\.yaml"
    with pytest.raises(SourceError, match=text):
        open_source(f"graphbolt:{tmp_path}", OPTIONS)
    with pytest.raises(SourceError, match=text):
        opened(tmp_path, {"graph_topology": {"type": "FusedCSCSamplingGraph", "path": "x.pt"}})


def changed(description, change):
    change(description)
    return description


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda d: d["graph"].pop("nodes"), SourceError, r"graph\.nodes is missing"),
        (lambda d: d["graph"]["nodes"][0].update(num="12"), SourceError, "has the num '12'; it is a number"),
        (
            lambda d: d["graph"]["nodes"][0].update(num=5),
            ShapeError,
            r"year has shape \(12,\) for 5 nodes|feat has",
        ),
        (
            lambda d: d["graph"]["edges"][0].update(format="parquet"),
            SourceError,
            "format 'parquet'; it must be csv",
        ),
        (lambda d: d["graph"]["edges"][0].update(path="no.csv"), SourceError, r"no\.csv is missing"),
        (
            lambda d: d["feature_data"][0].update(format="csv"),
            SourceError,
            "format 'csv'; it must be numpy or torch",
        ),
        (lambda d: d["feature_data"][0].update(path=3), SourceError, "has the path 3; it must be a text"),
        (
            lambda d: d["feature_data"][0].update(type="paper"),
            SourceError,
            "names the type 'paper'; types are None",
        ),
        (lambda d: d["feature_data"][1].update(name="feat"), SourceError, "has node data 'feat' twice"),
        (
            lambda d: d["tasks"][0]["train_set"][0]["data"].pop(0),
            SourceError,
            "has labels; it must have seeds",
        ),
        (
            lambda d: d["tasks"][0]["train_set"][0].update(type="x"),
            SourceError,
            "names the type 'x'; types are None",
        ),
        (
            lambda d: d.update(tasks={"train_set": 1}),
            SourceError,
            "tasks is .*; it must be a list of entries",
        ),
        (lambda d: d.update(tasks=[]), SourceError, "has no labels"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, error, text):
    with pytest.raises(error, match=rf"metadata\.yaml.*({text})"):
        opened(tmp_path, changed(one_type(tmp_path), change))


@pytest.mark.parametrize(
    ("name", "array", "error", "text"),
    [
        ("set/train-seeds.npy", np.arange(20), ShapeError, "holds 20 ids for 12 nodes"),
        ("set/train-seeds.npy", np.arange(7, 13), SourceError, r"has nodes 7 to 12; nodes are 0\.\.11"),
        (
            "set/train-seeds.npy",
            np.zeros((6, 3), int),
            ShapeError,
            r"has seeds of shape \(6, 3\); they are \(n,\)",
        ),
        ("set/train-labels.npy", np.arange(5), ShapeError, "has 5 labels for 6 nodes"),
        ("edges.csv", "0,1,5\n", SourceError, "has 3 columns; GraphBolt's edges are two"),
        ("edges.csv", "0,x\n1,2\n", GraphError, r"edges\.csv: row .*'x'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, name, array, error, text):
    description = one_type(tmp_path)
    if isinstance(array, str):
        (tmp_path / name).write_text("1,2\n1,2\n" + array if "x" in array else array)
    else:
        np.save(tmp_path / name, array)
    with pytest.raises(error, match=text):
        pairs(opened(tmp_path, description).edges)


def test_negatives_that_fit_no_edge_are_refused(tmp_path):
    arrays = link_task("indexes")
    is_one_negative = np.arange(20) == np.flatnonzero(arrays["labels"] == 0)[0]
    for change, text in (
        ({"indexes": arrays["indexes"] * 0}, "every index must have one pair with label 1"),
        ({"seeds": arrays["seeds"] + is_one_negative[:, None]}, "negative pairs with other sources"),
    ):
        description = one_type(tmp_path)
        given = {**arrays, **change}
        data = [{"name": key, **save(tmp_path, f"set/{key}.npy", array)} for key, array in given.items()]
        description["tasks"] = [{"test_set": [{"data": data}]}]
        with pytest.raises(SourceError, match=text):
            opened(tmp_path, description)
        with pytest.raises(BudgetError, match="pairs with negatives between them: they take 960"):
            opened(tmp_path, description, SourceOptions(memory_budget_bytes=900))
