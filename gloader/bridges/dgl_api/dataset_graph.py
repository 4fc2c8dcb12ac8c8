"""A dataset as the graph that DGL's loops take."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import torch

from gloader.bridges.dgl_api.edge_list import EdgeList, degrees_of
from gloader.bridges.dgl_api.frame import Frame, data_of, forgetting
from gloader.bridges.dgl_api.missing import missing, missing_of_graph
from gloader.bridges.dgl_api.names import FEATURE, LABEL, NODE, RELATION, WEIGHT
from gloader.bridges.dgl_api.relations import relation_of
from gloader.bridges.dgl_api.stored_rows import StoredRows
from gloader.bridges.dgl_api.views import EdgesView, NodesView
from gloader.dataset import Dataset
from gloader.models.adjacency import Adjacency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from gloader.bridges.dgl_api.frame import TypedColumns
    from gloader.dataset.edge_table import EdgeTable
    from gloader.dataset.node_table import NodeTable
    from gloader.types import Relation


_NAME: Final = "DGLGraph"
_SPLITS: Final = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}


class DGLGraph:
    """A `gloader.Dataset`, seen as a graph of DGL: sizes, types and data; nothing changes it, and nothing is computed.

    Features are `StoredRows`, labels and masks tensors. Data that is assigned stays in memory.

    Parameters
    ----------
    dataset : of one type or of several

    Raises
    ------
    DglFeatureError
        Something else is given: graphs are not built here.
    """

    def __init__(self, dataset: Any = None, *_others: Any) -> None:
        if not isinstance(dataset, Dataset):
            raise missing(f"dgl.{_NAME}({'' if dataset is None else type(dataset).__name__})")
        self.dataset = dataset
        self.device = torch.device("cpu")
        self.idtype = torch.int64
        self.is_block = False
        is_typed = dataset.kind == "hetero"
        self._tables: dict[Relation, EdgeTable] = {
            relation if is_typed else RELATION: table for relation, table in dataset.edge_tables.items()
        }
        self._node_data = {
            name if is_typed else NODE: _node_frame(table) for name, table in dataset.node_tables.items()
        }
        self._edge_data = {relation: _edge_frame(table) for relation, table in self._tables.items()}
        self._edges = _ReadEdges(self._tables)
        self._features = {name: frame[FEATURE] for name, frame in self._node_data.items() if FEATURE in frame}

    def __getattr__(self, name: str) -> Any:
        raise missing_of_graph(_NAME, name, dir(type(self)))

    # --- sizes and types ---------------------------------------------------------------------------

    @property
    def ntypes(self) -> list[str]:
        """The types of the nodes."""
        return list(self._node_data)

    @property
    def etypes(self) -> list[str]:
        """The names of the relations."""
        return [name for _, name, _ in self._tables]

    @property
    def canonical_etypes(self) -> list[Relation]:
        """The relations."""
        return list(self._tables)

    def num_nodes(self, ntype: str | None = None) -> int:
        """Return the number of nodes, of one type or of all."""
        return self.dataset.num_nodes if ntype is None else self._node_data[ntype].num_rows

    def num_edges(self, etype: Any = None) -> int:
        """Return the number of edges, of one relation or of all."""
        if etype is None:
            return self.dataset.num_edges
        return self._tables[relation_of(self._tables, etype)].num_edges

    number_of_nodes = num_nodes
    number_of_edges = num_edges

    # --- data ----------------------------------------------------------------------------------------

    @property
    def ndata(self) -> Frame | TypedColumns:
        """Data of the nodes: "feat", "label", "train_mask", "val_mask", "test_mask"; of several types, by type."""
        return data_of(self._node_data)

    @property
    def edata(self) -> Frame | TypedColumns:
        """Data of the edges, in the dataset's order: "feat" and "weight" where there are some."""
        return data_of(self._edge_data)

    @property
    def nodes(self) -> NodesView:
        """The nodes: called, their ids; indexed by a type, their data."""
        return NodesView(self._node_data, self.device)

    @property
    def edges(self) -> EdgesView:
        """The edges: called, the ends of all of them, in memory; indexed by a relation, their data."""
        return EdgesView(self._edges, self._edge_data)

    def node_frame(self, ntype: str) -> Frame:
        """Return the data of the nodes of a type."""
        return self._node_data[ntype]

    def edge_frame(self, relation: Relation) -> Frame:
        """Return the data of the edges of a relation."""
        return self._edge_data[relation]

    def stored_features(self, ntype: str) -> StoredRows | None:
        """Return the features of a type, unless others were written in their place."""
        rows = self._features[ntype]
        return rows if isinstance(self._node_data[ntype].columns().get(FEATURE, rows), StoredRows) else None

    def in_degrees(self, v: Any = None, etype: Any = None) -> torch.Tensor:
        """Return the number of in-edges (int64) of each node, or of those numbered ``v``; the edges are read for it."""
        return degrees_of(self._edges[relation_of(self._tables, etype)].in_degrees, v)

    def out_degrees(self, u: Any = None, etype: Any = None) -> torch.Tensor:
        """Return the number of out-edges (int64) of each node, as `in_degrees`."""
        return degrees_of(self._edges[relation_of(self._tables, etype)].out_degrees, u)

    @property
    def is_homogeneous(self) -> bool:
        """Whether it has one type of nodes and one of edges."""
        return self.dataset.kind != "hetero"

    def edge_list(self) -> NoReturn:
        """Refuse: layers ask a block for its edges.

        Raises
        ------
        DglFeatureError
            Always.
        """
        raise missing(
            "layers over a whole graph",
            "they take blocks; evaluate layer by layer with MultiLayerFullNeighborSampler(1)",
        )

    def local_scope(self) -> AbstractContextManager[None]:
        """Return a block of code at whose end what was written to the data in it is forgotten."""
        return forgetting([*self._node_data.values(), *self._edge_data.values()])

    def to(self, device: Any, **_how: Any) -> DGLGraph:
        """Return the graph with ``device`` as the device of its loaders; what is on the SSD stays there."""
        moved = copy(self)
        place = moved.device = torch.empty(0, device=device).device
        moved._node_data = {name: frame.to(place) for name, frame in self._node_data.items()}  # noqa: SLF001 - of its own kind
        moved._edge_data = {relation: frame.to(place) for relation, frame in self._edge_data.items()}  # noqa: SLF001 - of its own kind
        return moved

    def int(self, *_formats: Any) -> DGLGraph:
        """Return the graph as it is."""
        return self

    # What a dataset has no other of: its format, and memory that the loader pins by itself.
    long = formats = create_formats_ = pin_memory_ = unpin_memory_ = int  # noqa: A003 - the method above

    def __repr__(self) -> str:
        return f"DGLGraph({self.num_nodes():,} nodes, {self.num_edges():,} edges, of {self.dataset.location})"


