"""Sources of graphs, one a file; `gloader.convert.registry` names them."""
