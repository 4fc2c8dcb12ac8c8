"""The loader's batches as PyG's ``Data`` and ``HeteroData``, for nodes and for links.

`to_data`, `to_hetero_data` and `to_link_data` convert a batch of gloader's own ("native") loaders; PyG's loaders in
`node_loader` and `link_loader` call them. A native batch has one block of edges per hop. In a layered block every node
that an earlier hop found samples neighbours again. PyG keeps all hops' edges as one list of (source, destination) over
one list of nodes. It samples a node's neighbours only once, in the hop after the node is found. So `merge_edges` takes
from each block only the edges into the nodes that the previous hop added. Nodes are in the order of their discovery.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gloader.bridges.loader_view import TypedBatch
from gloader.core.kernels import njit
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.types import DeviceBlock, HeteroReadyBatch, LinkBatch, LocalArray, ReadyBatch, Relation

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric warns about torch's own deprecations at import
    try:
        from torch_geometric.data import Data, HeteroData
    except ImportError as error:
        raise MissingDependencyError.of_extra("gloader.adapters.pyg needs torch-geometric", "pyg") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """A relation's hops, next to the seeds first, and the part of each hop that PyG would have drawn.

    A block's destinations are in the order in which they were found, so the nodes that the previous hop added are last.
    """

    blocks: Sequence[DeviceBlock]
    # For each hop, the number of destinations that already sampled in an earlier hop; their edges are left out.
    firsts: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedEdges:
    """A relation's edges in PyG's form."""

    edge_index: torch.Tensor  # (2, E) int64: sources and destinations, hop after hop
    edge_ids: torch.Tensor  # (E,) int64, positions in the graph's ``indices``
    counts: list[int]  # (L,) edges in each hop
    edge_weight: torch.Tensor | None  # (E,) float32 if the sampler weighs its edges
    edge_x: torch.Tensor | None  # (E, F_e) float32 if edges have features

    def optional(self) -> dict[str, torch.Tensor]:
        """Return a batch's optional fields, with PyG's names."""
        named = {"edge_weight": self.edge_weight, "edge_attr": self.edge_x}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


def merge_edges(relations: Sequence[Hops], device: torch.device) -> list[MergedEdges]:
    """Return each relation's edges in PyG's form. If they are on a GPU, the CPU waits for it only once."""
    if device.type == "cpu":
        return [_on_host(hops) for hops in relations]
    # ``starts`` has the number of each hop's first used edge. All hops and relations share one copy from the device,
    # because each separate copy would wait for the CUDA stream.
    starts = [
        block.indptr[first]
        for hops in relations
        for block, first in zip(hops.blocks, hops.firsts, strict=True)
    ]
    begins = iter(torch.stack(starts).tolist() if starts else [])
    return [_on_device(hops, [next(begins) for _ in hops.blocks]) for hops in relations]


def _on_host(hops: Hops) -> MergedEdges:
    """Return a relation's edges in host memory, hop after hop."""
    # numpy makes these arrays, since torch's copies wake a team of threads that compete with the pipeline's threads.
    offsets = [block.indptr.numpy() for block in hops.blocks]
    starts = [int(indptr[first]) for indptr, first in zip(offsets, hops.firsts, strict=True)]
    counts = [block.indices.shape[0] - start for block, start in zip(hops.blocks, starts, strict=True)]
    pair = np.empty((2, sum(counts)), dtype=np.int64)
    edge_ids = np.empty(sum(counts), dtype=np.int64)
    done = 0
    for block, indptr, first, start, count in zip(
        hops.blocks, offsets, hops.firsts, starts, counts, strict=True
    ):
        if not count:  # common: in most hops, most relations of a typed graph have no edges
            continue
        part = slice(done, done + count)
        _fill(indptr, block.indices.numpy(), first, pair[0, part], pair[1, part])
        edge_ids[part] = block.edge_ids.numpy()[start:]
        done += count
    return MergedEdges(
        edge_index=torch.from_numpy(pair),
        edge_ids=torch.from_numpy(edge_ids),
        counts=counts,
        edge_weight=_last_rows([block.edge_weight for block in hops.blocks], counts),
        edge_x=_last_rows([block.edge_x for block in hops.blocks], counts),
    )


