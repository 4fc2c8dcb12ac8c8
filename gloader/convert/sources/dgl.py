"""The source ``dgl:FILE``: a DGL graph in memory, or in a file of `dgl.save_graphs`, with one type or several.

`DglGraph` collects the arrays of either form, and its method `source` makes the source for a conversion. `open_dgl`
does so for the user's text ``dgl:FILE``. `from_graph` and `to_graph` convert topologies from and to `dgl.DGLGraph`
without a conversion. Only `quiet_dgl` imports DGL.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.arrays import EdgeArrays, array_csc_edges, ends_edges
from gloader.convert.readers.attributes import (
    DGL_NAMES,
    Attributes,
    EdgeStore,
    NodeStore,
    SavedGraph,
    one_type_source,
    stored_source,
)
from gloader.convert.readers.dgl_file import DglFile, Form
from gloader.convert.readers.node_arrays import require_node_memory
from gloader.convert.readers.torch_file import dense_tensors, numpy_arrays
from gloader.convert.source import reversed_edges
from gloader.core.near_names import near_keywords
from gloader.dataset.schema import relation_text
from gloader.errors import GraphError, MissingDependencyError, SourceError
from gloader.samplers import CscGraph

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import torch
    from numpy.typing import NDArray

    from gloader.convert.options import SourceOptions
    from gloader.convert.readers.npy_file import StoredArray
    from gloader.convert.source import AnySource, EdgeStream
    from gloader.types import Relation


# Number of edge numbers that `_check_numbers` reads at a time. It bounds the memory for the comparison.
_CHECKED_ENTRIES = 1 << 20
# The forms of stored edges, the cheapest to convert first. Lists by destination (CSC) have the order of a dataset.
# Pairs (COO) have the order of the edge data. In lists by source (CSR), sources and destinations must be exchanged.
_PREFERRED = (Form.BY_DESTINATION, Form.PAIRS, Form.BY_SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DglEdges:
    """A relation's edges, and its edge data, which are arrays with one row per edge."""

    stream: EdgeStream  # the edges without weights
    data: Mapping[str, NDArray[np.generic]]  # the edge data by name
    order: NDArray[np.integer] | None  # (E,) each edge's row in the edge data; None if edge e has row e
    resident_bytes: int  # bytes of the arrays that this module made

    def store(self, relation: Relation, attributes: Attributes, saved: SavedGraph) -> EdgeStore:
        """Return the edges with weights, times and features.

        Parameters
        ----------
        relation : the relation's name
        attributes : the edge data, which is `data` with a text for messages
        saved : the graph's name and options

        Raises
        ------
        ShapeError
            The number of times or feature rows is not the number of edges.
        """
        names, num_edges = saved.edge_names, self.stream.num_edges or 0
        columns = EdgeArrays(
            weight=attributes.weights("weight", "edge_weight", "w", num_edges=num_edges),
            times=attributes.edge_times(names, num_edges=num_edges),
            features=attributes.edge_features(names, ("feat",), num_edges=num_edges),
            where=attributes.where,
        )
        return EdgeStore(
            relation=relation,
            edges=columns.timed(columns.weighted(self.stream, order=self.order), order=self.order),
            features=columns.feature_rows(order=self.order),
            arrays=attributes,
            names=tuple(self.data),
        )


def stored_edges(file: DglFile, number: int) -> DglEdges:
    """Return the edges of a file's relation. They are memory-mapped, so edge data may be larger than memory.

    Parameters
    ----------
    file : the file
    number : position of the relation among the file's relations

    Raises
    ------
    SourceError
        The edges are damaged: an offset, or an edge's row number in the edge data, is out of range.
    """
    # The relation's stored edges by form, and its edge data by name.
    forms, columns = file.relations[number], file.edge_columns[number]
    form = next(form for form in _PREFERRED if form in forms)
    stored, where = forms[form], f"{file.path}: edges"
    resident = resident_bytes(columns.values())
    if form is Form.PAIRS:
        stream = ends_edges(stored.first.values(), stored.second.values(), where=where)
    else:
        try:
            lists = array_csc_edges(stored.first.load(), stored.second.values(), where=where)
        except GraphError as error:
            raise SourceError(
                f"{file.path} is damaged at byte {stored.first.offset} or behind it: {error}; copy it again, or save "
                "it again with dgl.save_graphs"
            ) from error
        stream = lists if form is Form.BY_DESTINATION else reversed_edges(lists)
        resident += lists.held_bytes
    order = None
    if stored.numbers is not None and columns:
        _check_numbers(file, stored.numbers)
        order = stored.numbers.values()
    return DglEdges(stream=stream, data=stored_values(columns), order=order, resident_bytes=resident)


