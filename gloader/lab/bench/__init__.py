"""Benchmarks that `gloader bench` runs; each is a function that returns a JSON-like dict."""
