"""The dataset and the table that hop columns become: what is kept of the given dataset, and what is refused."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from tasks import task_arrays, write_tasks

import gloader
from gloader.dataset import Dataset
from gloader.dataset.schema import relation_text
from gloader.dataset.verify import verify_dataset
from gloader.errors import ConfigError
from gloader.ssd_store.format.manifest import EDGE_COLUMNS_FEATURE, KEYS_FEATURE, LABEL_VALUES_FEATURE
from gloader.training.propagation.hop_dataset import write_hop_dataset
from gloader.training.propagation.hop_rows import HopGroup, HopRows, column_names, write_hop_table

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

N, WIDTH = 300, 5
GROUPS = (HopGroup(name="x", columns=("a", "b")), HopGroup(name="in1.mean", columns=("a", "b", "c")))


class Made:
    """Finished columns in memory."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self.rows = rows

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.rows[start:stop]


def hop_rows(nodes: Any, dtype: str = "float32", rows: NDArray[Any] | None = None) -> HopRows:
    if rows is None:
        rows = np.random.default_rng(5).normal(size=(len(nodes), WIDTH)).astype(np.float32)
    return HopRows(nodes=nodes, groups=GROUPS, dtype=dtype, features=Made(rows), labels=None)


def plain(path: Path, **more: Any) -> Dataset:
    random = np.random.default_rng(0)
    ids = random.permutation(N)
    given: dict[str, Any] = {
        "features": random.normal(size=(N, 2)).astype(np.float32),
        "labels": random.integers(0, 4, N),
        "edge_index": random.integers(0, N, (2, 900)),
        "train": ids[:100],
        "valid": ids[100:130],
        "test": ids[130:150],
    }
    return Dataset.from_numpy(path, **given | more)


KEYS: dict[str, list[Any]] = {
    "text": [f"node {i * 7919 % N:03}" for i in range(N)],
    "int64": [(i * 7919) % 10_007 - 50 for i in range(N)],
    "uuid": [str(uuid.UUID(int=i * 7919)) for i in range(N)],
}


def key_column(kind: str) -> Any:
    if kind != "uuid":
        return pa.array(KEYS[kind])
    return pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([uuid.UUID(each).bytes for each in KEYS[kind]], pa.binary(16))
    )


def keyed(path: Path, kind: str, **more: Any) -> Dataset:
    """A graph whose nodes have keys; one in ten is in no split."""
    random = np.random.default_rng(0)
    keys = key_column(kind)
    split = random.choice(["train", "valid", "test", "unused"], N, p=[0.5, 0.2, 0.2, 0.1])
    nodes = pa.table(
        {"id": keys, "size": random.normal(size=N), "y": random.integers(0, 3, N), "split": split}
    )
    edges = pa.table({end: keys.take(pa.array(random.permutation(N))) for end in ("src", "dst")})
    entry = {"table": nodes, "key": "id", "columns": ["size"], "labels": "y", "split": "split"}
    return gloader.prepare(nodes={"node": entry}, edges=edges, out=path, **more)


def write(dataset: Dataset, out: Path, rows: HopRows, **metadata: Any) -> Dataset:
    write_hop_dataset(out, dataset, rows, metadata, overwrite=False, chunk_rows=37, budget_bytes=10**8)
    assert verify_dataset(out).is_ok
    return Dataset.open(out)


