"""Datasets: a directory's arrays and their meaning."""

from gloader.dataset.dataset import Dataset

__all__ = ["Dataset"]
