"""Edges into compressed sparse columns, sorted outside of memory."""
