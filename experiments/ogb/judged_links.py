"""The edges that a link benchmark is judged by, and what they are compared with, as the source gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from benchmarks import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.convert.source import LinkSource, LinkStream

_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedLinks:
    """Edges, and behind them their negatives."""

    pairs: NDArray[np.int64]  # (n + m, 2)
    num_edges: int  # n
    negatives_per_edge: int  # 0: all edges are compared with all negatives

    @classmethod
    def of(cls, tables: Sequence[LinkSource], split: str) -> JudgedLinks:
        """Return what the part ``split`` of a source's ``tables`` is judged by: its own negatives, or a table of them.

        Raises
        ------
        BenchmarkError
            The source gives no negatives.
        """
        rows = {table.name: table.rows for table in tables}
        if split not in rows:
            raise BenchmarkError(f"the source has no links {split!r}")
        edges = _pairs(rows[split])
        if each := rows[split].negatives_per_row:
            destinations = np.concatenate(list(rows[split].negatives(_ROWS))).reshape(-1)
            negatives = np.stack([np.repeat(edges[:, 0], each), destinations], axis=1)
        elif f"{split}_neg" in rows:
            negatives = _pairs(rows[f"{split}_neg"])
        else:
            raise BenchmarkError(f"the source gives no negatives for links {split!r}")
        return cls(pairs=np.concatenate([edges, negatives]), num_edges=len(edges), negatives_per_edge=each)

    def parted(self, scores: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the scores of the edges and those of the negatives, (n,) and (n, k) or (m,)."""
        edges, negatives = np.split(scores, [self.num_edges])
        shape = (self.num_edges, self.negatives_per_edge) if self.negatives_per_edge else -1
        return edges, negatives.reshape(shape)


def _pairs(rows: LinkStream) -> NDArray[np.int64]:
    found = [np.stack([chunk.src, chunk.dst], axis=1) for chunk in rows.chunks(_ROWS)]
    return np.concatenate(found).astype(np.int64)
