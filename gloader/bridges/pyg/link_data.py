"""The loader's batches of links as PyG's ``Data`` and ``HeteroData``."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from gloader.bridges.pyg.data import nodes_and_edges
from gloader.bridges.pyg.hetero_data import typed_nodes_and_edges
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError, MissingDependencyError
from gloader.types import HeteroReadyBatch

if TYPE_CHECKING:
    from gloader.types import LinkBatch, Relation


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric warns about torch's own deprecations at import
    try:
        from torch_geometric.data import Data, HeteroData
    except ImportError as error:
        raise MissingDependencyError.of_extra("gloader.adapters.pyg needs torch-geometric", "pyg") from error


@near_keywords
def to_link_data(
    batch: LinkBatch, *, relation: Relation | None = None, triplets: bool = False
) -> Data | HeteroData:
    """Return ``batch`` in the layout of PyG's ``LinkNeighborLoader``. Pure.

    Parameters
    ----------
    batch : a native batch
    relation : what the pairs are of, where the batch is of several types
    triplets : sources with their right and their wrong destinations, in place of pairs with labels

    Returns
    -------
    Data or HeteroData
        what `nodes_and_edges` and `typed_nodes_and_edges` say, input_id (B,) the positives' rows in the link table, and

        - edge_label_index (2, P) int64 and edge_label (P,), positives first; where the edges have times
          edge_label_time (P,) besides;
        - of triplets src_index (B,), dst_pos_index (B,) and dst_neg_index (B,), or (B, k) of more than one negative;
          where the edges have times seed_time (B,).

        These count within ``n_id``. Where the edges have times, batch (U,) int64 says for which of the positives a node
        was found. In a ``HeteroData`` all of these are where PyG has them: of the relation, or of its two types.

    Raises
    ------
    ConfigError
        Triplets are asked for, and the negatives are not equally many for the source of each positive.
    """
    device = batch.labels.device
    named = _triplets(batch) if triplets else _labelled_pairs(batch)
    input_id = torch.from_numpy(batch.edge_ids[: batch.num_positives]).to(device)
    ready = batch.batch
    if not isinstance(ready, HeteroReadyBatch):
        data = Data(**nodes_and_edges(ready), input_id=input_id, **named)
        if ready.trees is not None:
            data.batch = _positive_of_seeds(batch)[torch.from_numpy(ready.trees).to(device).long()]
        return data
    if relation is None:
        raise ConfigError("a batch of several types needs the relation= that its pairs are of")
    typed = typed_nodes_and_edges(ready)
    typed[relation].input_id = input_id
    for name, values in named.items():
        for place in _places(name, relation):
            typed[place][name] = values
    if ready.trees is not None:
        first_destination = ready.num_seeds[relation[0]] if relation[0] != relation[2] else 0
        positives = _positive_of_seeds(batch, first_destination)
        for name, trees in ready.trees.items():
            typed[name].batch = positives[torch.from_numpy(trees).to(device).long()]
    return typed


def _labelled_pairs(batch: LinkBatch) -> dict[str, torch.Tensor]:
    found = {"edge_label_index": batch.pairs.t().contiguous(), "edge_label": batch.labels}
    if batch.times is not None:
        times = torch.from_numpy(batch.times).to(batch.labels.device)
        found["edge_label_time"] = times[_positive_of_pairs(batch)]
    return found


def _triplets(batch: LinkBatch) -> dict[str, torch.Tensor]:
    pairs, count = batch.pairs, batch.num_positives
    right, wrong = pairs[:count], pairs[count:]
    if len(wrong) == 0 or len(wrong) % count:
        raise ConfigError(
            f"{len(wrong)} negatives beside {count} edges are no triplets, which have as many for each edge: pass "
            "gloader.Uniform(k), or leave out triplets"
        )
    found = {
        "src_index": right[:, 0].contiguous(),
        "dst_pos_index": right[:, 1].contiguous(),
        "dst_neg_index": wrong[:, 1].reshape(count, -1).squeeze(-1),  # without a second axis for one, as PyG
    }
    if batch.times is not None:
        found["seed_time"] = torch.from_numpy(batch.times).to(pairs.device)
    return found


def _positive_of_pairs(batch: LinkBatch) -> torch.Tensor:
    """Return (P,) the positive that each pair is, or is beside, in a batch whose edges have times."""
    # There the sources of the positives are the first seeds. A negative has one of these, or its own, which stands
    # beside each positive in turn.
    return batch.pairs[:, 0] % batch.num_positives


def _positive_of_seeds(batch: LinkBatch, first_destination: int = 0) -> torch.Tensor:
    """Return (B,) the positive that each seed is an end of, or of a negative beside it.

    Parameters
    ----------
    batch : whose edges have times
    first_destination : seeds before those that destinations count from
    """
    trees = batch.pairs + batch.pairs.new_tensor([0, first_destination])
    positives = trees.new_zeros(int(trees.max()) + 1)
    positives[trees] = _positive_of_pairs(batch)[:, None].expand(-1, 2)
    return positives


def _places(name: str, relation: Relation) -> list[str | Relation]:
    """Return where in a ``HeteroData`` PyG has what is called ``name``."""
    source, _, destination = relation
    by_name: dict[str, list[str | Relation]] = {
        "src_index": [source],
        "dst_pos_index": [destination],
        "dst_neg_index": [destination],
        "seed_time": [source, destination],
    }
    return by_name.get(name, [relation])
