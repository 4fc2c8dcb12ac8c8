"""Embedding tables: trainable rows on the SSD, as immutable sorted runs that a commit record names."""