class _ReadEdges(dict[Any, EdgeList]):
    """The edges of each relation, read into memory when they are asked for."""

    def __init__(self, tables: Mapping[Relation, EdgeTable]) -> None:
        super().__init__()
        self._tables = tables

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tables)

    def __missing__(self, relation: Relation) -> EdgeList:
        graph = self._tables[relation].load_graph(times=False)
        sources = self._tables[relation].num_sources
        # Copies, for the arrays of a dataset are read-only, which tensors cannot be.
        indptr, indices = graph.indptr.astype(np.int64), graph.indices.astype(np.int64)
        edges = Adjacency(torch.from_numpy(indptr), torch.from_numpy(indices), num_src=sources)
        return self.setdefault(relation, EdgeList.of(edges))


def _node_frame(table: NodeTable) -> Frame:
    columns: dict[str, Any] = {}
    if table.feature_rows is not None:
        columns[FEATURE] = StoredRows(table.feature_rows)
    if table.has_labels:
        columns[LABEL] = lambda: torch.from_numpy(table.labels.copy())
        columns |= {mask: _mask(table, split) for split, mask in _SPLITS.items()}
    return Frame(table.num_nodes, columns)


def _mask(table: NodeTable, split: str) -> Callable[[], torch.Tensor]:
    def mask() -> torch.Tensor:
        found = torch.zeros(table.num_nodes, dtype=torch.bool)
        found[torch.from_numpy(getattr(table, split).copy())] = True
        return found

    return mask


def _edge_frame(table: EdgeTable) -> Frame:
    columns: dict[str, Any] = {}
    if table.feature_rows is not None:
        columns[FEATURE] = StoredRows(table.feature_rows)
    if table.has_weights:
        columns[WEIGHT] = lambda: torch.from_numpy(table.load_graph(times=False).edge_weight.copy())  # type: ignore[union-attr]
    return Frame(table.num_edges, columns)
