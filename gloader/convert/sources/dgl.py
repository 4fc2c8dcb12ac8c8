"""``dgl:FILE``: DGL's graphs of one type or several as sources, in memory or in a file of `dgl.save_graphs`.

Topologies are converted from and to `dgl.DGLGraph`. `quiet_dgl` is the one import of DGL.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.options import USUAL_NAMES
from gloader.convert.readers.arrays import ArrayCscEdges, ArrayEdges, ArrayFeatures, EdgeArrays, WeightedEdges
from gloader.convert.readers.attributes import (
    DGL_NAMES,
    Attributes,
    EdgeStore,
    NodeStore,
    require_columns,
    stored_source,
)
from gloader.convert.readers.dgl_file import DglFile, Form
from gloader.convert.readers.node_arrays import count_classes, random_splits, require_node_memory
from gloader.convert.readers.torch_file import dense_tensors, numpy_arrays
from gloader.convert.source import ReversedEdges, Source
from gloader.core.near_names import near_keywords
from gloader.dataset.schema import relation_text
from gloader.errors import GraphError, MissingDependencyError, SourceError
from gloader.samplers import CscGraph

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch
    from numpy.typing import NDArray

    from gloader.convert.options import EdgeNames, SourceOptions
    from gloader.convert.readers.npy_file import StoredArray
    from gloader.convert.source import AnySource, EdgeStream, GraphSource
    from gloader.types import Relation


# Entries of a column that are looked at together.
_CHECKED_ENTRIES = 1 << 20
# By what they save: lists by destination are sorted already, and pairs come in the order of the columns of edges.
_PREFERRED = (Form.BY_DESTINATION, Form.PAIRS, Form.BY_SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DglArrays:
    """The arrays of a graph."""

    num_nodes: int
    node_data: Mapping[str, NDArray[np.generic]]  # and what was saved beside the graph
    edge_data: Mapping[str, NDArray[np.generic]]
    edges: EdgeStream  # without weights
    order: NDArray[np.integer] | None  # (E,) the number of each edge in its data; None: they are in its order
    resident_bytes: int  # memory that all of these take, as far as they were not there before


def stored_arrays(file: DglFile) -> DglArrays:
    """Return the arrays of a graph in a file, which are mapped: features larger than memory stream.

    Raises
    ------
    SourceError
        Edges are not where, or not numbered as, the file says.
    """
    edges = stored_edges(file, 0)
    columns = {**file.beside, **file.node_columns[0]}
    return DglArrays(
        num_nodes=file.num_nodes[0],
        node_data=stored_values(columns),
        edge_data=edges.data,
        edges=edges.stream,
        order=edges.order,
        resident_bytes=edges.resident_bytes + resident_bytes(columns.values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DglEdges:
    """The edges of a relation."""

    stream: EdgeStream  # without weights
    data: Mapping[str, NDArray[np.generic]]
    order: NDArray[np.integer] | None  # (E,) the number of each edge in its data; None: they are in its order
    resident_bytes: int  # memory that all of these take, as far as they were not there before

    def weighted(self, weight: NDArray[np.generic] | None) -> EdgeStream:
        """Return the edges with the weights (E,) of their data, where there are any."""
        return (
            self.stream
            if weight is None
            else WeightedEdges(edges=self.stream, weight=weight, numbers=self.order)
        )


def stored_edges(file: DglFile, number: int) -> DglEdges:
    """Return the edges of relation ``number`` of a file, which are mapped; raises as `stored_arrays`."""
    forms, columns = file.relations[number], file.edge_columns[number]
    form = next(form for form in _PREFERRED if form in forms)
    stored, where = forms[form], f"{file.path}: edges"
    resident = resident_bytes(columns.values())
    if form is Form.PAIRS:
        stream: EdgeStream = ArrayEdges(src=stored.first.values(), dst=stored.second.values(), where=where)
    else:
        try:
            lists = ArrayCscEdges.of(stored.first.load(), stored.second.values(), where=where)
        except GraphError as error:
            raise SourceError(
                f"{file.path} is damaged at byte {stored.first.offset} or behind it: {error}; copy it again, or save "
                "it again with dgl.save_graphs"
            ) from error
        stream = lists if form is Form.BY_DESTINATION else ReversedEdges(edges=lists)
        resident += lists.indptr.nbytes
    order = None
    if stored.numbers is not None and columns:
        _check_numbers(file, stored.numbers)
        order = stored.numbers.values()
    return DglEdges(stream=stream, data=stored_values(columns), order=order, resident_bytes=resident)


def arrays_source(
    graph: DglArrays,
    *,
    name: str,
    origin: str,
    where: Path | str,
    seed: int,
    edge_names: EdgeNames,
    needs_labels: bool,
) -> Source:
    """Return the source over the arrays of a graph; raises and takes arguments as `graph_source` of `sources.dgl`."""
    nodes = Attributes(arrays=graph.node_data, where=f"{where} (node data)")
    rows = nodes.features("feat", "features", "x")
    labels = nodes.labels("label", "labels", "y", num_nodes=graph.num_nodes, needs_labels=needs_labels)
    edge_data = Attributes(arrays=graph.edge_data, where=f"{where} (edge data)")
    num_edges = graph.edges.num_edges or 0
    columns = dgl_edge_columns(edge_data, edge_names, num_edges=num_edges)
    edge_names.require(
        has_times=columns.times is not None,
        has_features=columns.features is not None,
        there=graph.edge_data,
        where=str(where),
    )
    edges = graph.edges
    if columns.weight is not None:
        edges = WeightedEdges(edges=edges, weight=columns.weight, numbers=graph.order)
    splits = nodes.splits(graph.num_nodes) or random_splits(labels, seed=seed)
    return Source(
        name=name,
        origin=origin,
        num_nodes=graph.num_nodes,
        num_classes=count_classes(labels),
        edges=columns.timed(edges, order=graph.order),
        features=ArrayFeatures(rows=rows),
        labels=labels,
        splits=splits,
        edge_features=columns.feature_rows(order=graph.order),
        edge_file=where if isinstance(where, Path) else None,
        resident_bytes=graph.resident_bytes,
        said=(*nodes.said(), *edge_data.said()),
        unused=(
            *nodes.unused(num_nodes=graph.num_nodes, num_edges=num_edges),
            *(f"{left}, edge data" for left in edge_data.unused(num_edges=num_edges)),
        ),
    )


def dgl_edge_columns(found: Attributes, names: EdgeNames, *, num_edges: int) -> EdgeArrays:
    """Return weights, times and features of edges in DGL's numbering.

    Raises
    ------
    ShapeError
        There are not as many times, or rows of features, as edges.
    """
    return EdgeArrays(
        weight=found.weights("weight", "edge_weight", "w", num_edges=num_edges),
        times=found.edge_times(names, num_edges=num_edges),
        features=found.edge_features(names, ("feat",), num_edges=num_edges),
        where=found.where,
    )


def stored_values(columns: Mapping[str, StoredArray]) -> dict[str, NDArray[np.generic]]:
    """Return the values of columns, as `StoredArray.values`."""
    return {name: column.values() for name, column in columns.items()}


def resident_bytes(columns: Iterable[StoredArray]) -> int:
    """Return the bytes of memory that the values of columns take."""
    return sum(column.resident_bytes for column in columns)


def _check_numbers(file: DglFile, stored: StoredArray) -> None:
    """Refuse numbers that are none of an edge, which rows are picked by."""
    numbers = stored.values()
    for start in range(0, len(numbers), _CHECKED_ENTRIES):
        part = numbers[start : start + _CHECKED_ENTRIES]
        bad = (part < 0) | (part >= len(numbers))
        if bad.any():
            at = int(bad.argmax())
            raise SourceError(
                f"{file.path} is damaged at byte {stored.offset + (start + at) * stored.dtype.itemsize}: edge "
                f"{start + at} has number {part[at]}; numbers are 0..{len(numbers) - 1}; copy it again, or save it "
                "again with dgl.save_graphs"
            )


def hetero_source(
    graph: Any,
    *,
    name: str,
    origin: str,
    where: Path | str,
    seed: int,
    extra: Mapping[str, Any] = MappingProxyType({}),
    edge_names: EdgeNames = USUAL_NAMES,
    needs_labels: bool = True,
) -> GraphSource:
    """Return the source over a heterogeneous graph in memory, whose tensors are shared.

    Edges come in DGL's numbering. A type's features are ``feat``, its labels ``label``, its splits masks; a
    relation's weights ``weight``, its edges' features ``feat``, their times ``edge_time``.

    Parameters
    ----------
    graph : a `dgl.DGLGraph` on the CPU
    name, origin : of the source
    where : what holds it, for messages; a path: the file that it came from
    seed : of the random split where there are no masks
    extra : tensors that stand beside the graph, such as the ids of splits; they go to the type that has labels
    edge_names : of times and features of edges
    needs_labels : whether nodes without labels are refused

    Raises
    ------
    SourceError
        Labels are on no type, or on several.
    ShapeError
        A tensor has the wrong shape or dtype.
    ConfigError
        No relation has anything by a name of ``edge_names``.
    """
    columns = {
        node_type: numpy_arrays(dense_tensors(graph.nodes[node_type].data)) for node_type in graph.ntypes
    }
    counts = [graph.num_nodes(node_type) for node_type in columns]
    edges = {}
    for relation in graph.canonical_etypes:
        src, dst = (ids.numpy() for ids in graph.edges(order="eid", etype=relation))
        data = numpy_arrays(dense_tensors(graph.edges[relation].data))
        edges[relation] = DglEdges(
            stream=ArrayEdges(src=src, dst=dst, where=_place(where, relation_text(relation), "edges")),
            data=data,
            order=None,
            resident_bytes=src.nbytes + dst.nbytes + sum(array.nbytes for array in data.values()),
        )
    source = _source(
        _node_stores(columns, counts, numpy_arrays(dense_tensors(extra)), where=where),
        edges,
        name=name,
        origin=origin,
        where=where,
        seed=seed,
        edge_names=edge_names,
        needs_labels=needs_labels,
    )
    held = sum(array.nbytes for arrays in columns.values() for array in arrays.values())
    return replace(source, resident_bytes=source.resident_bytes + held)


def stored_hetero_source(
    file: DglFile, *, name: str, origin: str, seed: int, edge_names: EdgeNames, needs_labels: bool
) -> GraphSource:
    """Return the source over a graph in a file, whose arrays are mapped; takes and raises as `hetero_source`."""
    columns = dict(zip(file.node_types, map(stored_values, file.node_columns), strict=True))
    source = _source(
        _node_stores(columns, file.num_nodes, stored_values(file.beside), where=file.path),
        {relation: stored_edges(file, number) for number, relation in enumerate(file.edge_types)},
        name=name,
        origin=origin,
        where=file.path,
        seed=seed,
        edge_names=edge_names,
        needs_labels=needs_labels,
    )
    held = sum(resident_bytes(each.values()) for each in (file.beside, *file.node_columns))
    return replace(source, resident_bytes=source.resident_bytes + held)


def _node_stores(
    columns: Mapping[str, Mapping[str, NDArray[np.generic]]],
    counts: Sequence[int],
    beside: Mapping[str, NDArray[np.generic]],
    *,
    where: Path | str,
) -> dict[str, NodeStore]:
    """Return the stores of the types; what stands ``beside`` the graph goes to those that have labels."""
    return {
        node_type: NodeStore(
            num_nodes=count,
            arrays=Attributes(
                arrays={**beside, **found} if any(key in found for key in DGL_NAMES.labels) else found,
                where=_place(where, repr(node_type), "nodes"),
            ),
        )
        for (node_type, found), count in zip(columns.items(), counts, strict=True)
    }


def _source(
    nodes: Mapping[str, NodeStore],
    edges: Mapping[Relation, DglEdges],
    *,
    name: str,
    origin: str,
    where: Path | str,
    seed: int,
    edge_names: EdgeNames,
    needs_labels: bool,
) -> GraphSource:
    """Return the source over the stores of the types, and the edges; others are as of `hetero_source`."""
    edge_stores: list[EdgeStore] = []
    for relation, of in edges.items():
        data = Attributes(arrays=of.data, where=_place(where, relation_text(relation), "edges"))
        columns = dgl_edge_columns(data, edge_names, num_edges=of.stream.num_edges or 0)
        edge_stores.append(
            EdgeStore(
                relation=relation,
                edges=columns.timed(of.weighted(columns.weight), order=of.order),
                features=columns.feature_rows(order=of.order),
                arrays=data,
            )
        )
    there = {key for of in edges.values() for key in of.data}
    require_columns(edge_stores, edge_names, there=there, where=where)
    source = stored_source(
        nodes,
        edge_stores,
        name=name,
        origin=origin,
        where=where,
        seed=seed,
        names=DGL_NAMES,
        needs_labels=needs_labels,
    )
    return replace(source, resident_bytes=sum(of.resident_bytes for of in edges.values()))


def _place(where: Path | str, kind: str, of: str) -> str:
    return f"{where} (data of {kind} {of})"


_INT32_MAX = 2**31 - 1


@contextmanager
def quiet_dgl(who: str) -> Iterator[Any]:
    """Import DGL with its torch backend, without its warnings and without the file it writes in $HOME.

    Parameters
    ----------
    who : what needs it, for the message

    Raises
    ------
    MissingDependencyError
        DGL is not installed, or cannot be imported.
    """
    # DGL reads the backend from the environment, or asks for it in a file in $HOME, when it is first imported.
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
    """Open a saved graph with node data feat, label and masks, and perhaps edge data weight, feat and edge_time.

    A graph of several types may have features in any of them, and has labels in one. Without masks, ``options.seed``
    decides a random split. The arrays are mapped, and DGL is not needed.

    Raises
    ------
    SourceError
        The file is missing, is not such a file, is damaged, holds other than one graph, or lacks a key.
    ShapeError
        A tensor has the wrong shape or dtype.
    BudgetError
        An array of one entry for each node is larger than the memory budget.
    """
    path = Path(argument).expanduser()
    file = DglFile.open(path)
    name, origin = path.stem, f"dgl:{argument}"
    require_node_memory(max(file.num_nodes), options.budget_bytes, origin)
    if not file.is_homogeneous:
        return stored_hetero_source(
            file,
            name=name,
            origin=origin,
            seed=options.seed,
            edge_names=options.edge_names,
            needs_labels=options.needs_labels,
        )
    return arrays_source(
        stored_arrays(file),
        name=name,
        origin=origin,
        where=path,
        seed=options.seed,
        edge_names=options.edge_names,
        needs_labels=options.needs_labels,
    )


def graph_source(
    graph: Any,
    *,
    name: str,
    origin: str,
    where: Path | str,
    seed: int,
    extra: Mapping[str, Any] = MappingProxyType({}),
    edge_names: EdgeNames = USUAL_NAMES,
    needs_labels: bool = True,
) -> Source:
    """Return the source over a homogeneous graph in memory, whose edges are shared.

    Parameters
    ----------
    graph : a homogeneous `dgl.DGLGraph` on the CPU
    name, origin : of the source
    where : what holds it, for messages; a path: the file that it came from
    seed : of the random split where there are no masks
    extra : tensors that stand beside the graph
    edge_names : of times and features of edges
    needs_labels : whether nodes without labels are refused

    Raises
    ------
    SourceError, ShapeError, ConfigError
        As `open_dgl`.
    """
    indptr, indices, edge_ids = (tensor.numpy() for tensor in graph.adj_tensors("csc"))
    arrays = DglArrays(
        num_nodes=graph.num_nodes(),
        node_data=numpy_arrays(dense_tensors({**extra, **graph.ndata})),
        edge_data=numpy_arrays(dense_tensors(graph.edata)),
        edges=ArrayCscEdges.of(indptr, indices, where=str(where)),
        # DGL numbers the edges of an edge list in the order of the list; no numbers: the order is that of the CSC.
        order=edge_ids if len(edge_ids) else None,
        resident_bytes=0,
    )
    return arrays_source(
        arrays,
        name=name,
        origin=origin,
        where=where,
        seed=seed,
        edge_names=edge_names,
        needs_labels=needs_labels,
    )


@near_keywords
def from_graph(graph: Any, *, weight: str | None = None) -> CscGraph:
    """Return the topology of a homogeneous DGL graph; its (E,) sources are shared, not copied.

    Edges are in the order of DGL's CSC form. Where DGL numbers them otherwise (a graph made of an edge list),
    ``graph.adj_tensors("csc")[2]`` has the number that DGL gives to each position.

    Parameters
    ----------
    graph : a `dgl.DGLGraph` on the CPU
    weight : name of edge data (E,) to sample by; those are copied into CSC order

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
    """Return ``graph`` as a `dgl.DGLGraph`; edge e is position e of ``indices``.

    Edges with int64 ids are shared, not copied. Ids of int32 are widened, a copy, since DGL 1.1's fused neighbour
    sampler aborts the process on int32 graphs; with ``keep_ids`` they are shared too, in an int32 graph, whose seeds
    are int32 and whose sampler must be ``NeighborSampler(..., fused=False)``.

    Parameters
    ----------
    graph : the topology
    keep_ids : give an int32 graph for int32 ids; its (N + 1,) offsets are copied

    Raises
    ------
    GraphError
        ``keep_ids`` for a graph of 2**31 edges or more, whose offsets do not fit int32.
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
    if name not in graph.edata:
        raise GraphError(f"the graph has no edge data {name!r}; it has {sorted(graph.edata) or 'none'}")
    values = graph.edata[name].reshape(-1)
    ordered = values[edge_ids.long()] if len(edge_ids) else values
    weights: NDArray[Any] = ordered.detach().numpy()
    return weights if weights.dtype in (np.float32, np.float64) else weights.astype(np.float32)


def _shared(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor over the memory of ``array``; torch has no read-only tensors, but this one is never written."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
