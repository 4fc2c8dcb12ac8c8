from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from typed_sources import CITES, IN, WRITES, flat

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source
from gloader.convert.source_check import check_source
from gloader.errors import ShapeError, SourceError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import HeteroData


@pytest.fixture
def data():
    made = HeteroData()
    number = torch.arange(40)
    made["paper"].x = torch.randn(40, 5)
    made["paper"].y = number % 3
    made["paper"].train_mask = number < 20
    made["paper"].val_mask = (number >= 20) & (number < 30)
    made["paper"].test_mask = number >= 30
    made["author"].num_nodes = 7
    made["place"].x = torch.randn(3, 2).half()
    made[WRITES].edge_index = torch.randint(0, 7, (2, 60))
    made[WRITES].edge_weight = torch.rand(60)
    made[CITES].edge_index = torch.randint(0, 40, (2, 90))
    made[IN].edge_index = torch.empty((2, 0), dtype=torch.long)
    return made


def opened(tmp_path, saved, **how):
    torch.save(saved, tmp_path / "graph.pt", **how)
    return open_source(f"pyg:{tmp_path / 'graph.pt'}", SourceOptions())


@pytest.mark.parametrize(
    "wrap", [lambda d: d, lambda d: d.to_dict(), lambda d: (d, None)], ids=["data", "dict", "tuple"]
)
@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_saves_is_read(tmp_path, data, wrap, zipped):
    source = opened(tmp_path, wrap(data), _use_new_zipfile_serialization=zipped)
    check_source(source)
    assert [(nodes.name, nodes.num_nodes) for nodes in source.nodes] == [
        ("paper", 40),
        ("author", 7),
        ("place", 3),
    ]
    assert [each.relation for each in source.relations] == [WRITES, CITES, IN]
    for each in source.relations:
        assert flat(each.edges.chunks(17)) == [
            tuple(pair) for pair in data[each.relation].edge_index.T.tolist()
        ]
    assert source.relations[0].edges.has_weights
    assert not source.relations[1].edges.has_weights
    (rows,) = source.nodes[0].features.chunks(100)
    assert np.array_equal(rows, data["paper"].x)
    assert source.nodes[1].features is None
    assert source.nodes[2].features.dtype == np.float16
    assert (source.labelled, source.num_classes, source.name) == ("paper", 3, "graph")
    assert np.array_equal(source.labels, data["paper"].y)
    assert np.array_equal(source.splits.valid, np.arange(20, 30))


def test_without_masks_the_seed_draws_splits(tmp_path, data):
    for name in ("train_mask", "val_mask", "test_mask"):
        del data["paper"][name]
    assert len(opened(tmp_path, data).splits.train) == 24


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda d: d["author"].update({"y": torch.zeros(7).long()}), SourceError,
         r"graph\.pt has labels on 2 node types \(paper, author\); exactly one type has labels and splits"),
        (lambda d: d["paper"].pop("y"), SourceError, r"graph\.pt has no labels on any node type"),
        (lambda d: d["author"].pop("num_nodes"), SourceError,
         r"graph\.pt\['author'\] has no number of nodes; set num_nodes"),
        (lambda d: d[WRITES].pop("edge_index"), SourceError,
         r"graph\.pt\['author:writes:paper'\] has no edges \(edge_index or adj_t\); it has edge_weight"),
        (lambda d: d["place"].update({"x": torch.ones(3)}), ShapeError, r"\['place'\]: x has shape \(3,\)"),
        (lambda d: d["place"].update({"x": torch.ones(1).expand(3, 9)}), SourceError, "which it repeats"),
    ],
)  # fmt: skip
def test_what_is_missing_or_too_much_is_named(tmp_path, data, spoil, error, message):
    spoil(data)
    with pytest.raises(error, match=message):
        opened(tmp_path, data)


def test_a_relation_key_is_three_names(tmp_path, data):
    stores = data.to_dict()
    stores["author", "paper"] = stores.pop(WRITES)
    with pytest.raises(SourceError, match="is no relation; one is"):
        opened(tmp_path, stores)


def test_nodes_are_counted_by_what_there_is_of_each(tmp_path, data):
    del data["author"].num_nodes
    data["author"].n_id = torch.arange(9)
    assert opened(tmp_path, data).nodes[1].num_nodes == 9


def test_what_belongs_to_no_type_is_named(tmp_path, data):
    data["paper"].node_year = torch.arange(40)
    data[CITES].edge_type = torch.arange(90)
    data[CITES].edge_label_index = torch.zeros((2, 4), dtype=torch.long)
    data.mean = torch.ones(3)
    data.title = "a library"
    assert opened(tmp_path, data).unused == (
        "node_year (N,) of paper",
        "edge_type (E,) of paper:cites:paper",
        "edge_label_index (2, 4) of paper:cites:paper",
        "mean (3,) of no type",
        "title (str) of no type",
    )
