"""A dataset in place of PyG's ``Data`` or ``HeteroData``, with the attributes that a training loop reads.

`GraphData` is for a dataset with one node type, `HeteroGraphData` for one with several. The object has counts, labels
and masks. It has no features and edges, because these may exceed the memory: only batches have them. The error for a
missing attribute names its replacement.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

from gloader.core.near_names import missing_attribute, missing_key, near_keywords, with_article
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from typing import Any, Never

    from gloader.dataset import Dataset
    from gloader.dataset.tables import EdgeTable, NodeTable
    from gloader.types import IdArray, Relation


# Attributes that batches take from the dataset.
_OF_BATCHES = ("x", "edge_index", "edge_attr", "edge_weight", "y")
ON_DEVICE = (
    "it stays where it is: the loader's device= sends the batches to a device, and a mask itself has .to()"
)
# The replacements for attributes that a graph with one type lacks.
_ELSEWHERE = {
    "to": ON_DEVICE,
    "cuda": ON_DEVICE,
    "cpu": ON_DEVICE,
    "x": "the rows of a batch are batch.x, and dataset.open_features() reads any others",
    "edge_index": "the edges of a batch are batch.edge_index, and dataset.load_graph() has all of them",
}


def require_own(owner: object, name: str) -> None:
    """Raise ConfigError if batches take ``name`` from the dataset: a user cannot set it."""
    if name in _OF_BATCHES:
        raise ConfigError(
            f"a {type(owner).__name__}'s {name!r} is that of the prepared dataset, from which batches are made: change "
            "it before `gloader prepare` or Dataset.from_pyg"
        )


_ROWS = "and dataset.node_tables[TYPE].open_features() reads any others"
_EDGES = "and dataset.load_hetero_graph() has all of them"
# The replacements for attributes that a graph with several types, or one of its parts, lacks.
_TYPED_ELSEWHERE = {
    "to": ON_DEVICE,
    "cuda": ON_DEVICE,
    "cpu": ON_DEVICE,
    "x": f"the rows of a batch are batch[TYPE].x, {_ROWS}",
    "x_dict": f"the rows of a batch are batch.x_dict, {_ROWS}",
    "edge_index": f"the edges of a batch are batch[RELATION].edge_index, {_EDGES}",
    "edge_index_dict": f"the edges of a batch are batch.edge_index_dict, {_EDGES}",
}
_OF_LABELLED = ("y", "train_mask", "val_mask", "test_mask")  # attributes of the labelled type


@near_keywords
class HeteroGraphData:
    """A typed dataset's counts, labels and masks, with the names of ``torch_geometric.data.HeteroData``.

    ``data["paper"]`` is a `NodeData`, ``data["author", "writes", "paper"]`` an `EdgeData`. The object has only
    attributes that fit in memory: from the first access on, ``y`` takes 8 bytes per node of the labelled type, or 4 per
    value of its labels, and a mask one byte.
    Features and edges are absent: only batches have them.

    Raises
    ------
    ConfigError
        The dataset has only one type.
    """

    def __init__(self, dataset: Dataset) -> None:
        if dataset.kind != "hetero":
            raise ConfigError("this dataset has nodes of one type; use gloader.adapters.pyg.GraphData")
        self.dataset = dataset
        # Made once for each type and relation, because they keep labels, masks, and attributes that the user sets.
        self._stores: dict[str | Relation, NodeData | EdgeData] = {}

    @property
    def node_types(self) -> list[str]:
        """The node types."""
        return list(self.dataset.node_types)

    @property
    def edge_types(self) -> list[Relation]:
        """The edge types."""
        return list(self.dataset.relations)

    def metadata(self) -> tuple[list[str], list[Relation]]:
        """Return the node types and the relations, as ``torch_geometric.nn.to_hetero`` expects them."""
        return self.node_types, self.edge_types

    @property
    def num_nodes(self) -> int:
        """Number of nodes in all types."""
        return self.dataset.num_nodes

    @property
    def num_edges(self) -> int:
        """Number of edges in all relations."""
        return self.dataset.num_edges

    @property
    def num_node_features(self) -> dict[str, int]:
        """F by type; 0 for a type without features."""
        return {name: table.feature_dim for name, table in self.dataset.node_tables.items()}

    @property
    def num_features(self) -> dict[str, int]:
        """F by type; 0 for a type without features."""
        return self.num_node_features

    @property
    def num_classes(self) -> int:
        """Number of classes; in PyG it is an attribute of the data set."""
        return self.dataset.num_classes

    def __repr__(self) -> str:
        """Return the counts by type and relation, in the form of PyG's ``HeteroData``."""
        held = [f"  {name}={self[name]!r}" for name in self.node_types]
        held += [f"  ({', '.join(relation)})={self[relation]!r}" for relation in self.edge_types]
        return f"HeteroGraphData(  # {self.dataset.location}\n" + ",\n".join(held) + "\n)"

    def __getitem__(self, key: str | Relation) -> NodeData | EdgeData:
        if key not in self._stores:
            self._stores[key] = self._make_store(key)
        return self._stores[key]

    def _make_store(self, key: str | Relation) -> NodeData | EdgeData:
        """Return a new object for a type or a relation. Raise KeyError for another key."""
        if isinstance(key, str) and key in self.dataset.node_types:
            return NodeData(self.dataset, self.dataset.node_tables[key])
        if isinstance(key, tuple) and key in self.dataset.relations:
            return EdgeData(self.dataset.edge_tables[key])
        # A mapping's users expect this error, not a gloader error.
        known = (*self.dataset.node_types, *self.dataset.relations)
        raise missing_key(key, known, "neither a type nor a relation of this graph")

    def __getattr__(self, name: str) -> Never:
        raise _missing(self, name)


