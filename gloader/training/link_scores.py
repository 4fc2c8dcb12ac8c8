"""Scores of pairs of nodes from embeddings that may lie on the SSD: read in ascending order, within a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import torch

from gloader.errors import DivergedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gloader.types import IdArray

    Scores = NDArray[np.float32]

_FLOAT_BYTES: Final = 4
_PAIR_BYTES: Final = (
    48  # both ids, the order of the destinations, their numbers, the score, and what is on its way
)
_SHARES: Final = 4  # rows of sources; rows of destinations; what is known of pairs; what the decoder makes
_DECODER_ROWS: Final = (
    6  # rows of a pair that the decoder holds at once: both ends, their product, hidden layers
)


class NodeRows(Protocol):
    """Embeddings of all nodes of a type."""

    @property
    def width(self) -> int:
        """Of a row."""
        ...

    def take(self, rows: IdArray, out: NDArray[np.float32], /) -> None:
        """Read ``rows`` (n,) into ``out`` (n, width)."""
        ...


class PairScorer:
    """Scores pairs by the embeddings of both nodes.

    Each call reads every row that it needs once for its sources and once for its destinations, in ascending order:
    on an SSD a pass over a part of the file. Destinations come block by block, as they may be too many to hold.

    Parameters
    ----------
    decoder : from the rows of both ends, (P, width) each, to (P,) scores, or (P, C)
    sources, destinations : the embeddings; of one type the same ones
    budget_bytes : for the rows that are held, and for what is known of pairs
    place : where the decoder is
    """

    def __init__(
        self,
        decoder: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        sources: NodeRows,
        destinations: NodeRows,
        *,
        budget_bytes: int,
        place: torch.device,
    ) -> None:
        self._decoder = decoder
        self._sources, self._destinations = sources, destinations
        self._share_bytes = budget_bytes // _SHARES
        self._place = place
        row_bytes = _FLOAT_BYTES * sources.width
        self._rows_held = max(1, self._share_bytes // row_bytes)
        self._pairs_decoded = max(1, self._share_bytes // (_DECODER_ROWS * row_bytes))

    def rows_per_call(self, num_destinations: int = 1) -> int:
        """Return how many sources, each with so many destinations, one call may be given."""
        return max(1, min(self._rows_held, self._share_bytes // (_PAIR_BYTES * num_destinations)))

    @torch.no_grad()
    def score(self, sources: IdArray, destinations: IdArray) -> Scores:
        """Return the scores of pairs, of the shape of ``destinations``, and (C,) behind it where the decoder makes C.

        Parameters
        ----------
        sources : (n,) int64, up to `rows_per_call`
        destinations : (n,), or (n, k): k for each source

        Raises
        ------
        DivergedError
            Scores are NaN, which no metric ranks; says how many.
        """
        ids, source_at = np.unique(sources, return_inverse=True)
        held = self._take(self._sources, ids)
        wanted = destinations.ravel()
        per_source = len(wanted) // max(len(sources), 1)
        order = np.argsort(wanted, kind="stable")
        in_order = wanted[order]
        is_new = np.r_[True, in_order[1:] != in_order[:-1]][: len(in_order)]
        number = np.cumsum(is_new) - 1  # of each pair's destination among the different ones
        distinct = in_order[is_new]
        found: Scores | None = None
        for start in range(0, len(distinct), self._rows_held):
            block = self._take(self._destinations, distinct[start : start + self._rows_held])
            first, last = np.searchsorted(number, [start, start + self._rows_held])
            for at in range(first, last, self._pairs_decoded):
                pairs = order[at : min(at + self._pairs_decoded, last)]
                scores = self._decode(
                    held, source_at[pairs // per_source], block, number[at : at + len(pairs)] - start
                )
                if found is None:
                    found = np.empty((len(wanted), *scores.shape[1:]), np.float32)
                found[pairs] = scores
        if found is None:
            return np.empty(destinations.shape, np.float32)
        if num_bad := int(np.count_nonzero(np.isnan(found))):
            raise DivergedError(
                f"{num_bad:,} of {found.size:,} scores of pairs are NaN: features that they are computed from are NaN, "
                "or the network diverged; clean them (gloader prepare refuses them without --allow-nan), or train with "
                "a lower --lr"
            )
        return found.reshape(*destinations.shape, *found.shape[1:])

    def _take(self, rows: NodeRows, ids: IdArray) -> torch.Tensor:
        out = np.empty((len(ids), rows.width), np.float32)
        rows.take(ids, out)
        return torch.from_numpy(out).to(self._place)

    def _decode(
        self, sources: torch.Tensor, source_at: IdArray, destinations: torch.Tensor, destination_at: IdArray
    ) -> Scores:
        ends = (
            rows[torch.from_numpy(at).to(self._place)]
            for rows, at in ((sources, source_at), (destinations, destination_at))
        )
        scores: Scores = self._decoder(*ends).float().cpu().numpy()
        return scores
