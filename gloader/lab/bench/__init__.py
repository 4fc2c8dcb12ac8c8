"""Benchmarks that `gloader bench` runs; each one is a function that returns its figures as a dict of JSON values."""
