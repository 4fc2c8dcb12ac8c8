"""Which feature rows stay in memory: traces in, plans out, and the executors of a plan."""

if __name__ != "gloader.cache":
    raise ImportError("import this package as gloader.cache")

from gloader.cache.baselines import OnlinePolicy, Policy, StaticPolicy, make_policy
from gloader.cache.belady import hotness_levels, plan_belady
from gloader.cache.curve import MissCurve, belady_curve, lru_curve, next_use_counts, static_curve
from gloader.cache.next_use import NodeTable
from gloader.cache.plan import CachePlan
from gloader.cache.slot_cache import SlotCache
from gloader.cache.slots import SlotMap
from gloader.cache.static import (
    access_counts,
    expected_hit_rates,
    hottest_by_degree,
    hottest_first,
    inclusion_probabilities,
    out_degrees,
)

__all__ = [
    "CachePlan",
    "MissCurve",
    "NodeTable",
    "OnlinePolicy",
    "Policy",
    "SlotCache",
    "SlotMap",
    "StaticPolicy",
    "access_counts",
    "belady_curve",
    "expected_hit_rates",
    "hotness_levels",
    "hottest_by_degree",
    "hottest_first",
    "inclusion_probabilities",
    "lru_curve",
    "make_policy",
    "next_use_counts",
    "out_degrees",
    "plan_belady",
    "static_curve",
]
