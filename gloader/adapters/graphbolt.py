"""gloader's features, samplers and negatives in pipelines of GraphBolt, the newer data loading of DGL."""

from gloader.bridges.graphbolt_steps import BlockSampler, NegativeSampler, StoreFeature, positives_of

__all__ = ["BlockSampler", "NegativeSampler", "StoreFeature", "positives_of"]
