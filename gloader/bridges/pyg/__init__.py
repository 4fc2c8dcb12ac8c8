"""gloader for the training loops of PyTorch Geometric (PyG). All modules except `graph_data` import PyG."""
