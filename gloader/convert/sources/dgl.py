"""DGL graphs: ``dgl:FILE`` as a source, topologies from and to `dgl.DGLGraph`, and the one import of DGL."""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.arrays import ArrayCscEdges
from gloader.convert.readers.dgl_file import DglFile
from gloader.convert.readers.edge_names import USUAL_NAMES
from gloader.convert.readers.node_arrays import require_node_memory
from gloader.convert.readers.torch_tensors import dense_tensors, numpy_arrays
from gloader.convert.sources.dgl_hetero import stored_hetero_source
from gloader.convert.sources.dgl_homogeneous import DglArrays, arrays_source, stored_arrays
from gloader.core.near_names import near_keywords
from gloader.errors import GraphError, MissingDependencyError
from gloader.samplers import CscGraph

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from numpy.typing import NDArray

    from gloader.convert.hetero_source import AnySource
    from gloader.convert.options import SourceOptions
    from gloader.convert.readers.edge_names import EdgeNames
    from gloader.convert.source import Source

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
    """Return a tensor over the memory of ``array``; torch has no read-only tensors, and nobody writes to this one."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
