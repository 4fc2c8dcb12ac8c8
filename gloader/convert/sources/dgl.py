"""DGL graphs: ``dgl:FILE`` as a source, topologies from and to `dgl.DGLGraph`, and the one import of DGL."""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.hetero_source import HeteroSource
from gloader.convert.readers.arrays import ArrayCscEdges, ArrayFeatures
from gloader.convert.readers.attributes import Attributes
from gloader.convert.readers.edge_names import USUAL_NAMES
from gloader.convert.readers.node_arrays import count_classes, random_splits
from gloader.convert.source import Source
from gloader.convert.sources.dgl_hetero import dgl_edge_columns, dgl_edge_data, hetero_source
from gloader.core.malformed import MALFORMED
from gloader.errors import GraphError, MissingDependencyError, SourceError
from gloader.samplers import CscGraph

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from numpy.typing import NDArray

    from gloader.convert.hetero_source import AnySource
    from gloader.convert.options import SourceOptions
    from gloader.convert.readers.edge_names import EdgeNames

# The first bytes of every file of dgl.save_graphs.
_MAGIC = (0xDD2E4FF046B4A13F).to_bytes(8, "little")
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
    decides a random split.

    Raises
    ------
    MissingDependencyError
        DGL is not installed.
    SourceError
        The file is missing, is not such a file, holds other than one graph, or lacks a key.
    ShapeError
        A tensor has the wrong shape or dtype.
    """
    # Unlike a PyG file, a DGL file is not mapped: features and edges lie in memory while the source is open.
    path = Path(argument).expanduser()
    graph, extra = _load(path)
    make = partial(
        graph_source if graph.is_homogeneous else hetero_source,
        name=path.stem,
        origin=f"dgl:{argument}",
        where=path,
        seed=options.seed,
        extra=extra,
        edge_names=options.edge_names,
        needs_labels=options.needs_labels,
    )
    source = make(graph)
    if isinstance(source, HeteroSource):
        return source
    row_bytes = source.features.dim * source.features.dtype.itemsize
    held = graph.num_nodes() * row_bytes + 16 * graph.num_edges()
    return replace(source, resident_bytes=source.resident_bytes + held)


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
    tensors = {**extra, **graph.ndata}
    nodes = Attributes(
        arrays={key: tensor.numpy() for key, tensor in tensors.items()}, where=f"{where} (node data)"
    )
    links = dgl_edge_data(graph.edata, f"{where} (edge data)")
    rows = nodes.features("feat", "features", "x")
    labels = nodes.labels("label", "labels", "y", num_nodes=graph.num_nodes(), needs_labels=needs_labels)
    columns = dgl_edge_columns(links, edge_names, num_edges=graph.num_edges())
    edge_names.require(
        has_times=columns.times is not None,
        has_features=columns.features is not None,
        there=links.arrays,
        where=str(where),
    )
    indptr, indices, edge_ids = (tensor.numpy() for tensor in graph.adj_tensors("csc"))
    # DGL numbers the edges of an edge list in the order of the list; no numbers: the order is that of the CSC.
    order = edge_ids if len(edge_ids) else None
    return Source(
        name=name,
        origin=origin,
        num_nodes=graph.num_nodes(),
        num_classes=count_classes(labels),
        edges=columns.timed(
            ArrayCscEdges.of(
                indptr,
                indices,
                where=str(where),
                weight=columns.weight if columns.weight is None or order is None else columns.weight[order],
            ),
            order=order,
        ),
        features=ArrayFeatures(rows=rows),
        labels=labels,
        splits=nodes.splits(graph.num_nodes()) or random_splits(labels, seed=seed),
        edge_features=columns.feature_rows(order=order),
        edge_file=where if isinstance(where, Path) else None,
        resident_bytes=columns.num_bytes,
    )


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


def _load(path: Path) -> tuple[Any, dict[str, Any]]:
    if not path.is_file():
        raise SourceError(f"{path} does not exist or is not a file; dgl: takes a file of dgl.save_graphs")
    # DGL's own reader does not say that a file is of another kind.
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise SourceError(
                f"{path} is not a file of dgl.save_graphs: it does not start with its signature"
            )
    with quiet_dgl("dgl: sources need") as dgl:
        try:
            graphs, extra = dgl.load_graphs(str(path))
        except (dgl.DGLError, OSError, RuntimeError, *MALFORMED) as error:
            # The first line without the C++ stack that follows it.
            reason = str(error).partition("\n")[0].rpartition("Check failed: ")[2] or repr(error)
            raise SourceError(f"{path} is damaged, DGL cannot read it: {reason}") from error
    if len(graphs) != 1:
        raise SourceError(f"{path} holds {len(graphs)} graphs; save one")
    return graphs[0], extra


def _weights(graph: Any, name: str, edge_ids: torch.Tensor) -> NDArray[Any]:
    if name not in graph.edata:
        raise GraphError(f"the graph has no edge data {name!r}; it has {sorted(graph.edata) or 'none'}")
    values = graph.edata[name].reshape(-1)
    ordered = values[edge_ids.long()] if len(edge_ids) else values
    weights: NDArray[Any] = ordered.detach().numpy()
    return weights if weights.dtype in (np.float32, np.float64) else weights.astype(np.float32)


def _shared(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor over the memory of ``array``; torch has no read-only tensors, and nobody writes to this one."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
