"""Conversion of graphs in files and memory into dataset directories, within a memory budget."""
