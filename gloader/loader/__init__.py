"""Loaders: the iterables of a training loop, and the trainable rows that they serve."""

from gloader.loader.loaders import HeteroLoader, LinkLoader, Loader
from gloader.loader.node_embedding import FrozenEmbedding, NodeEmbedding

__all__ = ["FrozenEmbedding", "HeteroLoader", "LinkLoader", "Loader", "NodeEmbedding"]
