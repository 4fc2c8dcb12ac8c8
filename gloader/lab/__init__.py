"""Tools for the study of runs: analysis, what-ifs, reports, miss curves of policies, benchmarks.

No other room below imports the lab.
"""
