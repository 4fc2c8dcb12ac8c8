"""Sources of graphs, one per file; `gloader.convert.registry` names them."""
