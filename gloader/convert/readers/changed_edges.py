"""Edge streams over another stream: with weights from beside it, or from destinations to sources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gloader.core.aligned_memory import plain_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.source import EdgeChunk, EdgeStream


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedEdges:
    """The edges of a stream with weights from an array, which may be memory-mapped."""

    edges: EdgeStream
    weight: NDArray[np.generic]  # (E,)
    numbers: (
        NDArray[np.integer] | None
    )  # (E,) the number of each edge in ``weight``; None: they are in its order

    @property
    def num_edges(self) -> int | None:
        """Number of edges; None: unknown until they are read."""
        return self.edges.num_edges

    @property
    def has_weights(self) -> bool:
        """Always."""
        return True

    @property
    def has_times(self) -> bool:
        """Whether every chunk carries times."""
        return self.edges.has_times

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        done = 0
        for chunk in self.edges.chunks(max_edges):
            part = slice(done, done + chunk.src.shape[0])
            done = part.stop
            values = self.weight[part] if self.numbers is None else self.weight[self.numbers[part]]
            yield replace(chunk, weight=plain_array(values, np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedEdges:
    """The edges of a stream from their destinations to their sources."""

    edges: EdgeStream

    @property
    def num_edges(self) -> int | None:
        """Number of edges; None: unknown until they are read."""
        return self.edges.num_edges

    @property
    def has_weights(self) -> bool:
        """Whether every chunk carries weights."""
        return self.edges.has_weights

    @property
    def has_times(self) -> bool:
        """Whether every chunk carries times."""
        return self.edges.has_times

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        for chunk in self.edges.chunks(max_edges):
            yield replace(chunk, src=chunk.dst, dst=chunk.src)
