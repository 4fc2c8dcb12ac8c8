"""Bridges from loops, scripts and clusters of other libraries to gloader: PyG, DGL, GraphBolt and Ray."""