@dataclass(frozen=True, slots=True, kw_only=True)
class DglGraph:
    """A DGL graph's arrays, in memory or mapped from a file."""

    num_nodes: Mapping[str, int]  # number of nodes by type
    node_data: Mapping[str, Mapping[str, NDArray[np.generic]]]  # named arrays with one row per node, by type
    edges: Mapping[Relation, DglEdges]
    graph_labels: Mapping[str, NDArray[np.generic]]  # arrays that DGL calls graph labels, such as split ids
    # Memory that the source keeps: arrays that are not mapped from a file. It is 0 for a graph in memory with one node
    # type and one relation, because all its arrays belong to the caller.
    resident_bytes: int

    @classmethod
    def of(cls, graph: Any) -> DglGraph:
        """Return the arrays of a `dgl.DGLGraph` on the CPU, with one type or several. They share the graph's memory."""
        columns = {name: _arrays(graph.nodes[name].data) for name in graph.ntypes}
        if graph.is_homogeneous:
            indptr, indices, edge_ids = (tensor.numpy() for tensor in graph.adj_tensors("csc"))
            edges = DglEdges(
                stream=array_csc_edges(indptr, indices, where="graph"),
                data=_arrays(graph.edata),
                # Without edge ids, edge e of the CSC lists has row e in the edge data.
                order=edge_ids if len(edge_ids) else None,
                resident_bytes=0,
            )
            relations, held = dict.fromkeys(graph.canonical_etypes, edges), 0
        else:
            relations = {relation: _typed_edges(graph, relation) for relation in graph.canonical_etypes}
            held = sum(array.nbytes for arrays in columns.values() for array in arrays.values())
        return cls(
            num_nodes={name: graph.num_nodes(name) for name in columns},
            node_data=columns,
            edges=relations,
            graph_labels={},
            resident_bytes=held + sum(each.resident_bytes for each in relations.values()),
        )

    @classmethod
    def stored(cls, file: DglFile) -> DglGraph:
        """Return the mapped arrays of a graph in a file. Raises as `stored_edges`."""
        edges = {relation: stored_edges(file, number) for number, relation in enumerate(file.edge_types)}
        held = sum(resident_bytes(each.values()) for each in (file.graph_labels, *file.node_columns))
        return cls(
            num_nodes=dict(zip(file.node_types, file.num_nodes, strict=True)),
            node_data=dict(zip(file.node_types, map(stored_values, file.node_columns), strict=True)),
            edges=edges,
            graph_labels=stored_values(file.graph_labels),
            resident_bytes=held + sum(each.resident_bytes for each in edges.values()),
        )

    def source(self, saved: SavedGraph) -> AnySource:
        """Return the source for the graph.

        Edges are in DGL's numbering. A type has features in ``feat``, labels in ``label``, and splits in masks. A
        relation has weights in ``weight``, edge features in ``feat``, and edge times in ``edge_time``.

        Raises
        ------
        SourceError
            Not exactly one type has labels.
        ShapeError
            A tensor has the wrong shape or dtype.
        ConfigError
            No relation has an array with a requested name of edge times or edge features.
        """
        is_one = len(self.num_nodes) == len(self.edges) == 1
        nodes = {}
        for name, columns in self.node_data.items():
            # Arrays without a type, such as split ids, belong to the labelled type.
            is_labelled = is_one or any(key in columns for key in DGL_NAMES.labels)
            arrays = {**self.graph_labels, **columns} if is_labelled else columns
            place = "(node data)" if is_one else f"(data of {name!r} nodes)"
            nodes[name] = NodeStore(
                num_nodes=self.num_nodes[name],
                arrays=Attributes(arrays=arrays, where=f"{saved.where} {place}"),
            )
        edges = []
        for relation, each in self.edges.items():
            place = "(edge data)" if is_one else f"(data of {relation_text(relation)} edges)"
            edges.append(
                each.store(relation, Attributes(arrays=each.data, where=f"{saved.where} {place}"), saved)
            )
        held = self.resident_bytes
        if not is_one:
            return stored_source(nodes, edges, saved, names=DGL_NAMES, resident_bytes=held)
        (store,) = nodes.values()
        return one_type_source(
            store.arrays,
            edges[0],
            saved,
            names=DGL_NAMES,
            num_nodes=store.num_nodes,
            resident_bytes=held,
        )


