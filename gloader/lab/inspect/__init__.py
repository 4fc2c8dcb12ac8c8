"""What a run will read: the misses of a cache of any size, and the pages of edges, from the batches that it samples."""

from gloader.lab.inspect.access_trace import AccessTrace, sample_trace
from gloader.lab.inspect.page_marks import PageMarks, mark_pages
from gloader.lab.inspect.policy_misses import Inspection, inspect_trace
from gloader.lab.inspect.topology_reads import GapBytes, ReadDemand, TopologyReads, inspect_topology

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
