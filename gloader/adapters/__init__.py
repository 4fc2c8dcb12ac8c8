"""Public names of the bridges to other libraries, imported on first use.

`gloader.adapters.dgl`, `gloader.adapters.graphbolt` and `gloader.adapters.pyg` import their names from
`gloader.bridges`, which has the code.
"""
