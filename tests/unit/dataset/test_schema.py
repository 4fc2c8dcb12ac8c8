"""Types and relations that cannot be are refused, in one sentence, where they are written and where they are read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.dataset import Dataset
from gloader.dataset.schema import checked_schema
from gloader.dataset.verify import verify_dataset
from gloader.errors import FormatError, GraphError, ShapeError, VersionError
from gloader.ssd_store.format.format import DATASET_MANIFEST, load_manifest
from gloader.ssd_store.write.new_directory import NewDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.dataset.writer import DatasetWriter
    from gloader.types import Relation

WRITES = ("author", "writes", "paper")
NUM_NODES = {"paper": 20, "author": 5}


def begin(path: Path, **changes: Any) -> DatasetWriter:
    return Dataset.create_hetero(
        path, **{"name": "d", "num_nodes": NUM_NODES, "relations": [WRITES], "num_classes": 2} | changes
    )


def write_edges(writer: DatasetWriter, relation: Relation = WRITES, num_edges: int = 3) -> None:
    count = NUM_NODES[relation[2]]
    with writer.edges(relation).indptr() as column:
        column.append(np.concatenate([np.zeros(count), [num_edges]]).astype(np.int64))
    with writer.edges(relation).indices(num_edges, "int32") as column:
        column.append(np.arange(num_edges, dtype=np.int32))


def write_labels(writer: DatasetWriter, node_type: str = "paper") -> None:
    writer.nodes(node_type).labels(np.zeros(NUM_NODES[node_type], np.int64))
    writer.nodes(node_type).splits(train=np.arange(2), valid=np.arange(2, 3), test=np.arange(3, 4))


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    with begin(tmp_path / "d") as writer:
        write_labels(writer)
        write_edges(writer)
        with writer.nodes("author").features(3, "int8") as column:
            column.append(np.ones((5, 3), np.float32))
    return tmp_path / "d"


@pytest.mark.parametrize(
    ("num_nodes", "relations", "message"),
    [
        ({}, [], "there are 0 node types; there must be 1 to 1000"),
        (dict.fromkeys(map(str, range(1001)), 1), [], "there are 1001 node types"),
        ({"a": 3}, [("a", "r", "b")], "relation a:r:b names the node type 'b'; there are 'a'"),
        ({"a": 3}, [("b", "r", "a")], "relation b:r:a names the node type 'b'; there are 'a'"),
        ({"a": -1}, [], "node type 'a' has -1 nodes"),
        ({"a": 2**48 + 1}, [], "node type 'a' has 281474976710657 nodes; it must have 0 to 281474976710656"),
        ({"a": 3}, [("a", "r", "a"), ("a", "s", "a"), ("a", "r", "a")], "relations 'a__r__a' is there twice"),
        ({"Paper": 3, "paper": 2}, [], "node types 'Paper' and 'paper' would share a folder"),
        ({"a_": 3, "a": 3}, [("a_", "x", "a"), ("a", "_x", "a")], "relations 'a___x__a' is there twice"),
        (
            {"a" * 90: 3},
            [("a" * 90, "r" * 90, "a" * 90)],
            "its three names have at most 236 characters together",
        ),
    ],
)
def test_types_and_relations_that_cannot_be(
    num_nodes: dict[str, int], relations: list[Relation], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        checked_schema(num_nodes, relations)


@pytest.mark.parametrize("name", ["", "a__b", ".a", "a/b", "..", "a" * 101, "a b", "é", "-a", "a\n", "a."])
def test_names_that_are_no_folders(name: str) -> None:
    with pytest.raises(GraphError, match=r"node type .*: a name has 1 to 100 of the characters"):
        checked_schema({name: 1}, [])
    with pytest.raises(GraphError, match=r"relation .*: a name has 1 to 100 of the characters"):
        checked_schema({"a": 1}, [("a", name, "a")])


@pytest.mark.parametrize("name", ["a", "_N", "rev_writes", "a.b-c", "9", "a" * 78])
def test_names_that_are(name: str) -> None:
    assert checked_schema({name: 1}, [(name, name, name)]).relations == ((name, name, name),)


def test_an_unknown_type_or_relation_is_told_with_those_there_are(tmp_path: Path) -> None:
    with (
        pytest.raises(GraphError, match="there is no node type 'venue'; there are 'paper', 'author'"),
        begin(tmp_path / "d") as writer,
    ):
        writer.nodes("venue")
    with (
        pytest.raises(
            GraphError, match="there is no relation paper:writes:author; there are author:writes:paper"
        ),
        begin(tmp_path / "d") as writer,
    ):
        writer.edges(("paper", "writes", "author"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("labelled", "has_edges", "message"),
    [
        ([], True, "exactly one node type must have labels and splits; they were written for: none"),
        (["paper", "author"], True, "they were written for: 'paper', 'author'"),
        (["paper"], False, "not written: relations/author__writes__paper/indptr, relations/author__writ"),
    ],
)
def test_what_is_missing_or_too_much_stops_the_commit(
    tmp_path: Path, labelled: list[str], has_edges: bool, message: str
) -> None:
    with pytest.raises(ShapeError, match=message), begin(tmp_path / "d") as writer:
        for node_type in labelled:
            write_labels(writer, node_type)
        if has_edges:
            write_edges(writer)
    assert not list(tmp_path.iterdir())


def test_labels_of_another_length_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ShapeError, match=r"nodes/paper/labels has shape \(5,\); it must be \(20,\)"),
        begin(tmp_path / "d") as writer,
    ):
        writer.nodes("paper").labels(np.zeros(5, np.int64))


def changed(path: Path, **changes: Any) -> None:
    """Open the dataset with a record of which parts of the metadata, or arrays, are others."""
    manifest = load_manifest(path, DATASET_MANIFEST)
    metadata = {**manifest.metadata, **changes.pop("metadata", {})}
    arrays = dict(manifest.arrays)
    for name, fields in changes.items():
        if fields is None:
            del arrays[name]
        else:
            arrays[name] = replace(arrays.get(name, next(iter(arrays.values()))), name=name, **fields)
    Dataset(path, replace(manifest, metadata=metadata, arrays=arrays))


TYPES = [{"name": "paper", "num_nodes": 20}, {"name": "author", "num_nodes": 5}]
LABELS = "nodes/author/labels"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": {"node_types": None}}, "'node_types' must list the name and num_nodes of each type"),
        ({"metadata": {"node_types": [{"name": "a"}]}}, "'node_types' must list"),
        ({"metadata": {"node_types": [{"name": 3, "num_nodes": 3}]}}, "'node_types' must list"),
        ({"metadata": {"node_types": [{"name": "a", "num_nodes": True}]}}, "'node_types' must list"),
        ({"metadata": {"node_types": [*TYPES, TYPES[0]]}}, "a node type is there twice"),
        ({"metadata": {"node_types": TYPES[:1]}}, "names the node type 'author'; there are 'paper'"),
        ({"metadata": {"relations": {}}}, "'relations' must list source type, name and destination type"),
        ({"metadata": {"relations": [["a", "b"]]}}, "'relations' must list"),
        ({"metadata": {"relations": [["author", 3, "paper"]]}}, "'relations' must list"),
        ({"metadata": {"relations": [WRITES]}}, "'relations' must list"),
        (
            {"metadata": {"relations": []}},
            "relations/author__writes__paper/indices' belongs to no node type or",
        ),
        ({"metadata": {"num_classes": 0}}, "num_classes is 0"),
        ({"nodes/paper/labels": None}, "type 'paper' has train, valid, test and misses labels"),
        (
            dict.fromkeys([f"nodes/paper/{name}" for name in ("labels", "train", "valid", "test")]),
            "exactly one node type must have labels and splits; these have: none",
        ),
        ({"relations/author__writes__paper/indices": None}, "relation author:writes:paper misses indices"),
        ({"nodes/author/features.scale": None}, "nodes/author/features are int8 and have no scales"),
        (
            {"nodes/author/features": {"shape": (4, 3)}},
            r"nodes/author/features \(4, 3\) with 5 nodes of type 'author'",
        ),
        (
            {"relations/author__writes__paper/indptr": {"shape": (6,)}},
            r"indptr \(6,\) with 20 nodes of type 'paper' and 3 edges of relation author:writes:paper",
        ),
        ({"nodes/paper/labels": {"dtype": "int32"}}, "nodes/paper/labels has dtype int32; it must be int64"),
        ({"nodes/venue/labels": {}}, "array 'nodes/venue/labels' belongs to no node type or relation"),
        ({"labels": {}}, "array 'labels' belongs to no node type or relation"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(path: Path, changes: Any, message: str) -> None:
    changed(path)
    with pytest.raises(FormatError, match=message):
        changed(path, **changes)


@pytest.mark.parametrize("version", [None, 1, 3, "2", [2]])
def test_a_list_of_types_of_another_version_is_refused(path: Path, version: Any) -> None:
    with pytest.raises(
        VersionError, match=r"dataset_version is .*, this build reads 2; use a matching build"
    ):
        changed(path, metadata={"dataset_version": version})


def test_labels_of_two_types_in_a_record_are_refused(path: Path) -> None:
    names = {"labels": (5,), "train": (1,), "valid": (1,), "test": (1,)}
    with pytest.raises(FormatError, match="these have: 'paper', 'author'"):
        changed(path, **{f"nodes/author/{n}": {"dtype": "int64", "shape": s} for n, s in names.items()})


def test_an_older_build_refuses_what_lies_in_folders_by_name(path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("gloader.ssd_store.format.manifest.KNOWN_FEATURES", frozenset({"int8-row-scale"}))
    with pytest.raises(VersionError, match=r"needs features .*array-folders.* use a newer build"):
        Dataset.open(path)


def test_a_dataset_of_one_type_needs_no_feature_that_an_older_build_lacks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Dataset.from_numpy(
        tmp_path / "d",
        features=rng.random((30, 4), np.float32),
        labels=rng.integers(0, 3, 30),
        edge_index=rng.integers(0, 30, (2, 90)),
    )
    manifest = load_manifest(tmp_path / "d", DATASET_MANIFEST)
    assert (manifest.required_features, manifest.kind) == ((), "dataset")
    assert "dataset_version" not in manifest.metadata


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        ({}, False),
        ({"name": "other"}, False),
        ({"num_nodes": {"paper": 20, "author": 6}}, True),  # no array of authors says how many there are
        ({"num_nodes": {"author": 5, "paper": 20}}, True),
        ({"relations": [("author", "wrote", "paper")]}, True),
    ],
)
def test_the_fingerprint_is_that_of_types_relations_and_arrays(
    tmp_path: Path, change: dict[str, Any], is_other: bool
) -> None:
    prints = []
    for name, changes in (("a", {}), ("b", change)):
        with begin(tmp_path / name, **changes) as writer:
            write_labels(writer)
            write_edges(writer, writer.schema.relations[0])
        prints.append(Dataset.open(tmp_path / name).fingerprint)
    assert (prints[0] != prints[1]) == is_other


def test_verify_reads_every_file_of_every_type_and_relation(path: Path) -> None:
    """Each file is damaged by itself, and named."""
    assert verify_dataset(path).is_ok
    files = [file for file in sorted(path.rglob("*.*")) if file.name != DATASET_MANIFEST and file.is_file()]
    assert len(files) == 2 * 8
    for file in files:
        data = file.read_bytes()
        file.write_bytes(
            data[:4100] + bytes([data[4100] ^ 4]) + data[4101:] if len(data) > 4100 else data[:-1]
        )
        problems = verify_dataset(path).problems
        assert {problem.file for problem in problems} == {str(file.relative_to(path))}
        file.write_bytes(data)


def test_verify_names_the_relation_whose_edges_come_from_no_node(tmp_path: Path) -> None:
    with begin(tmp_path / "d") as writer:
        write_labels(writer)
        write_edges(writer, num_edges=6)  # source 5 of 5 authors
    (problem,) = verify_dataset(tmp_path / "d").problems
    assert problem.file == "relations/author__writes__paper/indices.npy"
    assert "indices[5] = 5 is not a node: it must be in 0..4; it was written so" in problem.message


def test_labels_beyond_the_classes_and_splits_beyond_the_type_are_refused(tmp_path: Path) -> None:
    with begin(tmp_path / "d", num_nodes={"author": 25, "paper": 20}) as writer:
        write_edges(writer)
        papers = writer.nodes("paper")
        papers.labels(np.full(20, 2))
        papers.splits(train=np.array([3, 20]), valid=np.arange(2), test=np.arange(2))
    dataset = Dataset.open(tmp_path / "d")
    for read in (lambda: dataset.labels, lambda: dataset.labels_of(np.array([3]))):
        with pytest.raises(FormatError, match=r"nodes/paper/labels\.npy: labels\[\d\] = 2 is not a class"):
            read()
    with pytest.raises(FormatError, match=r"nodes/paper/train\.npy: train\[1\] = 20 is not a node.* 0\.\.19"):
        _ = dataset.train


def test_original_ids_are_those_of_each_type(tmp_path: Path) -> None:
    with begin(tmp_path / "d") as writer:
        write_labels(writer)
        write_edges(writer)
        writer.nodes("author").original_ids(np.array([3, 1, 4, 0, 2]))
    dataset = Dataset.open(tmp_path / "d")
    author = dataset.node_tables["author"]
    assert author.in_original_order(np.arange(5)).tolist() == [3, 1, 4, 0, 2]
    assert dataset.original_ids is None
    with pytest.raises(ShapeError, match="there are 5 nodes"):
        author.in_original_order(np.arange(20))


def test_another_dataset_at_the_path_is_told_from_damage(path: Path) -> None:
    before = Dataset.open(path)
    with begin(path, overwrite=True, num_classes=5) as writer:
        writer.nodes("paper").labels(np.ones(20, np.int64))
        writer.nodes("paper").splits(train=np.arange(9), valid=np.arange(2, 3), test=np.arange(3, 4))
        write_edges(writer, num_edges=2)
    with pytest.raises(OSError, match="the store was replaced after it was opened"):
        before.edge_tables[WRITES].load_graph()
    with pytest.raises(OSError, match="the store was replaced after it was opened"):
        before.node_tables["author"].open_features()


def test_folders_without_a_record_are_a_creation_that_never_finished(path: Path) -> None:
    (path / DATASET_MANIFEST).unlink()
    with pytest.raises(OSError, match=r"the folder holds data and no dataset\.json"):
        Dataset.open(path)


def test_arrays_in_other_folders_are_not_written(tmp_path: Path) -> None:
    with NewDirectory(tmp_path / "d", manifest_name=DATASET_MANIFEST) as directory:
        for name in ("nodes/../x", "nodes/a/b/c", "other/a/x", "/x", "nodes/a/", "relations/a__b/x"):
            with pytest.raises(FormatError, match="array name"):
                directory.array(name, dtype="int64", shape=(1,))
    assert not list(tmp_path.iterdir())
