"""gloader for the training loops of PyTorch Geometric. All modules except `graph_data` import PyG."""
