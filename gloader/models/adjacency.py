"""The edges of one hop, with the transposed order that a backward pass needs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gloader.types import DeviceBlock


class Adjacency:
    """A bipartite CSC graph on the compute device: the in-edges of each destination, one after another.

    Parameters
    ----------
    indptr : (D + 1,) int32 or int64, from 0 to E
    indices : (E,) of the same dtype, the source of each edge
    num_src : number of sources
    """

    def __init__(self, indptr: torch.Tensor, indices: torch.Tensor, *, num_src: int) -> None:
        self.indptr = indptr
        self.indices = indices
        self.num_src = num_src

    @classmethod
    def of_block(cls, block: DeviceBlock) -> Adjacency:
        """Return the edges of ``block``. Shares its tensors."""
        return cls(block.indptr, block.indices, num_src=block.num_src)

    @property
    def num_dst(self) -> int:
        """D."""
        return int(self.indptr.shape[0]) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return int(self.indices.shape[0])

    @cached_property
    def counts(self) -> torch.Tensor:
        """(D,) float32, in-edges of each destination."""
        return self.indptr.diff().float()

    @cached_property
    def dst(self) -> torch.Tensor:
        """(E,) of the dtype of ``indices``, the destination of each edge."""
        ids = torch.arange(self.num_dst, device=self.indptr.device, dtype=self.indices.dtype)
        return ids.repeat_interleave(self.indptr.diff(), output_size=self.num_edges)

    @cached_property
    def transposed(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Offsets (num_src + 1,), destinations (E,) and edge numbers (E,) in the order of the sources."""
        # Stable: the edges of a source keep their order, so that its sum rounds alike in every run.
        sources, order = torch.sort(self.indices, stable=True)
        bounds = torch.arange(self.num_src + 1, device=sources.device, dtype=sources.dtype)
        offsets = torch.searchsorted(sources, bounds).to(sources.dtype)
        return offsets, self.dst[order], order
