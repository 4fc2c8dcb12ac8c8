"""gloader's features, samplers and negatives in DGL's GraphBolt pipelines."""

from gloader.bridges.graphbolt_steps import BlockSampler, NegativeSampler, StoreFeature, positives_of

__all__ = ["BlockSampler", "NegativeSampler", "StoreFeature", "positives_of"]
