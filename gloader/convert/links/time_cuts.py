"""The times at which shares of the edges end, found by counting edges by time, pass after pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.csc.edge_rules import EdgeEnds, check_chunk
from gloader.convert.links.edge_parts import TimeParts
from gloader.errors import SourceError

if TYPE_CHECKING:
    from gloader.convert.links.shares import EdgeShares
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import EdgeStream
    from gloader.types import IdArray

_BINS = 1 << 16  # 2 s a bin after a pass over edges of four years, 1 s after two


@dataclass(slots=True)
class _Cut:
    """The time of the edge of one rank, known to lie in ``low``..``high``."""

    rank: int  # among the edges in that range, in order of time, from 0
    low: int
    high: int
    counts: IdArray = field(default_factory=lambda: np.zeros(_BINS, np.int64))

    @property
    def width(self) -> int:
        """Seconds of a bin."""
        return (self.high - self.low) // _BINS + 1

    def count(self, times: IdArray | None) -> None:
        """Count times by the bins of the range."""
        if times is None:
            return
        inside = times[(times >= self.low) & (times <= self.high)]
        self.counts += np.bincount((inside - self.low) // self.width, minlength=_BINS)

    def narrow(self) -> None:
        """Make the bin that has the rank the range."""
        ends = np.cumsum(self.counts)
        number = int(np.searchsorted(ends, self.rank, side="right"))
        self.rank -= int(ends[number - 1]) if number else 0
        width = self.width
        self.low += number * width
        self.high = min(self.high, self.low + width - 1)
        self.counts[:] = 0


def time_parts(
    edges: EdgeStream,
    shares: EdgeShares,
    *,
    ends: EdgeEnds,
    max_edges: int,
    progress: PrepareProgress,
) -> TimeParts:
    """Return the split of edges by time: the earliest share is train, the next valid. Edges of one time stay together.

    Parameters
    ----------
    edges : with times; read three or four times, their times alone are looked at
    shares : of train, valid and test
    ends : the nodes that the edges join
    max_edges : read at a time
    progress : receives the step "ordering edges by time"

    Raises
    ------
    SourceError
        There are no edges, or they have no times.
    GraphError
        An id, a weight or a time is out of range.
    """
    if not edges.has_times:
        raise SourceError(
            f"{ends.where}: its edges have no times, by which --edge-split-by time orders them; say where they are "
            "with --edge-time"
        )
    low, high, done = 2**62, -(2**62), 0
    for chunk in edges.chunks(max_edges):
        check_chunk(chunk, ends=ends, first=done)
        done += chunk.src.shape[0]
        if chunk.time is not None:
            low, high = int(chunk.time.min(initial=low)), int(chunk.time.max(initial=high))
        progress.advance("ordering edges by time", done, edges.num_edges, "edges")
    if not done:
        raise SourceError(f"{ends.where}: there are no edges to split")
    train, valid, _ = shares
    # The last edge of a part: the share is rounded up, so that the first part has at least one.
    ranks = [min(done, max(1, round(share * done))) - 1 for share in (train, train + valid)]
    cuts = [_Cut(rank, low, high) for rank in ranks]
    while any(cut.low < cut.high for cut in cuts):
        for chunk in edges.chunks(max_edges):
            for cut in cuts:
                cut.count(chunk.time)
        for cut in cuts:
            cut.narrow()
    return TimeParts(train_end=cuts[0].low, valid_end=cuts[1].low)
