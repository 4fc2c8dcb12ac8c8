"""Loaders: what a training loop iterates over."""

from gloader.loader.hetero import HeteroLoader
from gloader.loader.link import LinkLoader
from gloader.loader.loader import Loader

__all__ = ["HeteroLoader", "LinkLoader", "Loader"]
