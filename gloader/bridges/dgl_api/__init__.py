"""Blocks, layers and loaders behind `gloader.compat.dgl`, which offers DGL's names without DGL."""
