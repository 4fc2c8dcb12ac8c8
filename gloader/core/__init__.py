"""Basic parts that every room may use: ids, order, hashing, units, signals, locks, memory."""
