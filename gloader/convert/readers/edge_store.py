"""What a library keeps of the edges of a graph or of a relation: weights, times and features, in its order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.convert.readers.arrays import ArrayFeatures
from gloader.convert.readers.edge_times import ArrayTimes, TimedEdges
from gloader.convert.readers.moved_rows import PickedRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.convert.source import EdgeStream, FeatureStream


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeArrays:
    """The arrays of the edges of one kind."""

    weight: NDArray[np.generic] | None  # (E,)
    times: NDArray[np.generic] | None  # (E,)
    features: NDArray[np.generic] | None  # (E, F_e)
    where: str  # what holds them, for messages

    @property
    def num_bytes(self) -> int:
        """Bytes of times and features."""
        return sum(array.nbytes for array in (self.times, self.features) if array is not None)

    def timed(self, edges: EdgeStream, *, order: NDArray[np.integer] | None = None) -> EdgeStream:
        """Return ``edges`` with their times, where there are any.

        Parameters
        ----------
        edges : as they are streamed
        order : the number of each in the arrays; None: they are in their order

        Raises
        ------
        SourceError, ShapeError
            As `TimedEdges.of`.
        """
        if self.times is None:
            return edges
        times = ArrayTimes(values=self.times, where=f"{self.where}: times", numbers=order)
        return TimedEdges.of(edges, times)

    def feature_rows(self, *, order: NDArray[np.integer] | None = None) -> FeatureStream | None:
        """Return the features as a stream; None: there are none. ``order`` is as of `timed`."""
        if self.features is None:
            return None
        return (
            ArrayFeatures(rows=self.features)
            if order is None
            else PickedRows(rows=self.features, numbers=order)
        )
