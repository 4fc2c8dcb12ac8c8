"""The files of a store: layout, manifest, checksums, and readers of one array."""
