"""`gloader.ray.train` trains on the workers of a Ray cluster."""

from gloader.bridges.ray import train

__all__ = ["train"]
