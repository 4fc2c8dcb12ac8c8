"""Tools for studying runs: analysis, what-ifs, reports, miss curves of cache policies, benchmarks.

The lab imports gloader's other packages, such as ``replay`` and ``pipeline``. None of them imports the lab.
"""
