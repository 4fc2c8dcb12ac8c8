"""Anything that holds a graph, turned into a dataset directory within a memory budget."""
