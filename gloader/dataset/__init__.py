"""Datasets: a directory's arrays and what they mean."""

from gloader.dataset.dataset import Dataset

__all__ = ["Dataset"]
