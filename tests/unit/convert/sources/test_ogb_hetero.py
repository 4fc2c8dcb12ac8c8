import gzip

import numpy as np
import pytest
from ogb_layout import MAG_NODES, MAG_RELATIONS, write_csv, write_ogbn_mag
from typed_sources import flat

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source
from gloader.convert.source_check import check_source
from gloader.errors import ShapeError, SourceError


@pytest.fixture
def folder(tmp_path):
    return write_ogbn_mag(tmp_path)


def opened(folder):
    return open_source(f"ogb:ogbn-mag@{folder.parent}", SourceOptions(memory_budget_bytes=10**8))


def table(path):
    with gzip.open(path, "rt") as file:
        return np.loadtxt(file, delimiter=",", ndmin=2)


def test_types_relations_labels_and_splits(folder):
    source = opened(folder)
    check_source(source)
    assert {nodes.name: nodes.num_nodes for nodes in source.nodes} == MAG_NODES
    assert [each.relation for each in source.relations] == sorted(MAG_RELATIONS)
    for each in source.relations:
        path = folder / "raw" / "relations" / "___".join(each.relation) / "edge.csv.gz"
        assert flat(each.edges.chunks(13)) == [tuple(pair) for pair in table(path).astype(int).tolist()]
        assert each.edges.num_edges == MAG_RELATIONS[each.relation]
    features = {nodes.name: nodes.features for nodes in source.nodes}
    assert {name for name, rows in features.items() if rows is not None} == {"paper"}
    rows = np.concatenate(list(features["paper"].chunks(9)))
    expected = table(folder / "raw" / "node-feat" / "paper" / "node-feat.csv.gz")
    assert np.array_equal(rows, expected.astype(np.float32))
    assert (source.labelled, source.num_classes) == ("paper", 349)
    labels = table(folder / "raw" / "node-label" / "paper" / "node-label.csv.gz")
    assert np.array_equal(source.labels, labels[:, 0])
    for part in ("train", "valid", "test"):
        ids = table(folder / "split" / "time" / "paper" / f"{part}.csv.gz")[:, 0]
        assert np.array_equal(getattr(source.splits, part), ids)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda raw: (raw / "num-node-dict.csv.gz").unlink(), SourceError, r"num-node-dict\.csv\.gz is missing"),
        (lambda raw: write_csv(raw / "num-node-dict.csv.gz", np.array([[1, 2]])), SourceError,
         "must name the node types in its first row and count them in its second"),
        (lambda raw: (raw / "triplet-type-list.csv.gz").write_bytes(b"plain"), SourceError, "truncated or corrupt"),
        (lambda raw: write_csv(raw / "triplet-type-list.csv.gz", np.array([1])), SourceError,
         "line 1 is '1'; it must be source type, relation and destination type"),
        (lambda raw: (raw / "node-label" / "paper" / "node-label.csv.gz").unlink(), SourceError,
         "has no labels on any node type"),
        (lambda raw: (raw / "relations" / "author___writes___paper" / "edge.csv.gz").unlink(), SourceError,
         r"author___writes___paper/edge\.csv\.gz is missing"),
        (lambda raw: write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", np.zeros((51, 1), int)), ShapeError,
         r"node-label\.csv\.gz has more than 50 rows"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(folder, spoil, error, message):
    spoil(folder / "raw")
    with pytest.raises(error, match=message):
        opened(folder)
