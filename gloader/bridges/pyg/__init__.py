"""gloader under the loops of PyTorch Geometric. Importing a module of it imports PyG."""
