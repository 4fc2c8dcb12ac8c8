"""Replay: a batch out of what passes over the edges brought for it, for its trace or to be executed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.pipeline.sample import CodedRows, trace_entry
from gloader.samplers.sweeping import swept_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.observe.instruments import Work
    from gloader.pipeline.edge_sweeps import EdgeSweeps
    from gloader.pipeline.sample import TraceEntry
    from gloader.types import AnyBatch


class ReplayTrace:
    """Works out the nodes of a batch from what passes brought: sets of them, and blocks for edges alone. Thread-safe.

    Parameters
    ----------
    sweeps : brought it
    types : the number of each table, see `table_rows`
    """

    name: Final = "sample"

    def __init__(self, sweeps: EdgeSweeps, types: Sequence[int] = (0,)) -> None:
        self._sweeps = sweeps
        self._types = types
        self._has_edges = max(types, default=0) >= sweeps.num_types

    def process(self, position: int) -> TraceEntry:
        """Return the nodes of the batch at ``position`` of the stream."""
        sweeps = self._sweeps
        with sweeps.working(position) as work:
            work.note(ahead=True)
            if (known := sweeps.known.get(position)) is not None:
                work.note(known=True)
                return trace_entry(known, self._types)
            seeds, drawn = sweeps.stream.seeds_at(position), sweeps.read(position)
            if self._has_edges:
                return trace_entry(sweeps.sampler.replay(work.batch, seeds, drawn), self._types)
            nodes = swept_nodes(sweeps.sampler.rule, work.batch, seeds, drawn)
            return tuple(CodedRows.of(nodes[number]) for number in self._types)


class ReplayBatch:
    """Makes the batch at a position of what passes brought, and gives that back; a `BatchSource`. Thread-safe."""

    def __init__(self, sweeps: EdgeSweeps) -> None:
        self._sweeps = sweeps

    def working(self, position: int) -> Work:
        """Return the work on the batch at ``position``."""
        return self._sweeps.working(position)

    def make(self, position: int, work: Work) -> AnyBatch:
        """Return the batch at ``position`` of the stream."""
        sweeps = self._sweeps
        if (known := sweeps.known.pop(position, None)) is not None:
            work.note(known=True)
            return known
        seeds = sweeps.stream.seeds_at(position)
        batch = sweeps.sampler.replay(work.batch, seeds, sweeps.read(position))
        sweeps.swept.release(position)
        return batch
