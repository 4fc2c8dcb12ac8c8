"""Loaders: what a training loop iterates over."""

from gloader.loader.loaders import HeteroLoader, LinkLoader, Loader

__all__ = ["HeteroLoader", "LinkLoader", "Loader"]
