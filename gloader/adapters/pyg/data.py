"""The loader's batches as PyG's ``Data``: the edges of all hops over one list of nodes."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit

from gloader.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.types import DeviceBlock, LocalArray, ReadyBatch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric warns about torch's own deprecations at import
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise MissingDependencyError.of_extra("gloader.adapters.pyg needs torch-geometric", "pyg") from error


def to_data(batch: ReadyBatch, *, input_id: torch.Tensor | None = None) -> Data:
    """Return ``batch`` in PyG's layout: its nodes and features as they are, seeds first, and merged hops of edges.

    Each hop gives the edges of the destinations that the hop before found first: a piece at the end of its block. Of a
    loader with ``layout="merged"`` those are all edges of the batch, once. Of a layered one they are what PyG would
    have drawn: there a node samples once, in the hop after the one that found it, and in layered blocks again in every
    later hop. `trim_to_layer` and whole-graph models compute the same, as with PyG's loader.

    Parameters
    ----------
    batch : a native batch
    input_id : (B,) the seeds' positions in the loader's seeds

    Returns
    -------
    Data
        x (U, F), y (B,) of the seeds alone, edge_index (2, E) int64, n_id (U,), e_id (E,) positions in the
        dataset's ``indices``, batch_size, input_id, num_sampled_nodes (L + 1), num_sampled_edges (L), and edge_weight
        (E,) where the sampler weighs its edges. ``x`` and ``n_id`` are shared with the batch.
    """
    hops = tuple(reversed(batch.blocks))
    # Destinations are a prefix in order of discovery, so that what a hop found new is a piece at its end.
    firsts = (0, *(hop.num_dst for hop in hops[:-1]))  # of hop l: the nodes that sampled in an earlier one
    device = batch.x.device
    edges = _edges_on_host(hops, firsts) if device.type == "cpu" else _edges_on_device(hops, firsts)
    weights = [hop.edge_weight for hop in hops]
    optional = {} if weights[0] is None else {"edge_weight": _joined(weights, edges[2])}
    return Data(
        x=batch.x,
        y=batch.y,
        edge_index=edges[0],
        e_id=edges[1],
        n_id=torch.from_numpy(batch.nodes).to(device),
        batch_size=batch.num_seeds,
        input_id=input_id,
        num_sampled_nodes=_differences((0, hops[0].num_dst, *(hop.num_src for hop in hops))),
        num_sampled_edges=edges[2],
        **optional,
    )


def _edges_on_host(
    hops: Sequence[DeviceBlock], firsts: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    # numpy, not torch, whose copies wake a team of threads that the pipeline's own then compete with
    offsets = [hop.indptr.numpy() for hop in hops]
    starts = [int(indptr[first]) for indptr, first in zip(offsets, firsts, strict=True)]
    counts = [hop.indices.shape[0] - start for hop, start in zip(hops, starts, strict=True)]
    pair = np.empty((2, sum(counts)), dtype=np.int64)
    edge_ids = np.empty(sum(counts), dtype=np.int64)
    done = 0
    for hop, indptr, first, start, count in zip(hops, offsets, firsts, starts, counts, strict=True):
        part = slice(done, done + count)
        _fill(indptr, hop.indices.numpy(), first, pair[0, part], pair[1, part])
        edge_ids[part] = hop.edge_ids.numpy()[start:]
        done += count
    return torch.from_numpy(pair), torch.from_numpy(edge_ids), counts


def _edges_on_device(
    hops: Sequence[DeviceBlock], firsts: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    # One copy from the device for all hops: each would wait for the stream.
    starts = torch.stack([hop.indptr[first] for hop, first in zip(hops, firsts, strict=True)]).tolist()
    pairs = [hop.edge_index[:, start:] for hop, start in zip(hops, starts, strict=True)]
    edge_ids = [hop.edge_ids[start:] for hop, start in zip(hops, starts, strict=True)]
    return torch.cat(pairs, dim=1), torch.cat(edge_ids), [pair.shape[1] for pair in pairs]


def _joined(weights: Sequence[torch.Tensor | None], counts: Sequence[int]) -> torch.Tensor:
    """Return the last ``counts[l]`` weights of each hop l: those of the edges that are taken."""
    pieces = zip(weights, counts, strict=True)
    return torch.cat([weight[len(weight) - count :] for weight, count in pieces if weight is not None])


def _differences(counts: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(counts)]


@njit(cache=True, nogil=True)
def _fill(
    indptr: LocalArray,
    indices: LocalArray,
    first: int,
    sources: NDArray[np.int64],
    destinations: NDArray[np.int64],
) -> None:
    """Write the edges of the destinations from ``first`` on, one pair of ids an edge."""
    begin = indptr[first]
    for node in range(first, indptr.shape[0] - 1):
        for edge in range(indptr[node], indptr[node + 1]):
            sources[edge - begin] = indices[edge]
            destinations[edge - begin] = node
