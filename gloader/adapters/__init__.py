"""Public names of the bridges to other libraries, each imported only when it is asked for.

`gloader.adapters.dgl`, `gloader.adapters.graphbolt` and `gloader.adapters.pyg` name parts of `gloader.bridges`.
"""
