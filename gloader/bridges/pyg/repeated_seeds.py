"""Batches whose seeds repeat: a row for each draw, as PyG has them, made of a batch that has each node once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True)
class SeedRows:
    """The nodes of a type once more, with a copy of a seed for each time that it was drawn.

    Copies stand first, in the order of the draws, and have the edges of their seed; all other nodes follow. Edges that
    lead on from a seed are those of its first copy.
    """

    rows: torch.Tensor  # (B,) of each draw the seed, as a place among the U nodes of the type
    nodes: torch.Tensor  # (B + U - S,) where each node comes from, S being the seeds that differ
    places: torch.Tensor  # (U,) where each node went

    @classmethod
    def of(cls, drawn: IdArray, seeds: IdArray, num_nodes: int, device: torch.device) -> SeedRows | None:
        """Return the rows of ``drawn`` (B,), which repeats some of ``seeds`` (S,); None where it repeats none."""
        if len(drawn) == len(seeds):
            return None
        by_id = np.argsort(seeds)
        found = by_id[np.searchsorted(seeds[by_id], drawn)]
        places = np.arange(num_nodes) + len(drawn) - len(seeds)
        _, firsts = np.unique(found, return_index=True)  # seeds are in the order of their first draw
        places[: len(seeds)] = firsts
        rows = torch.from_numpy(found).to(device)
        rest = torch.arange(len(seeds), num_nodes, device=device)
        return cls(rows=rows, nodes=torch.cat([rows, rest]), places=torch.from_numpy(places).to(device))


def repeat_nodes(store: Any, seeds: SeedRows) -> None:
    """Give ``store``, of a PyG batch, a row for each draw; ``num_nodes`` is set by the caller where it is stored."""
    for name in ("x", "n_id"):
        if name in store:
            store[name] = store[name][seeds.nodes]
    first, *others = store.num_sampled_nodes
    store.num_sampled_nodes = [first + len(seeds.nodes) - len(seeds.places), *others]


def repeat_edges(store: Any, source: SeedRows | None, destination: SeedRows | None) -> None:
    """Let the edges of ``store`` lead between the rows of the draws; those of a seed are there for each of its copies.

    Parameters
    ----------
    store : the edges of a relation; those of the first hop come first, and are all that seeds have
    source, destination : of the two types; None: no seed of it repeats
    """
    src, dst = store.edge_index
    first, *others = store.num_sampled_edges
    if destination is not None:
        degrees = torch.bincount(dst[:first], minlength=len(destination.places))
        starts = degrees.cumsum(0) - degrees
        by_seed = torch.argsort(dst[:first], stable=True)
        counts = degrees[destination.rows]
        copies = torch.repeat_interleave(torch.arange(len(counts), device=dst.device), counts)
        within = torch.arange(len(copies), device=dst.device) - (counts.cumsum(0) - counts)[copies]
        taken = by_seed[starts[destination.rows][copies] + within]
        kept = torch.cat([taken, torch.arange(first, len(dst), device=dst.device)])
        src, dst = src[kept], torch.cat([copies, destination.places[dst[first:]]])
        store.num_sampled_edges = [len(copies), *others]
        for name in ("e_id", "edge_weight", "edge_attr"):
            if name in store:
                store[name] = store[name][kept]
    if source is not None:
        src = source.places[src]
    store.edge_index = torch.stack([src, dst])
