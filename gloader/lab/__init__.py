"""Tools that study a run: analysis and what-ifs, reports, miss curves of policies, benchmarks.

No other room below imports the lab.
"""
