"""Graphs that are already in memory, as the streams a conversion reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.ids import to_ids
from gloader.convert.source import EdgeChunk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayEdges:
    """The edge stream over two id arrays; ids may have any integer dtype and are widened chunk by chunk."""

    src: NDArray[np.generic]  # (E,)
    dst: NDArray[np.generic]  # (E,)
    where: str  # what holds them, for messages
    weight: NDArray[np.generic] | None = None  # (E,)

    @property
    def num_edges(self) -> int:
        """E."""
        return int(self.src.shape[0])

    @property
    def has_weights(self) -> bool:
        """Whether every chunk carries weights."""
        return self.weight is not None

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        for start in range(0, self.num_edges, max_edges):
            part = slice(start, start + max_edges)
            yield EdgeChunk(
                src=to_ids(self.src[part], first=start, where=f"{self.where} sources"),
                dst=to_ids(self.dst[part], first=start, where=f"{self.where} destinations"),
                weight=None if self.weight is None else np.ascontiguousarray(self.weight[part], np.float32),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFeatures:
    """The feature stream over one (N, F) array, which may be memory-mapped."""

    rows: NDArray[np.generic]  # (N, F)

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.rows.shape[0])

    @property
    def dim(self) -> int:
        """F."""
        return int(self.rows.shape[1])

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return self.rows.dtype

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``."""
        for start in range(0, self.num_rows, max_rows):
            yield np.ascontiguousarray(self.rows[start : start + max_rows])
