"""Bridges to gloader from other libraries' loops, scripts and clusters: PyG, DGL, GraphBolt and Ray."""
