"""Analysis of a recorded run, and predictions of the run under changes."""
