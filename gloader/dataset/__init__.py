"""Datasets: a directory's arrays and their meaning. `Dataset` is the public class."""

from gloader.dataset.dataset import Dataset

__all__ = ["Dataset"]
