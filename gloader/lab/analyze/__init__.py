"""Analysis and predictions for a recorded run."""