def _on_device(hops: Hops, starts: Sequence[int]) -> MergedEdges:
    """Return a relation's edges on their device. ``starts`` has each hop's first edge."""
    pairs = [block.edge_index[:, start:] for block, start in zip(hops.blocks, starts, strict=True)]
    edge_ids = [block.edge_ids[start:] for block, start in zip(hops.blocks, starts, strict=True)]
    counts = [pair.shape[1] for pair in pairs]
    return MergedEdges(
        edge_index=torch.cat(pairs, dim=1),
        edge_ids=torch.cat(edge_ids),
        counts=counts,
        edge_weight=_last_rows([block.edge_weight for block in hops.blocks], counts),
        edge_x=_last_rows([block.edge_x for block in hops.blocks], counts),
    )


def _last_rows(of_hops: Sequence[torch.Tensor | None], counts: Sequence[int]) -> torch.Tensor | None:
    """Return the last ``counts[l]`` rows in each hop l: the used edges' rows. None without edge features."""
    pieces = [
        rows[len(rows) - count :] for rows, count in zip(of_hops, counts, strict=True) if rows is not None
    ]
    return torch.cat(pieces) if pieces else None


@njit(cache=True, nogil=True)
def _fill(
    indptr: LocalArray,
    indices: LocalArray,
    first: int,
    sources: NDArray[np.int64],
    destinations: NDArray[np.int64],
) -> None:
    """Write the ``sources`` and ``destinations`` (E,) of all edges whose destination is ``first`` or a later node."""
    begin = indptr[first]
    for node in range(first, indptr.shape[0] - 1):
        for edge in range(indptr[node], indptr[node + 1]):
            sources[edge - begin] = indices[edge]
            destinations[edge - begin] = node


@near_keywords
def to_data(batch: ReadyBatch, *, input_id: torch.Tensor | None = None) -> Data:
    """Return ``batch`` in PyG's layout: nodes and features unchanged, seeds first, and all hops' edges in one list.

    Each hop contributes the edges into destinations that the previous hop added, which are its block's last edges.
    For a loader with ``layout="merged"`` these are all edges in the batch, once. For a layered loader they are the
    edges that PyG would have drawn. PyG's `trim_to_layer` and models over all nodes of the batch compute the same as
    with PyG's loader.

    Parameters
    ----------
    batch : a native batch
    input_id : (B,) the seeds' positions in the loader's seeds

    Returns
    -------
    Data
        the fields from `nodes_and_edges`, the seeds' y (B,), batch_size and input_id; for seeds with times also batch
        (U,) int64, each node's seed. For rows of a task table y and input_id (B,) are those of the rows, with
        row_weight (B,), row_age (U,) and row_seeds (B,) where the batch has them, see `HeteroReadyBatch`.
    """
    view = TypedBatch(batch)
    data = Data(**nodes_and_edges(view), y=batch.y, batch_size=batch.num_seeds, input_id=input_id)
    if batch.trees is not None:
        data.batch = torch.from_numpy(batch.trees).to(view.device).long()
    data.update(_row_fields(batch))
    if batch.row_age is not None:
        data.row_age = batch.row_age
    return data


def _row_fields(batch: ReadyBatch | HeteroReadyBatch) -> dict[str, torch.Tensor]:
    """Return the fields of rows of a task table; none for other seeds."""
    if batch.row_ids is None:
        return {}
    row_ids = torch.from_numpy(batch.row_ids).to(batch.y.device)
    fields = {"input_id": row_ids, "row_weight": batch.weights, "row_seeds": batch.row_seeds}
    return {name: each for name, each in fields.items() if each is not None}


def nodes_and_edges(view: TypedBatch) -> dict[str, Any]:
    """Return a ``Data``'s fields for any task.

    Returns
    -------
    dict
        x (U, F), edge_index (2, E) int64, n_id (U,), e_id (E,) positions in the dataset's ``indices``,
        num_sampled_nodes (L + 1), num_sampled_edges (L); edge_weight (E,) if the sampler weighs its edges, and
        edge_attr (E, F_e) if edges have features. ``x`` and ``n_id`` are shared with the batch.
    """
    (name,), (edges,) = view.nodes, _edge_fields(view).values()
    return {"x": view.x[name], **_node_fields(view, name), **edges}


