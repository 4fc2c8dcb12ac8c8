"""Sweeps: one pass over a file that picks out every needed row."""
