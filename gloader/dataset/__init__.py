"""Datasets: the arrays of a directory and what they mean."""

from gloader.dataset.dataset import Dataset

__all__ = ["Dataset"]
