"""Loaders: the iterables of a training loop."""

from gloader.loader.loaders import HeteroLoader, LinkLoader, Loader

__all__ = ["HeteroLoader", "LinkLoader", "Loader"]
