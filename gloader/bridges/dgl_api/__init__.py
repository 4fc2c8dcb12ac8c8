"""Blocks, layers and loaders behind `gloader.compat.dgl`, which has DGL's names and needs no DGL."""
