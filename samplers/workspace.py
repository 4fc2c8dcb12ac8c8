"""The scratch memory of a sampling call, kept from batch to batch."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from gloader.samplers.candidates import Candidates
from gloader.samplers.node_map import DenseMap, HashMap, NodeMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.types import IdArray

DENSE_LIMIT = 50_000_000  # nodes; beyond, 4 bytes a node and thread cost more than a hash table
_MIN_BIT_WORDS, _MAX_BIT_WORDS = 64, 1 << 17


class Workspace:
    """Buffers that one call uses at a time; they grow to the largest batch seen."""

    __slots__ = ("bits", "candidates", "degrees", "edges", "map", "nodes", "scratch", "starts", "weights")

    def __init__(self, node_map: NodeMap, largest_fanout: int, candidates: Candidates | None = None) -> None:
        self.map = node_map
        self.candidates = candidates
        self.edges: IdArray = np.empty(0, dtype=np.int64)
        self.weights: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self.nodes: IdArray = np.empty(0, dtype=np.int64)
        self.starts: IdArray = np.empty(0, dtype=np.int64)
        self.degrees: IdArray = np.empty(0, dtype=np.int64)
        self.scratch: NDArray[np.float64] = np.empty(0, dtype=np.float64)
        words = min(max(_MIN_BIT_WORDS, 1 << max(largest_fanout - 1, 0).bit_length()), _MAX_BIT_WORDS)
        self.bits: NDArray[np.uint64] = np.zeros(words, dtype=np.uint64)

    def reserve(self, num_nodes: int, used: int) -> None:
        """Make room for ``num_nodes`` nodes, keeping the first ``used``."""
        if num_nodes <= self.nodes.shape[0]:
            return
        capacity = max(num_nodes, 2 * self.nodes.shape[0])
        for name in ("nodes", "starts", "degrees"):
            grown = np.empty(capacity, dtype=np.int64)
            grown[:used] = getattr(self, name)[:used]
            setattr(self, name, grown)

    def reserve_edges(self, num_edges: int) -> None:
        """Make room for ``num_edges`` in ``edges`` and ``weights``; their content is lost."""
        if num_edges > self.edges.shape[0]:
            capacity = max(num_edges, 2 * self.edges.shape[0])
            self.edges = np.empty(capacity, dtype=np.int64)
            self.weights = np.empty(capacity, dtype=np.float32)

    def reserve_scratch(self, size: int) -> None:
        """Make room for ``size`` numbers in ``scratch``."""
        if size > self.scratch.shape[0]:
            self.scratch = np.empty(max(size, 2 * self.scratch.shape[0]), dtype=np.float64)


class WorkspacePool:
    """Lends each concurrent call a workspace of its own; it keeps as many as calls ever ran at once. Thread-safe."""

    def __init__(
        self,
        num_nodes: int,
        largest_fanout: int,
        *,
        dense_limit: int = DENSE_LIMIT,
        has_candidates: bool = False,
    ) -> None:
        self._has_candidates = has_candidates
        self._num_nodes = num_nodes
        self._largest_fanout = largest_fanout
        self._map = DenseMap if num_nodes <= dense_limit else HashMap
        self._free: deque[Workspace] = deque()

    @contextmanager
    def lend(self) -> Iterator[Workspace]:
        """Lend a workspace for the length of a ``with`` block; one whose block raised is dropped."""
        try:
            workspace = self._free.pop()
        except IndexError:
            candidates = Candidates(self._map(self._num_nodes)) if self._has_candidates else None
            workspace = Workspace(self._map(self._num_nodes), self._largest_fanout, candidates)
        yield workspace
        self._free.append(workspace)
