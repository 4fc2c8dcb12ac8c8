"""`gloader migrate`: read a script for DGL or PyG and list the changes that make it run on gloader."""