def _arrays(tensors: Mapping[str, Any]) -> dict[str, NDArray[np.generic]]:
    """Return named tensors as numpy arrays. Sparse tensors are left out."""
    return numpy_arrays(dense_tensors(tensors))


def _typed_edges(graph: Any, relation: Relation) -> DglEdges:
    """Return the edges of one relation of a `dgl.DGLGraph`, in DGL's numbering."""
    src, dst = (ids.numpy() for ids in graph.edges(order="eid", etype=relation))
    data = _arrays(graph.edges[relation].data)
    return DglEdges(
        stream=ends_edges(src, dst, where=f"graph (data of {relation_text(relation)} edges)"),
        data=data,
        order=None,
        resident_bytes=src.nbytes + dst.nbytes + sum(array.nbytes for array in data.values()),
    )


def stored_values(columns: Mapping[str, StoredArray]) -> dict[str, NDArray[np.generic]]:
    """Return each column's `StoredArray.values`."""
    return {name: column.values() for name, column in columns.items()}


def resident_bytes(columns: Iterable[StoredArray]) -> int:
    """Return the memory for the columns' values, in bytes."""
    return sum(column.resident_bytes for column in columns)


def _check_numbers(file: DglFile, stored: StoredArray) -> None:
    """Raise SourceError for edge numbers outside 0..E-1. An edge's number is its row in the edge data."""
    numbers = stored.values()
    for start in range(0, len(numbers), _CHECKED_ENTRIES):
        part = numbers[start : start + _CHECKED_ENTRIES]
        bad = (part < 0) | (part >= len(numbers))
        if bad.any():
            first = int(bad.argmax())
            raise SourceError(
                f"{file.path} is damaged at byte {stored.offset + (start + first) * stored.dtype.itemsize}: edge "
                f"{start + first} has number {part[first]}; numbers are 0..{len(numbers) - 1}; copy it again, or save "
                "it again with dgl.save_graphs"
            )


_INT32_MAX = 2**31 - 1  # the largest int32


@contextmanager
def quiet_dgl(who: str) -> Iterator[Any]:
    """Import DGL with its torch backend, without warnings and without DGL's file in $HOME.

    Parameters
    ----------
    who : beginning of the message, such as "converting to DGL needs"

    Raises
    ------
    MissingDependencyError
        DGL is not installed, or cannot be imported.
    """
    # On its first import, DGL reads the backend from the environment. Without it, DGL would write a file in $HOME.
    before = os.environ.get("DGLBACKEND")
    os.environ["DGLBACKEND"] = "pytorch"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                import dgl
            except ImportError as error:
                raise MissingDependencyError.of_extra(f"{who} DGL ({error})", "dgl") from error
            yield dgl
    finally:
        if before is None:
            del os.environ["DGLBACKEND"]
        else:
            os.environ["DGLBACKEND"] = before


