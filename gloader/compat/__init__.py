"""Replacements for other libraries, under their names: `gloader.compat.dgl`."""
