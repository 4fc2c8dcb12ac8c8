"""The edges of all hops as one list of pairs, as PyG lays them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.types import DeviceBlock, LocalArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """The hops of a relation, next to the seeds first, and what of each PyG would have drawn.

    Destinations are a prefix in order of discovery, so that what a hop found new is a piece at its end.
    """

    blocks: Sequence[DeviceBlock]
    firsts: Sequence[
        int
    ]  # of each hop: destinations that sampled in an earlier one; their edges are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedEdges:
    """What PyG wants of a relation."""

    edge_index: torch.Tensor  # (2, E) int64: sources and destinations, hop after hop
    edge_ids: torch.Tensor  # (E,) int64, positions in the graph's ``indices``
    counts: list[int]  # (L,) edges of each hop
    edge_weight: torch.Tensor | None  # (E,) float32 where the sampler weighs its edges
    edge_x: torch.Tensor | None  # (E, F_e) float32 where edges have features

    def optional(self) -> dict[str, torch.Tensor]:
        """Return what not every batch has, by PyG's names."""
        named = {"edge_weight": self.edge_weight, "edge_attr": self.edge_x}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


def merge_edges(relations: Sequence[Hops], device: torch.device) -> list[MergedEdges]:
    """Return the edges of each relation; waits for ``device``, where they are, once."""
    if device.type == "cpu":
        return [_on_host(hops) for hops in relations]
    # One copy from the device for all hops and relations: each would wait for the stream.
    starts = [
        block.indptr[first]
        for hops in relations
        for block, first in zip(hops.blocks, hops.firsts, strict=True)
    ]
    begins = iter(torch.stack(starts).tolist() if starts else [])
    return [_on_device(hops, [next(begins) for _ in hops.blocks]) for hops in relations]


def _on_host(hops: Hops) -> MergedEdges:
    # numpy, not torch, whose copies wake a team of threads that the pipeline's own then compete with
    offsets = [block.indptr.numpy() for block in hops.blocks]
    starts = [int(indptr[first]) for indptr, first in zip(offsets, hops.firsts, strict=True)]
    counts = [block.indices.shape[0] - start for block, start in zip(hops.blocks, starts, strict=True)]
    pair = np.empty((2, sum(counts)), dtype=np.int64)
    edge_ids = np.empty(sum(counts), dtype=np.int64)
    done = 0
    for block, indptr, first, start, count in zip(
        hops.blocks, offsets, hops.firsts, starts, counts, strict=True
    ):
        if not count:  # most relations of a typed graph have none in most hops
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
    """Return the last ``counts[l]`` rows of each hop l: those of the edges that are taken; None: edges have none."""
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
    """Write the edges of the destinations from ``first`` on, one pair of ids an edge."""
    begin = indptr[first]
    for node in range(first, indptr.shape[0] - 1):
        for edge in range(indptr[node], indptr[node + 1]):
            sources[edge - begin] = indices[edge]
            destinations[edge - begin] = node
