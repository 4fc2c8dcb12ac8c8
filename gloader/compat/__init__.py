"""Names of other libraries, over gloader: `gloader.compat.dgl`."""
