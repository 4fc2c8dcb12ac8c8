"""Features and topology of several types behind PyG's remote-backend interfaces."""

import numpy as np
import pytest
import torch

from gloader.adapters.pyg import RowStore, TopologyStore
from gloader.errors import ConfigError, ShapeError
from gloader.types import ReadStats
from tests.unit.adapters.hetero_batches import RELATIONS, SmallGraph


class Rows:
    """All rows in memory, as a `FeatureSource`."""

    def __init__(self, array):
        self.array = array
        self.num_rows, self.dim = array.shape
        self.dtype = array.dtype

    def read_into(self, rows, out, /, *, at=None):
        out[slice(None) if at is None else at] = self.array[rows]
        return ReadStats(rows=len(rows), requests=1, bytes_read=0)


@pytest.fixture(scope="module")
def graph():
    return SmallGraph()


@pytest.fixture
def store(graph):
    return RowStore(
        {name: Rows(graph.features[name]) for name in ("paper", "venue", "patent")}, {"paper": graph.labels}
    )


def test_rows_and_labels_are_those_of_their_types(graph, store):
    ids = torch.tensor([4, 0, 4])
    for name in ("paper", "venue"):
        rows = store.get_tensor(group_name=name, attr_name="x", index=ids)
        np.testing.assert_array_equal(rows.numpy(), graph.features[name][ids])
        assert store.get_tensor_size(group_name=name, attr_name="x") == graph.features[name].shape
    found = store.get_tensor(group_name="paper", attr_name="y", index=ids)
    np.testing.assert_array_equal(found.numpy(), graph.labels[ids])
    assert {(attr.group_name, attr.attr_name) for attr in store.get_all_tensor_attrs()} == {
        ("paper", "x"),
        ("venue", "x"),
        ("patent", "x"),
        ("paper", "y"),
    }


def test_what_a_type_does_not_have_is_missing(store):
    for group, attribute in (("author", "x"), ("venue", "y"), ("paper", "z")):
        assert store.get_tensor(group_name=group, attr_name=attribute, index=None) is None
        assert store.get_tensor_size(group_name=group, attr_name=attribute) is None


def test_every_relation_is_an_edge_type(graph):
    edges = TopologyStore(graph.topology())
    assert [attr.edge_type for attr in edges.get_all_edge_attrs()] == list(RELATIONS)
    for attr in edges.get_all_edge_attrs():
        indptr, indices = graph.csc[attr.edge_type]
        row, colptr = edges.get_edge_index(attr)
        assert row.tolist() == indices.tolist()
        assert colptr.tolist() == indptr.tolist()
        assert attr.size == (graph.num_nodes[attr.edge_type[0]], graph.num_nodes[attr.edge_type[2]])


def test_bad_input_is_refused_in_a_sentence(graph):
    with pytest.raises(ShapeError, match=r"paper: labels have shape \(3,\) for 90 feature rows"):
        RowStore({"paper": Rows(graph.features["paper"])}, {"paper": np.arange(3)})
    with pytest.raises(ConfigError, match="features and labels are both given by type, or neither is"):
        RowStore({"paper": Rows(graph.features["paper"])}, graph.labels)
