"""External sort of edges into compressed sparse columns."""
