"""What a run will read: the misses of a cache of any size, and the pages of edges, from the batches that it samples."""

from gloader.inspector.access_trace import AccessTrace, sample_trace
from gloader.inspector.page_marks import PageMarks, mark_pages
from gloader.inspector.policy_misses import Inspection, inspect_trace
from gloader.inspector.topology_reads import GapBytes, ReadDemand, TopologyReads, inspect_topology

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
