"""`gloader migrate`: read a script for DGL or PyG and say which changes make it run on gloader."""
