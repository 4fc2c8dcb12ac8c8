"""Predicted reads of a run: misses of a cache of any size, and pages of edges."""

from gloader.lab.inspect.policy_misses import AccessTrace, Inspection, inspect_trace, sample_trace
from gloader.lab.inspect.topology_reads import (
    GapBytes,
    PageMarks,
    ReadDemand,
    TopologyReads,
    inspect_topology,
    mark_pages,
)

__all__ = [
    "AccessTrace",
    "GapBytes",
    "Inspection",
    "PageMarks",
    "ReadDemand",
    "TopologyReads",
    "inspect_topology",
    "inspect_trace",
    "mark_pages",
    "sample_trace",
]
