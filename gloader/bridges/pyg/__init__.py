"""Loaders for training loops written for PyTorch Geometric. The modules of this package import PyG."""
