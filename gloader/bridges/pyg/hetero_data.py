"""The loader's batches of several types as PyG's ``HeteroData``."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from gloader.bridges.hop_sizes import nodes_by_hop
from gloader.bridges.pyg.merged_edges import Hops, merge_edges
from gloader.core.near_names import near_keywords
from gloader.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.types import HeteroReadyBatch


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric warns about torch's own deprecations at import
    try:
        from torch_geometric.data import HeteroData
    except ImportError as error:
        raise MissingDependencyError.of_extra("gloader.adapters.pyg needs torch-geometric", "pyg") from error


@near_keywords
def to_hetero_data(
    batch: HeteroReadyBatch, *, labelled: str, input_id: Mapping[str, torch.Tensor] | None = None
) -> HeteroData:
    """Return ``batch`` in PyG's layout, see `to_data`. Every type and relation is there, perhaps empty.

    Parameters
    ----------
    batch : a native batch
    labelled : the type whose labels ``batch.y`` holds
    input_id : of each type with seeds, their positions in the loader's seeds

    Returns
    -------
    HeteroData
        what `typed_nodes_and_edges` says; of a type with seeds batch_size and input_id besides, and of the labelled one
        y of the seeds alone; of each type batch (U_t,) int64, the seed that each node was found for, where seeds have
        times.
    """
    data = typed_nodes_and_edges(batch)
    for name, count in batch.num_seeds.items():
        store = data[name]
        if count or name == labelled:
            store.batch_size = count
            if input_id is not None and name in input_id:
                store.input_id = input_id[name]
        if batch.trees is not None:
            store.batch = torch.from_numpy(batch.trees[name]).to(batch.y.device).long()
    data[labelled].y = batch.y
    return data


def typed_nodes_and_edges(batch: HeteroReadyBatch) -> HeteroData:
    """Return what a ``HeteroData`` has, whatever is predicted.

    Returns
    -------
    HeteroData
        of each type n_id (U_t,), num_nodes, num_sampled_nodes (L + 1), and x (U_t, F_t) of one with features; of each
        relation edge_index (2, E_r) int64, e_id (E_r,) positions in its ``indices``, num_sampled_edges (L), edge_weight
        (E_r,) where the sampler weighs its edges, and edge_attr (E_r, F_e) where they have features. ``x`` and ``n_id``
        are shared with the batch.
    """
    data = HeteroData()
    device = batch.y.device
    known = nodes_by_hop(batch.num_seeds, batch.blocks)
    for name, nodes in batch.nodes.items():
        store = data[name]
        if (x := batch.x[name]).shape[1]:
            store.x = x
        store.n_id = torch.from_numpy(nodes).to(device)
        store.num_nodes = len(nodes)
        store.num_sampled_nodes = [after - before for before, after in pairwise([0, *known[name]])]

    hops = tuple(reversed(batch.blocks))
    relations = list(hops[0])
    chains = [
        Hops(blocks=[hop[relation] for hop in hops], firsts=(0, *known[relation[2]][: len(hops) - 1]))
        for relation in relations
    ]
    for relation, edges in zip(relations, merge_edges(chains, device), strict=True):
        store = data[relation]
        store.edge_index = edges.edge_index
        store.e_id = edges.edge_ids
        store.num_sampled_edges = edges.counts
        for name, rows in edges.optional().items():
            store[name] = rows
    return data
