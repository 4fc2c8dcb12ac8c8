"""A node type's input rows of an inference: its stored features, and the rows of its embedding behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from gloader.types import ReadStats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.loader.node_embedding import FrozenEmbedding
    from gloader.types import FeatureSource, IdArray

# Bytes of the rows that are joined at once: enough for sequential reads, and little beside an inference's buffers.
_JOINED_BYTES: Final = 4 << 20


class EmbeddedFeatures:
    """A `FeatureSource` of features with trained rows behind them. Owns neither.

    Parameters
    ----------
    embedding : (N, D) trained rows
    features : (N, F) features, or None for a type without features
    """

    def __init__(self, embedding: FrozenEmbedding, features: FeatureSource | None) -> None:
        self._embedding = embedding
        self._features = features
        self._feature_dim = 0 if features is None else features.dim

    @property
    def num_rows(self) -> int:
        """N."""
        return self._embedding.num_rows

    @property
    def dim(self) -> int:
        """F + D."""
        return self._feature_dim + self._embedding.dim

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """float32, whatever the stored features are."""
        return np.dtype(np.float32)

    def read_into(
        self, rows: IdArray, out: NDArray[np.generic], /, *, at: IdArray | None = None
    ) -> ReadStats:
        """Read ``rows`` (M,) into the float32 ``out``, as `FeatureSource.read_into` does.

        The statistics count the features alone: an embedding's rows may come from memory.
        """
        stats = ReadStats(rows=len(rows), requests=0, bytes_read=0)
        step = max(1, _JOINED_BYTES // (4 * self.dim))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            places = slice(start, start + len(part)) if at is None else at[start : start + step]
            if self._features is not None:
                found = np.empty((len(part), self._feature_dim), np.float32)
                read = self._features.read_into(part, found)
                stats += ReadStats(rows=0, requests=read.requests, bytes_read=read.bytes_read)
                out[places, : self._feature_dim] = found
            out[places, self._feature_dim :] = self._embedding.rows(torch.from_numpy(part)).numpy()
        return stats
