"""Pieces that every room uses and that know none of them: ids, order, hashing, units, signals, locks, memory."""
