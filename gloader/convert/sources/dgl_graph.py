"""Topologies between DGL and gloader, without copying the edges where their ids have one width."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gloader.convert.sources.dgl_import import quiet_dgl
from gloader.errors import GraphError
from gloader.samplers import CscGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

with quiet_dgl("converting to DGL needs") as dgl:
    pass  # the module itself is what is wanted

_INT32_MAX = 2**31 - 1


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
    indptr: NDArray[Any] = graph.indptr
    indices: NDArray[Any] = graph.indices
    if indices.dtype == np.int32 and keep_ids:
        if graph.num_edges > _INT32_MAX:
            raise GraphError(f"{graph.num_edges} edges do not fit an int32 graph; leave keep_ids out")
        indptr = indptr.astype(np.int32)
    else:
        indices = indices.astype(np.int64, copy=False)
    made = dgl.graph(
        ("csc", (_shared(indptr), _shared(indices), torch.empty(0, dtype=_shared(indices).dtype))),
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
    """Return a tensor over the memory of ``array``, which nobody writes to: torch has no read-only tensors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
