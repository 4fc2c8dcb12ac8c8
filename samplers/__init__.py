"""Samplers: they take a graph and seeds, and return the topology of mini-batches. Import ``gloader.samplers``.

`make_sampler` and its relatives for several node types and for edge times choose a sampler by name. The graph classes
hold the edges. The functions ``*_bytes`` give a sampler's memory, for the memory budget. The names with "sweep" and
"swept" concern edges on the SSD, which a sampler takes from passes over the whole edge file.
"""

# The package is found under two names, because the folder is also linked into the package gloader.
if __name__ != "gloader.samplers":
    raise ImportError(
        "import this package as gloader.samplers, not samplers: two names would make two of every class"
    )

from gloader.samplers.graph import CscGraph, HeteroGraph, Topology, unreachable_relations
from gloader.samplers.hetero import MergedHeteroBlockSampler, RelationwiseSampler
from gloader.samplers.labor import LaborSampler
from gloader.samplers.layerwise import LayerSampler
from gloader.samplers.make import (
    TIMED_SWEEP_REFUSAL,
    call_bytes,
    hetero_call_bytes,
    hetero_map_bytes,
    hetero_sweep_refusal,
    hetero_temporal_call_bytes,
    make_hetero_sampler,
    make_hetero_temporal_sampler,
    make_sampler,
    make_temporal_sampler,
    node_map_bytes,
    preferred_layout,
    reads_weights,
    sweep_refusal,
    swept_words,
    temporal_call_bytes,
    temporal_map_bytes,
)
from gloader.samplers.merged import MergedBatch, MergedHeteroBatch
from gloader.samplers.neighbor import MergedBlockSampler, NeighborSampler
from gloader.samplers.temporal import HeteroTemporalSampler, TemporalSampler

__all__ = [
    "CscGraph",
    "HeteroGraph",
    "HeteroTemporalSampler",
    "LaborSampler",
    "LayerSampler",
    "MergedBatch",
    "MergedBlockSampler",
    "MergedHeteroBatch",
    "MergedHeteroBlockSampler",
    "NeighborSampler",
    "RelationwiseSampler",
    "TIMED_SWEEP_REFUSAL",
    "TemporalSampler",
    "Topology",
    "call_bytes",
    "hetero_call_bytes",
    "hetero_map_bytes",
    "hetero_sweep_refusal",
    "hetero_temporal_call_bytes",
    "make_hetero_sampler",
    "make_hetero_temporal_sampler",
    "make_sampler",
    "make_temporal_sampler",
    "preferred_layout",
    "reads_weights",
    "sweep_refusal",
    "swept_words",
    "node_map_bytes",
    "temporal_call_bytes",
    "temporal_map_bytes",
    "unreachable_relations",
]
