"""Node orders: by degree or community, and rows and ids renumbered to match."""