def test_all_nodes_of_one_type_keep_edges_and_links(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    dataset = plain(
        tmp_path / "d",
        edge_features=random.normal(size=(900, 2)).astype(np.float32),
        edge_dtype="int8",
        edge_weight=random.random(900).astype(np.float32),
        links={"train": {"edge_index": random.integers(0, N, (2, 50))}},
        label_names=list("wxyz"),
    )
    rows = hop_rows(range(N))
    made = write(dataset, tmp_path / "hops", rows, hops={"columns": []})
    assert isinstance(rows.features, Made)
    assert made.labelled.all_features().tobytes() == rows.features.rows.tobytes()
    for name, record in dataset.arrays.items():
        assert name == "features" or made.arrays[name] == record
    assert (made.root / "indices.npy").samefile(dataset.root / "indices.npy")
    assert made.required_features == dataset.required_features
    assert made.link_table("train").num_rows == 50
    assert (made.name, made.num_classes, made.label_names) == ("hops", 4, ("w", "x", "y", "z"))
    assert made.metadata["hops"] == {"columns": []}
    assert made.metadata["receipt"] == dataset.metadata["receipt"]


def test_task_tables_and_row_times_stay_with_all_nodes_of_one_type(tmp_path: Path) -> None:
    tables = {"t.train": task_arrays(50), "t.valid": task_arrays(9, kind="values", times=False)}
    dataset = write_tasks(tmp_path / "d", tables)
    made = write(dataset, tmp_path / "hops", hop_rows(range(40)))
    assert set(made.required_features) == set(dataset.required_features)
    assert (made.labelled.row_times == dataset.labelled.row_times).all()
    assert list(made.task_tables) == list(tables)
    for name, arrays in tables.items():
        table = made.task_table(name)
        with table.open(max_bytes=10**6) as rows:
            arrays.require(rows.read(np.arange(table.num_rows)), np.arange(table.num_rows))
    some = write(dataset, tmp_path / "some", hop_rows(np.arange(40)))
    assert not some.task_tables
    assert not some.labelled.has_row_times


def test_rules_of_edge_features_stay_with_them(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    nodes = pa.table({"id": range(N), "size": random.normal(size=N), "y": random.integers(0, 3, N)})
    ends = {end: random.integers(0, N, 900) for end in ("src", "dst")}
    edges = pa.table(ends | {"kind": random.choice(["a", "b"], 900)})
    dataset = gloader.prepare(
        nodes={"node": {"table": nodes, "key": "id", "columns": ["size"], "labels": "y"}},
        edges={("node", "pays", "node"): {"table": edges, "columns": [{"name": "kind", "as": "index"}]}},
        out=tmp_path / "d",
    )
    relation = relation_text(dataset.relations[0])
    made = write(dataset, tmp_path / "hops", hop_rows(range(N)))
    assert made.encoders(relation) == dataset.encoders(relation) is not None
    assert made.encoders() is None
    assert dataset.encoders() is not None


def test_some_nodes_keep_their_labels_splits_and_ids(tmp_path: Path) -> None:
    dataset = plain(tmp_path / "d", order="degree", label_names=list("wxyz"))
    nodes = np.unique(np.concatenate([dataset.train, dataset.valid, dataset.test]))
    made = write(dataset, tmp_path / "hops", hop_rows(nodes))
    assert (made.num_nodes, made.num_edges, made.has_self_loops) == (150, 0, False)
    for split in ("train", "valid", "test"):
        assert (nodes[getattr(made, split)] == getattr(dataset, split)).all()
    assert (made.labels == dataset.labels[nodes]).all()
    assert dataset.original_ids is not None
    assert made.original_ids is None
    assert (made.keys_of(np.arange(150)) == dataset.original_ids[nodes]).all()
    assert (made.ids_of(dataset.original_ids[nodes]) == np.arange(150)).all()
    assert made.required_features == (KEYS_FEATURE,)
    assert made.label_names == ("w", "x", "y", "z")


@pytest.mark.parametrize("kind", sorted(KEYS))
@pytest.mark.parametrize("order", ["none", "degree"])
def test_keys_stay_with_their_nodes(tmp_path: Path, kind: str, order: str) -> None:
    dataset = keyed(tmp_path / "d", kind, order=order)
    assert dataset.labelled.key_kind == kind
    everywhere = write(dataset, tmp_path / "all", hop_rows(range(N)))
    assert (everywhere.keys_of(np.arange(N)) == dataset.keys_of(np.arange(N))).all()
    nodes = np.unique(np.concatenate([dataset.train, dataset.valid, dataset.test]))
    assert len(nodes) < N
    made = write(dataset, tmp_path / "some", hop_rows(nodes))
    assert made.labelled.key_kind == kind
    assert (made.keys_of(np.arange(len(nodes))) == dataset.keys_of(nodes)).all()
    assert (made.ids_of(dataset.keys_of(nodes)) == np.arange(len(nodes))).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_columns_are_rounded_as_features_are(tmp_path: Path, dtype: str) -> None:
    values = np.random.default_rng(5).normal(size=(N, WIDTH)).astype(np.float32)
    dataset = plain(tmp_path / "d")
    Dataset.from_numpy(
        tmp_path / "direct",
        features=values,
        labels=dataset.labels,
        edge_index=np.zeros((2, 0), np.int64),
        dtype=dtype,
    )
    made = write(dataset, tmp_path / "hops", hop_rows(range(N), dtype, values))
    direct = Dataset.open(tmp_path / "direct")
    assert made.arrays["features"].digest == direct.arrays["features"].digest
    assert (made.feature_dtype, made.feature_dim) == (dtype, WIDTH)


def test_values_as_labels_and_edge_columns_need_their_format_features(tmp_path: Path) -> None:
    labels = np.random.default_rng(2).normal(size=(N, 2)).astype(np.float32)
    dataset = plain(tmp_path / "d", labels=labels, edge_time=np.arange(900), label_names=["size", "age"])
    assert dataset.required_features == (EDGE_COLUMNS_FEATURE, LABEL_VALUES_FEATURE)
    everywhere = write(dataset, tmp_path / "all", hop_rows(range(N)))
    assert set(everywhere.required_features) == {EDGE_COLUMNS_FEATURE, LABEL_VALUES_FEATURE}
    nodes = np.unique(np.concatenate([dataset.train, dataset.valid, dataset.test]))
    made = write(dataset, tmp_path / "some", hop_rows(nodes))
    assert set(made.required_features) == {KEYS_FEATURE, LABEL_VALUES_FEATURE}
    assert (made.label_kind, made.label_names) == ("values", ("size", "age"))
    assert np.array_equal(made.labels, labels[nodes], equal_nan=True)


def several(path: Path) -> Dataset:
    random = np.random.default_rng(0)
    return Dataset.from_numpy_hetero(
        path,
        num_nodes={"author": 50, "paper": N},
        features={"paper": random.normal(size=(N, 2)).astype(np.float32)},
        edges={
            ("author", "writes", "paper"): np.stack([random.integers(0, 50, 400), random.integers(0, N, 400)])
        },
        labels={"paper": random.integers(0, 4, N)},
        train=np.arange(0, N, 3),
        valid=np.arange(1, N, 3),
        test=np.arange(2, N, 3),
    )


def test_several_types_become_one_without_edges(tmp_path: Path) -> None:
    dataset = several(tmp_path / "d")
    made = write(dataset, tmp_path / "hops", hop_rows(range(N)))
    assert (made.kind, made.num_nodes, made.num_edges) == ("homogeneous", N, 0)
    assert (made.labels == dataset.labels).all()
    assert (made.test == dataset.test).all()
    assert made.required_features == ()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_table_has_key_split_label_and_columns(tmp_path: Path, suffix: str, dtype: str) -> None:
    dataset = keyed(tmp_path / "d", "text", order="degree")
    nodes = np.arange(3, N, 2)
    rows = np.random.default_rng(5).normal(size=(len(nodes), WIDTH)).astype(dtype)
    out = tmp_path / f"t{suffix}"
    write_hop_table(out, dataset, hop_rows(nodes, dtype, rows), chunk_rows=37)
    table = pa.csv.read_csv(out) if suffix == ".csv" else pa.parquet.read_table(out)
    assert table.column_names == [
        "key",
        "split",
        "label",
        "x.a",
        "x.b",
        "in1.mean.a",
        "in1.mean.b",
        "in1.mean.c",
    ]
    assert table["key"].to_pylist() == dataset.keys_of(nodes).tolist()
    assert table["label"].to_pylist() == dataset.labels[nodes].tolist()
    names = {int(node): name for name in ("train", "valid", "test") for node in getattr(dataset, name)}
    assert table["split"].to_pylist() == [
        names.get(int(node), "" if suffix == ".csv" else None) for node in nodes
    ]
    columns = np.stack([table[name].to_numpy() for name in table.column_names[3:]], axis=1)
    assert np.allclose(columns, rows, rtol=1e-6 if dtype == "float32" else 0, atol=0)


def test_a_table_without_keys_names_ids_and_shows_what_is_unknown(tmp_path: Path) -> None:
    labels = np.random.default_rng(2).normal(size=(N, 2)).astype(np.float32)
    labels[200:, 1] = np.nan
    dataset = plain(
        tmp_path / "d", labels=labels, train=np.arange(100), valid=np.arange(0), test=np.arange(100, 120)
    )
    write_hop_table(tmp_path / "t.parquet", dataset, hop_rows(range(N)), chunk_rows=37)
    table = pa.parquet.read_table(tmp_path / "t.parquet")
    assert table.column_names[:4] == ["id", "split", "label.0", "label.1"]
    assert table["id"].to_pylist() == list(range(N))
    assert table["label.1"].null_count == 100
    split = table["split"].to_pylist()
    assert split == ["train"] * 100 + ["test"] * 20 + [None] * (N - 120)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    dataset = plain(tmp_path / "d")
    rows = HopRows(
        nodes=range(N),
        groups=(HopGroup(name="x", columns=("a", "a")),),
        dtype="float32",
        features=Made(np.zeros((N, 2), np.float32)),
        labels=None,
    )
    with pytest.raises(ConfigError, match=r"two columns of the table would have the name 'x\.a'"):
        column_names(dataset, rows)
