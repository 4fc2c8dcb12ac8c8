"""Tools for studying runs: analysis, what-ifs, reports, policies' miss curves, benchmarks.

The lab imports the rooms below it. None of them imports the lab.
"""
