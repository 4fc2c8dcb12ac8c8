"""A compressed topology in temporary files, read in pieces, as often as needed."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gloader.convert.csc.external_csc import build_csc
from gloader.convert.csc.sorted_ranges import cut_ranges
from gloader.convert.csc.temporary_array import TemporaryArray
from gloader.convert.source import ChangedEdges, EdgeChunk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.convert.csc.edge_rules import EdgeEnds
    from gloader.convert.options import EdgeRules
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import EdgeStream
    from gloader.types import IdArray

# Offsets read at a time: 2 MB.
_BLOCK_NODES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class CscPiece:
    """The in-neighbours of consecutive nodes."""

    first: int  # node
    indptr: IdArray  # (n + 1,) bounds of the nodes' in-neighbours in ``indices``
    indices: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnweightedEdges(ChangedEdges):
    """An edge stream without its weights and times."""

    @property
    def has_weights(self) -> bool:
        """Always false."""
        return False

    @property
    def has_times(self) -> bool:
        """Always false."""
        return False

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        for chunk in self.edges.chunks(max_edges):
            yield EdgeChunk(src=chunk.src, dst=chunk.dst, weight=None)


@dataclass(slots=True, kw_only=True)
class ScratchCsc:
    """The in-neighbours of every destination, in two files of ``folder``. Owns them until ``close()``; a `CscSink`."""

    folder: Path
    ends: EdgeEnds
    _offsets: TemporaryArray = field(init=False)
    _sources: TemporaryArray = field(init=False)

    def __post_init__(self) -> None:
        dtype = np.dtype(np.int32 if self.ends.num_sources < 2**31 else np.int64)
        self._offsets = TemporaryArray(path=self.folder / "scratch.indptr", dtype=np.dtype(np.int64))
        self._sources = TemporaryArray(path=self.folder / "scratch.indices", dtype=dtype)

    @property
    def num_nodes(self) -> int:
        """N, the destinations."""
        return self.ends.num_nodes

    def fill(
        self, edges: EdgeStream, *, rules: EdgeRules, budget_bytes: int, progress: PrepareProgress
    ) -> int:
        """Sort edges into the files; return how many are left by the rules. Raises as `build_csc`.

        Parameters
        ----------
        edges : a stream without weights, read once
        rules : what happens to the edges
        budget_bytes : memory of the sort
        progress : receives the steps of the sort
        """
        report = build_csc(
            edges,
            self,
            ends=self.ends,
            rules=rules,
            budget_bytes=budget_bytes,
            scratch=self.folder,
            progress=progress,
        )
        return report.num_edges

    def indptr(self) -> AbstractContextManager[TemporaryArray]:
        """Return the writer of the (N + 1,) int64 offsets."""
        return nullcontext(self._offsets)

    def indices(self, num_edges: int, dtype: str) -> AbstractContextManager[TemporaryArray]:  # noqa: ARG002 - as CscSink
        """Return the writer of the (E,) sources."""
        return nullcontext(self._sources)

    def edge_weight(self, num_edges: int) -> AbstractContextManager[TemporaryArray]:
        """Refuse: edges have no weights here."""
        raise NotImplementedError(f"the {num_edges} weights of a topology on its way are not kept")

    def edge_time(self, num_edges: int) -> AbstractContextManager[TemporaryArray]:
        """Refuse: edges have no times here."""
        raise NotImplementedError(f"the {num_edges} times of a topology on its way are not kept")

    def pieces(self, max_edges: int) -> Iterator[CscPiece]:
        """Yield all nodes in order with their in-neighbours; of a node that has more, the first ``max_edges``."""
        # One offset more than nodes: the last one bounds the last node, and is the first of the next block.
        for block in range(0, self.num_nodes, _BLOCK_NODES):
            bounds = self._offsets.read(block, min(self.num_nodes, block + _BLOCK_NODES) + 1)
            for start, stop in cut_ranges(np.diff(bounds), max_edges):
                low = int(bounds[start])
                high = min(int(bounds[stop]), low + max_edges)
                yield CscPiece(
                    first=block + start,
                    indptr=np.minimum(bounds[start : stop + 1], high) - low,
                    indices=self._sources.read(low, high),
                )

    def offsets(self, start: int, stop: int) -> IdArray:
        """Return the (stop - start + 1,) offsets that bound the in-neighbours of nodes ``start`` ... ``stop - 1``."""
        return self._offsets.read(start, stop + 1)

    def sources(self, start: int, stop: int) -> NDArray[Any]:
        """Return the in-neighbours at positions ``start`` ... ``stop - 1``."""
        return self._sources.read(start, stop)

    def close(self) -> None:
        """Remove the files. Idempotent."""
        self._offsets.remove()
        self._sources.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
