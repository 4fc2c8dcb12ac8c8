"""A topology on the compute device: for sampling there, and for full-neighbour inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader.core.offsets import offsets_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.core.offsets import Offsets
    from gloader.samplers.graph import CscGraph

# Of a hop that is sampled: room for more is not taken before the device has counted them.
MOST_UNCOUNTED_EDGES: Final = 1 << 22
# Host memory that the upload takes.
_CHUNK_BYTES: Final = 64 << 20
_CHUNK_OFFSETS: Final = _CHUNK_BYTES // 40  # five arrays of them at a time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceTopology:
    """The in-neighbours of every node as tensors: ``indices[indptr[v] : indptr[v + 1]]`` are those of node v."""

    indptr: torch.Tensor  # (N + 1,) int64
    indices: torch.Tensor  # (E,) int32 or int64, as in the graph
    edge_weight: torch.Tensor | None = None  # (E,) float32 or float64, as in the graph

    @property
    def num_nodes(self) -> int:
        """N."""
        return int(self.indptr.shape[0]) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return int(self.indices.shape[0])

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        tensors = (self.indptr, self.indices, self.edge_weight)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def room_of_hop(num_rows: int, fanout: int) -> int | None:
    """Return the edges that a hop on a device has room for before they are counted; None: they are counted first. Pure.

    Parameters
    ----------
    num_rows : destinations, at most
    fanout : -1 for all in-edges
    """
    room = num_rows * fanout
    return room if 0 <= room <= MOST_UNCOUNTED_EDGES else None


def upload_topology(graph: CscGraph, place: torch.device, *, is_weighted: bool = False) -> DeviceTopology:
    """Return ``graph`` on the device ``place``.

    Parameters
    ----------
    graph : in memory
    place : a device
    is_weighted : with the weights of edges, if the graph has them
    """
    weights = graph.edge_weight if is_weighted else None
    return DeviceTopology(
        indptr=upload_array(graph.indptr, place),
        indices=upload_array(graph.indices, place),
        edge_weight=None if weights is None else upload_array(weights, place),
    )


def upload_array(array: NDArray[Any], place: torch.device) -> torch.Tensor:
    """Return ``array`` on the device ``place``, once it is there."""
    # In chunks: the arrays of a graph are read-only, which torch refuses to share, and too large to copy whole.
    step = _CHUNK_BYTES // array.itemsize
    chunk = np.empty(min(step, len(array)), dtype=array.dtype)
    found = torch.empty(len(array), dtype=torch.from_numpy(chunk).dtype, device=place)
    for start in range(0, len(array), step):
        part = chunk[: len(array) - start]
        part[:] = array[start : start + step]
        # From pageable memory the copy is over when this returns, so the next values may overwrite the chunk.
        found[start : start + len(part)].copy_(torch.from_numpy(part))
    return found


def upload_offsets(offsets: Offsets, place: torch.device) -> torch.Tensor:
    """Return ``offsets`` as indptr (N + 1,) int64 on the device ``place``, once it is there."""
    num_offsets = len(offsets.low)
    found = torch.empty(num_offsets, dtype=torch.int64, device=place)
    for start in range(0, num_offsets, _CHUNK_OFFSETS):
        part = offsets_of(offsets, np.arange(start, min(start + _CHUNK_OFFSETS, num_offsets)))
        found[start : start + len(part)].copy_(torch.from_numpy(part))
    return found
