"""A run's predicted reads, for `gloader inspect`: cache misses at any cache size, and the file pages with edges."""

from gloader.lab.inspect.embedding_reads import EmbeddingReads, inspect_embedding
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
    "EmbeddingReads",
    "GapBytes",
    "Inspection",
    "PageMarks",
    "ReadDemand",
    "TopologyReads",
    "inspect_embedding",
    "inspect_topology",
    "inspect_trace",
    "mark_pages",
    "sample_trace",
]