def open_dgl(argument: str, options: SourceOptions) -> AnySource:
    """Open a saved graph with node data feat, label and masks, and optional edge data weight, feat and edge_time.

    With several types, any type may have features, and one type has labels. Without masks, nodes are split at random by
    ``options.seed``. The arrays are mapped, and DGL is not needed.

    Raises
    ------
    SourceError
        The file is missing, damaged or not a DGL file, does not have exactly one graph, or lacks a key.
    ShapeError
        A tensor has the wrong shape or dtype.
    BudgetError
        An array with one entry per node is larger than the memory budget.
    """
    path = Path(argument).expanduser()
    file, origin = DglFile.open(path), f"dgl:{argument}"
    require_node_memory(max(file.num_nodes), options.budget_bytes, origin)
    return DglGraph.stored(file).source(SavedGraph.in_file(path, origin, options))


@near_keywords
def from_graph(graph: Any, *, weight: str | None = None) -> CscGraph:
    """Return the topology of a homogeneous DGL graph. Its (E,) sources are shared, not copied.

    Edges are in the order of DGL's CSC form. If the graph was made from an edge list, DGL numbers edges in the list's
    order. Then ``graph.adj_tensors("csc")[2]`` has DGL's number for each position.

    Parameters
    ----------
    graph : a `dgl.DGLGraph` on the CPU
    weight : name of the edge data (E,) to sample by; the weights are copied into CSC order

    Raises
    ------
    GraphError
        The graph is heterogeneous, on a GPU, or has no such edge data.
    """
    if not graph.is_homogeneous:
        raise GraphError(
            f"the graph has node types {graph.ntypes} and edge types {graph.etypes}; convert it with "
            "dgl.to_homogeneous(g) first"
        )
    if graph.device.type != "cpu":
        raise GraphError(f"the graph is on {graph.device}; pass graph.cpu()")
    indptr, indices, edge_ids = graph.adj_tensors("csc")
    return CscGraph(
        indptr=indptr.numpy().astype(np.int64, copy=False),
        indices=indices.numpy(),
        edge_weight=None if weight is None else _weights(graph, weight, edge_ids),
        validate=False,  # DGL checked the ids when it made the graph
    )


@near_keywords
def to_graph(graph: CscGraph, *, keep_ids: bool = False) -> Any:
    """Return ``graph`` as a `dgl.DGLGraph`. Edge e is position e in ``indices``.

    int64 ids are shared, not copied. int32 ids are copied to int64, because DGL 1.1's fused neighbour sampler aborts
    the process on int32 graphs. With ``keep_ids``, int32 ids are shared in an int32 graph. Such a graph needs int32
    seeds and ``NeighborSampler(..., fused=False)``.

    Parameters
    ----------
    graph : the topology
    keep_ids : make an int32 graph from int32 ids; its (N + 1,) offsets are copied

    Raises
    ------
    GraphError
        ``keep_ids`` is set for 2**31 edges or more, so the offsets do not fit int32.
    """
    import torch

    indptr: NDArray[Any] = graph.indptr
    indices: NDArray[Any] = graph.indices
    if indices.dtype == np.int32 and keep_ids:
        if graph.num_edges > _INT32_MAX:
            raise GraphError(f"{graph.num_edges} edges do not fit an int32 graph; leave keep_ids out")
        indptr = indptr.astype(np.int32)
    else:
        indices = indices.astype(np.int64, copy=False)
    sources = _shared(indices)
    with quiet_dgl("converting to DGL needs") as dgl:
        made = dgl.graph(
            ("csc", (_shared(indptr), sources, torch.empty(0, dtype=sources.dtype))),
            num_nodes=graph.num_nodes,
        )
    if graph.edge_weight is not None:
        made.edata["weight"] = _shared(graph.edge_weight)
    return made


def _weights(graph: Any, name: str, edge_ids: torch.Tensor) -> NDArray[Any]:
    """Return the edge data ``name`` as floats (E,) in CSC order. Empty ``edge_ids`` mean that it has this order."""
    if name not in graph.edata:
        raise GraphError(f"the graph has no edge data {name!r}; it has {sorted(graph.edata) or 'none'}")
    values = graph.edata[name].reshape(-1)
    ordered = values[edge_ids.long()] if len(edge_ids) else values
    weights: NDArray[Any] = ordered.detach().numpy()
    return weights if weights.dtype in (np.float32, np.float64) else weights.astype(np.float32)


def _shared(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the array's memory. It must not be written, though torch has no read-only tensors."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
