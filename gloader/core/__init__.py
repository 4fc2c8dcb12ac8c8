"""Basic parts that every other package of gloader may import: ids, order, hashing, units, signals, locks, memory."""
