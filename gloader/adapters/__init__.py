"""Public names of the bridges to other libraries, imported on first use.

`gloader.adapters.dgl`, `gloader.adapters.graphbolt` and `gloader.adapters.pyg` name parts of `gloader.bridges`.
"""
