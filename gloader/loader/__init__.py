"""Loaders: what a training loop iterates over."""

from gloader.loader.loader import Loader

__all__ = ["Loader"]
