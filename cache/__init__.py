"""Which feature rows stay in memory: traces in, plans out, and the executors of a plan."""

if __name__ != "gloader.cache":
    raise ImportError("import this package as gloader.cache")

from gloader.cache.slots import SlotMap
from gloader.cache.static import hottest_by_degree, out_degrees

__all__ = ["SlotMap", "hottest_by_degree", "out_degrees"]
