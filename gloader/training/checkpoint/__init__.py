"""A training run's checkpoints: one file, or a part for each rank."""
