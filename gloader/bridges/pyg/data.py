"""The loader's batches as PyG's ``Data``: the edges of all hops over one list of nodes."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from gloader.bridges.pyg.merged_edges import Hops, merge_edges
from gloader.core.near_names import near_keywords
from gloader.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.types import ReadyBatch


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric warns about torch's own deprecations at import
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise MissingDependencyError.of_extra("gloader.adapters.pyg needs torch-geometric", "pyg") from error


@near_keywords
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
        what `nodes_and_edges` says, y (B,) of the seeds alone, batch_size, input_id, and batch (U,) int64, the seed
        that each node was found for, where seeds have times.
    """
    optional = {}
    if batch.trees is not None:
        optional["batch"] = torch.from_numpy(batch.trees).to(batch.x.device).long()
    return Data(
        **nodes_and_edges(batch), y=batch.y, batch_size=batch.num_seeds, input_id=input_id, **optional
    )


def nodes_and_edges(batch: ReadyBatch) -> dict[str, Any]:
    """Return what a ``Data`` has, whatever is predicted.

    Returns
    -------
    dict
        x (U, F), edge_index (2, E) int64, n_id (U,), e_id (E,) positions in the dataset's ``indices``,
        num_sampled_nodes (L + 1), num_sampled_edges (L), edge_weight (E,) where the sampler weighs its edges, and
        edge_attr (E, F_e) where they have features. ``x`` and ``n_id`` are shared with the batch.
    """
    hops = tuple(reversed(batch.blocks))
    firsts = (0, *(hop.num_dst for hop in hops[:-1]))
    device = batch.x.device
    (edges,) = merge_edges([Hops(blocks=hops, firsts=firsts)], device)
    return {
        "x": batch.x,
        "edge_index": edges.edge_index,
        "e_id": edges.edge_ids,
        "n_id": torch.from_numpy(batch.nodes).to(device),
        "num_sampled_nodes": _differences((0, hops[0].num_dst, *(hop.num_src for hop in hops))),
        "num_sampled_edges": edges.counts,
        **edges.optional(),
    }


def _differences(counts: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(counts)]
