"""Graphs of one type as DGL has them, in memory or in a file of `dgl.save_graphs`: a source over their arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.convert.hetero_source import ReversedEdges
from gloader.convert.readers.arrays import ArrayCscEdges, ArrayEdges, ArrayFeatures, WeightedEdges
from gloader.convert.readers.attributes import Attributes
from gloader.convert.readers.dgl_file import Form
from gloader.convert.readers.edge_store import EdgeArrays
from gloader.convert.readers.node_arrays import count_classes, random_splits
from gloader.convert.source import Source
from gloader.errors import GraphError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from gloader.convert.readers.dgl_file import DglFile
    from gloader.convert.readers.edge_names import EdgeNames
    from gloader.convert.readers.stored_array import StoredArray
    from gloader.convert.source import EdgeStream

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
