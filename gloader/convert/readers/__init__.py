"""Readers of the files that sources consist of, in bounded memory."""
