"""gloader under loops that people already have: one module per library, each imported only when it is asked for.

`gloader.adapters.dgl`, `gloader.adapters.graphbolt` and `gloader.adapters.pyg`; none imports another.
"""
