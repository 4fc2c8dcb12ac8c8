"""Tools for studying runs: analysis, what-ifs, reports, policies' miss curves, benchmarks.

No other room below imports the lab.
"""
