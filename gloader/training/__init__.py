"""Training runs, their evaluation, and their output files."""
