"""Features of edges on their way into a dataset: from the order of the source to that of the lists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gloader.convert.csc.external_csc import ChunkWriter, CscSink, EdgeNumbers, build_csc
from gloader.convert.edge_rows_plan import plan_edge_rows
from gloader.convert.order.edge_moves import EdgeMoves
from gloader.convert.order.ordered_rows import ordered_rows
from gloader.convert.source import ChangedEdges
from gloader.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.csc.edge_rules import EdgeEnds
    from gloader.convert.csc.external_csc import CscReport
    from gloader.convert.edge_rows_plan import EdgeRowPlan
    from gloader.convert.options import EdgeRules, PrepareOptions
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import EdgeChunk, EdgeStream, FeatureStream


class EdgeSink(CscSink, Protocol):
    """Receives the edges of one relation with their features; a dataset's writers are some."""

    def edge_features(self, num_edges: int, dim: int, dtype: str) -> AbstractContextManager[ChunkWriter]:
        """Return the writer of the (E, F_e) features, in the order of the lists."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturedEdges:
    """The edges of a source with their features."""

    edges: EdgeStream
    features: FeatureStream | None  # in the order of the edges; None: they have none
    dtype: str  # that the features are stored as
    num_passes: int = (
        1  # over the features, where they are put in order on the disk: a part of them at a time
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedEdges(ChangedEdges):
    """Edges with numbers, by which their rows of features are found; a stream that leaves some out gave them theirs."""

    num_rows: int  # of features
    where: str  # what holds the edges, for messages

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time.

        Raises
        ------
        ShapeError
            There are more edges than rows, or, of a stream that leaves none out, fewer.
        """
        done, are_all = 0, True
        for chunk in self.edges.chunks(max_edges):
            count = chunk.src.shape[0]
            if chunk.number is None:
                chunk = replace(chunk, number=np.arange(done, done + count, dtype=np.int64))  # noqa: PLW2901 - as it goes on
            else:
                are_all = False
            done += count
            if chunk.number is not None and chunk.number.max(initial=-1) >= self.num_rows:
                raise ShapeError(
                    f"{self.where}: edge {self.num_rows} (counted from 0) has no edge features; there are "
                    f"{self.num_rows} rows"
                )
            yield chunk
        if are_all and done != self.num_rows:
            raise ShapeError(f"{self.where}: edge features have {self.num_rows} rows for {done} edges")


def write_edges(
    given: FeaturedEdges,
    sink: EdgeSink,
    *,
    ends: EdgeEnds,
    rules: EdgeRules,
    budget_bytes: int,
    scratch: Path,
    progress: PrepareProgress,
) -> CscReport:
    """Write edges by their destinations, as `build_csc` does, and behind them their features.

    The reverse of an edge has its features, and parallel edges that become one have those of the first in the source;
    those of a loop that was added are 0.

    Parameters
    ----------
    given : of the source; each stream is read once, features in as many passes as ``given`` says
    sink : receives all arrays
    ends, rules, budget_bytes, scratch, progress : as of `build_csc`

    Raises
    ------
    GraphError, BudgetError, StoreWriteError
        As `build_csc`.
    ShapeError
        There are not as many rows of features as edges.
    FeatureValueError
        A value cannot be stored.
    """
    sort = partial(
        build_csc,
        sink=sink,
        ends=ends,
        rules=rules,
        budget_bytes=budget_bytes,
        scratch=scratch,
        progress=progress,
    )
    features, dtype = given.features, given.dtype
    if features is None:
        return sort(given.edges)
    numbers = EdgeNumbers.of(scratch / "edge-numbers", features.num_rows)
    try:
        report = sort(
            NumberedEdges(edges=given.edges, num_rows=features.num_rows, where=ends.where), numbers=numbers
        )
        count = report.num_edges
        plan = plan_edge_rows(
            features, count, dtype=dtype, rules=rules, budget_bytes=budget_bytes, where=ends.where
        )
        done, total = 0, 4 * features.dim * count
        with sink.edge_features(count, features.dim, dtype) as column:
            for chunk in _rows(given, numbers, plan, count, scratch, progress):
                column.append(chunk)
                done += 4 * chunk.size
                progress.advance("writing edge features", done, total, "bytes")
    finally:
        numbers.array.remove()
    return report


def _rows(
    given: FeaturedEdges,
    numbers: EdgeNumbers,
    plan: EdgeRowPlan,
    num_edges: int,
    scratch: Path,
    progress: PrepareProgress,
) -> Iterator[NDArray[Any]]:
    """Yield the rows in the order of the lists."""
    features = given.features
    if features is None:
        return
    moves = EdgeMoves(
        numbers=numbers.array,
        num_rows=num_edges,
        num_edges=features.num_rows,
        folder=scratch,
        range_edges=plan.range_edges,
        deal_positions=plan.deal_positions,
        is_asked_again=given.num_passes > 1,
    )
    # Lists that come as they are stored, such as those of a CSC, leave nothing to move.
    if moves.are_in_place():
        yield from features.chunks(plan.chunk_rows)
        return
    try:
        moves.deal_out(progress)
        yield from ordered_rows(
            features,
            moves,
            dtype=given.dtype,
            chunk_rows=plan.chunk_rows,
            range_rows=plan.range_rows,
            num_passes=given.num_passes,
            scratch=scratch,
            progress=progress,
            step="ordering edge features",
        )
    finally:
        moves.close()


def recorded_dtype(options: PrepareOptions, *features: FeatureStream | None) -> dict[str, str]:
    """Return what a commit record says of the dtype of edge features: nothing where no edges have any. Pure."""
    return {} if all(rows is None for rows in features) else {"edge_dtype": options.stored_edge_dtype}
