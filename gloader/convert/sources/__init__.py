"""Graph sources, mostly one per file. `gloader.convert.registry` lists them."""
