"""Propagation of features and labels along the edges, out of core."""