def _node_fields(view: TypedBatch, name: str) -> dict[str, Any]:
    """Return a type's node ids, and the number of nodes that each hop added, with PyG's names."""
    counts = [after - before for before, after in pairwise([0, *view.known[name]])]
    return {"n_id": view.nodes[name], "num_sampled_nodes": counts}


def _edge_fields(view: TypedBatch) -> dict[Relation, dict[str, Any]]:
    """Return each relation's edges with PyG's names."""
    hops = view.blocks[::-1]  # the hop next to the seeds first
    # Each hop skips the destinations that sampled in an earlier hop.
    chains = {
        relation: Hops(
            blocks=[hop[relation] for hop in hops], firsts=(0, *view.known[relation[2]][: len(hops) - 1])
        )
        for relation in hops[0]
    }
    merged = merge_edges(list(chains.values()), view.device)
    return {
        relation: {
            "edge_index": edges.edge_index,
            "e_id": edges.edge_ids,
            "num_sampled_edges": edges.counts,
            **edges.optional(),
        }
        for relation, edges in zip(chains, merged, strict=True)
    }


@near_keywords
def to_hetero_data(
    batch: HeteroReadyBatch, *, labelled: str, input_id: Mapping[str, torch.Tensor] | None = None
) -> HeteroData:
    """Return ``batch`` in PyG's layout, see `to_data`. Every type and relation is present, perhaps empty.

    Parameters
    ----------
    batch : a native batch
    labelled : the type to which the labels in ``batch.y`` belong
    input_id : the seeds' positions in the loader's seeds, by type; types without seeds are absent

    Returns
    -------
    HeteroData
        the fields from `typed_nodes_and_edges`; for a type with seeds also batch_size and input_id; for the labelled
        type also y, only for the seeds; for seeds with times each type also has batch (U_t,) int64, each node's
        seed. For rows of a task table, the labelled type has their fields, as in `to_data`, and each type its row_age.
    """
    view = TypedBatch(batch)
    data = typed_nodes_and_edges(view)
    for name, count in batch.num_seeds.items():
        store = data[name]
        if count or name == labelled:
            store.batch_size = count
            if input_id is not None and name in input_id:
                store.input_id = input_id[name]
        if batch.trees is not None:
            store.batch = torch.from_numpy(batch.trees[name]).to(batch.y.device).long()
    data[labelled].update({"y": batch.y, **_row_fields(batch)})
    for name, ages in (batch.row_age or {}).items():
        data[name].row_age = ages
    return data


def typed_nodes_and_edges(view: TypedBatch) -> HeteroData:
    """Return a ``HeteroData``'s fields for any task.

    Returns
    -------
    HeteroData
        for each type n_id (U_t,), num_nodes, num_sampled_nodes (L + 1), and x (U_t, F_t) if it has features; for each
        relation edge_index (2, E_r) int64, e_id (E_r,) positions in its ``indices``, num_sampled_edges (L); edge_weight
        (E_r,) if the sampler weighs its edges, and edge_attr (E_r, F_e) if edges have features. ``x`` and ``n_id``
        are shared with the batch.
    """
    data = HeteroData()
    for name, nodes in view.nodes.items():
        fields = {"x": view.x[name]} if view.x[name].shape[1] else {}
        data[name].update({**fields, **_node_fields(view, name), "num_nodes": len(nodes)})
    for relation, edges in _edge_fields(view).items():
        data[relation].update(edges)
    return data


