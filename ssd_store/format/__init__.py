"""A store's files: layout, manifest, checksums, and readers for one array."""
