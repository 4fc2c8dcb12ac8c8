"""Where a sampler finds its graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gloader.samplers.graph import CscGraph


class GraphSource(Protocol):
    """Something whose graph may move, as from a mapped file into memory, but never changes a value."""

    @property
    def graph(self) -> CscGraph:
        """The graph where it is now; called once per batch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """A graph that stays where it is."""

    graph: CscGraph


def source_of(graph: CscGraph | GraphSource) -> GraphSource:
    """Return ``graph`` as a source. Pure."""
    return InPlace(graph=graph) if isinstance(graph, CscGraph) else graph
