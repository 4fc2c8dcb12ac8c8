"""Blocks, layers and loaders behind `gloader.compat.dgl`, which has DGL's names and does not need DGL installed."""