@near_keywords
def to_link_data(
    batch: LinkBatch, *, relation: Relation | None = None, triplets: bool = False
) -> Data | HeteroData:
    """Return ``batch`` in the layout of PyG's ``LinkNeighborLoader``. Pure.

    Parameters
    ----------
    batch : a native batch
    relation : the pairs' relation, for a batch with several types
    triplets : True returns sources with their right and wrong destinations, False pairs with labels

    Returns
    -------
    Data or HeteroData
        the fields from `nodes_and_edges` or `typed_nodes_and_edges`, input_id (B,) the positives' link table rows, and

        - edge_label_index (2, P) int64 and edge_label (P,), positives first; for edges with times also
          edge_label_time (P,);
        - for triplets src_index (B,), dst_pos_index (B,) and dst_neg_index (B,), or (B, k) with several negatives;
          for edges with times also seed_time (B,).

        All indices are positions in ``n_id``. For edges with times, batch (U,) int64 is each node's positive. In a
        ``HeteroData`` these fields are in PyG's places: at the relation, or at its two types.

    Raises
    ------
    ConfigError
        Triplets are requested, and the positives' sources have different numbers of negatives.
    """
    device = batch.labels.device
    named = _triplets(batch) if triplets else _labelled_pairs(batch)
    input_id = torch.from_numpy(batch.edge_ids[: batch.num_positives]).to(device)
    view = TypedBatch(batch.batch)
    if view.only_type:
        data = Data(**nodes_and_edges(view), input_id=input_id, **named)
        stores, first_destination = {view.only_type: data}, 0
    else:
        if relation is None:
            raise ConfigError("for a batch of several types, relation= must name the relation of its pairs")
        data = typed_nodes_and_edges(view)
        data[relation].input_id = input_id
        for name, values in named.items():
            for place in _places(name, relation):
                data[place][name] = values
        stores = {name: data[name] for name in view.nodes}
        first_destination = view.num_seeds[relation[0]] if relation[0] != relation[2] else 0
    if view.trees is not None:
        positives = _positive_of_seeds(batch, first_destination)
        for name, trees in view.trees.items():
            stores[name].batch = positives[torch.from_numpy(trees).to(device).long()]
    return data


def _labelled_pairs(batch: LinkBatch) -> dict[str, torch.Tensor]:
    """Return the pairs' fields with PyG's names: the pairs, their labels, and their times if there are any."""
    fields = {"edge_label_index": batch.pairs.t().contiguous(), "edge_label": batch.labels}
    if batch.times is not None:
        times = torch.from_numpy(batch.times).to(batch.labels.device)
        fields["edge_label_time"] = times[_positive_of_pairs(batch)]
    return fields


def _triplets(batch: LinkBatch) -> dict[str, torch.Tensor]:
    """Return the pairs' fields as triplets: a source, its right destination, and its wrong ones."""
    pairs, count = batch.pairs, batch.num_positives
    right, wrong = pairs[:count], pairs[count:]
    if len(wrong) == 0 or len(wrong) % count:
        raise ConfigError(
            f"{len(wrong)} negatives and {count} edges are no triplets, which have equally many negatives for each "
            "edge: pass gloader.Uniform(k), or leave out triplets"
        )
    fields = {
        "src_index": right[:, 0].contiguous(),
        "dst_pos_index": right[:, 1].contiguous(),
        "dst_neg_index": wrong[:, 1].reshape(count, -1).squeeze(-1),  # no second axis for k = 1, as in PyG
    }
    if batch.times is not None:
        fields["seed_time"] = torch.from_numpy(batch.times).to(pairs.device)
    return fields


def _positive_of_pairs(batch: LinkBatch) -> torch.Tensor:
    """Return (P,) each pair's positive, in a batch with edge times. A positive pair is its own positive."""
    # In such a batch the positives' sources are seeds 0..B-1. A negative has one of these sources, or one of its own.
    # The negatives' own sources follow in groups of B, each group in the order of the positives.
    return batch.pairs[:, 0] % batch.num_positives


def _positive_of_seeds(batch: LinkBatch, first_destination: int = 0) -> torch.Tensor:
    """Return (B,) each seed's positive: the seed is an end of the positive or of one of its negatives.

    Parameters
    ----------
    batch : a batch with edge times
    first_destination : the first destination's number among the seeds. Pairs between two types count destinations
        from 0, so this number is added. It is 0 if sources and destinations have one type.
    """
    trees = batch.pairs + batch.pairs.new_tensor([0, first_destination])
    positives = trees.new_zeros(int(trees.max()) + 1)
    positives[trees] = _positive_of_pairs(batch)[:, None].expand(-1, 2)
    return positives


def _places(name: str, relation: Relation) -> list[str | Relation]:
    """Return the places in PyG's ``HeteroData`` for the field ``name``."""
    source, _, destination = relation
    by_name: dict[str, list[str | Relation]] = {
        "src_index": [source],
        "dst_pos_index": [destination],
        "dst_neg_index": [destination],
        "seed_time": [source, destination],
    }
    return by_name.get(name, [relation])
