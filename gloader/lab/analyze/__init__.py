"""Analysis and predictions for a recorded training run, and plans for runs that do not exist yet."""
