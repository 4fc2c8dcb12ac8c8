"""Pieces that every room uses and that know none of them: order, hashing, units, signals, locks."""
