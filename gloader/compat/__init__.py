"""Scripts that were written for DGL or PyG: what of them runs here, and what takes the place of the rest."""
