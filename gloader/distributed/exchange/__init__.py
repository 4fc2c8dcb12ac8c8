"""Rows that machines send each other, superbatch by superbatch: one planned exchange, in bounded rounds."""
