"""Propagation: columns that sum up neighbours' rows over hops, made out of core."""
