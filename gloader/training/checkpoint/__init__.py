"""Checkpoints of a training run: one file, or a part for each rank."""