class _Part:
    """The base class for one type or relation, with attributes as in PyG's storages; ``part["y"]`` is ``part.y``."""

    def __getitem__(self, name: str) -> Any:
        """Return the attribute ``name``."""
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(str(error)) from None

    def __setitem__(self, name: str, value: Any) -> None:
        """Set the attribute ``name``."""
        setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep ``value`` in memory, such as a user's own mask; refuse names that batches read from the dataset."""
        require_own(self, name)
        super().__setattr__(name, value)


class NodeData(_Part):
    """One type's nodes: their counts, and for the labelled type their labels and masks."""

    def __init__(self, dataset: Dataset, table: NodeTable) -> None:
        self._dataset, self._table = dataset, table

    def __repr__(self) -> str:
        held = ", y, train_mask, val_mask, test_mask" if self._table.has_labels else ""
        return f"NodeData(num_nodes={self.num_nodes}, num_features={self.num_features}{held})"

    @property
    def num_nodes(self) -> int:
        """Number of nodes with this type."""
        return self._table.num_nodes

    @property
    def num_features(self) -> int:
        """F for this type; 0 without features."""
        return self._table.feature_dim

    @property
    def num_node_features(self) -> int:
        """F for this type; 0 without features."""
        return self._table.feature_dim

    @cached_property
    def y(self) -> torch.Tensor:
        """The labelled type's labels: (N,) int64 classes, -1 where unknown, or (N, k) float32 values, NaN there."""
        return torch.tensor(self._labelled("labels"))

    @cached_property
    def train_mask(self) -> torch.Tensor:
        """(N,) bool: True for training nodes. Only the labelled type has masks."""
        return self._mask("train")

    @cached_property
    def val_mask(self) -> torch.Tensor:
        """(N,) bool: True for validation nodes. Only the labelled type has masks."""
        return self._mask("valid")

    @cached_property
    def test_mask(self) -> torch.Tensor:
        """(N,) bool: True for test nodes. Only the labelled type has masks."""
        return self._mask("test")

    def _mask(self, split: str) -> torch.Tensor:
        """Return the mask (N,) of the split "train", "valid" or "test"."""
        mask = torch.zeros(self.num_nodes, dtype=torch.bool)
        mask[torch.tensor(self._labelled(split))] = True
        return mask

    def _labelled(self, name: str) -> IdArray:
        """Return the table's array ``name``. Raise AttributeError if this type has no labels."""
        if not self._table.has_labels:
            # Python then calls `__getattr__`, as for every AttributeError in a property.
            raise AttributeError(name)
        found: IdArray = getattr(self._table, name)
        return found

    def __getattr__(self, name: str) -> Never:
        if name in _OF_LABELLED:
            raise AttributeError(
                f"nodes of type {self._table.name!r} have no {name!r}: the labelled type is "
                f"{self._dataset.labelled.name!r}"
            )
        raise _missing(self, name)


@near_keywords
class GraphData(NodeData):
    """A dataset's counts, labels and masks, with the names of ``torch_geometric.data.Data``.

    The object has only attributes that fit in memory: from the first access on, ``y`` takes 8 bytes per node, and a
    mask one byte. Features and edges are absent: only batches have ``x`` and ``edge_index``.

    Raises
    ------
    ConfigError
        The dataset has several node types.
    """

    def __init__(self, dataset: Dataset) -> None:
        if dataset.kind != "homogeneous":
            raise ConfigError(
                "this dataset has several types of nodes; use gloader.adapters.pyg.HeteroGraphData"
            )
        super().__init__(dataset, dataset.labelled)
        self.dataset = dataset

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.dataset.num_edges

    @property
    def num_classes(self) -> int:
        """Number of classes; in PyG it is an attribute of the data set."""
        return self.dataset.num_classes

    def __repr__(self) -> str:
        """Return the counts, in the form of PyG's ``Data``."""
        sizes = ("num_nodes", "num_edges", "num_features", "num_classes")
        held = ", ".join(f"{name}={getattr(self, name)}" for name in sizes)
        return f"GraphData({held}, y, train_mask, val_mask, test_mask, dataset={self.dataset.location!r})"

    def __getattr__(self, name: str) -> Never:
        # hasattr() and copy.copy() rely on AttributeError, so this is no gloader error.
        raise missing_attribute("a GraphData", name, dir(type(self)), _ELSEWHERE)


class EdgeData(_Part):
    """One relation's edges."""

    def __init__(self, table: EdgeTable) -> None:
        self._table = table

    def __repr__(self) -> str:
        return f"EdgeData(num_edges={self.num_edges})"

    @property
    def num_edges(self) -> int:
        """Number of edges in the relation."""
        return self._table.num_edges

    def __getattr__(self, name: str) -> Never:
        raise _missing(self, name)


def _missing(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that ``owner`` lacks, with its replacement."""
    # hasattr() and copy.copy() rely on AttributeError, so this is no gloader error.
    return missing_attribute(with_article(type(owner).__name__), name, dir(type(owner)), _TYPED_ELSEWHERE)
