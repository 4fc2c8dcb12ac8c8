"""Caches of feature rows, in host memory and on the GPU: plans and their executors. Import ``gloader.cache``.

`planner` turns the node ids of the coming batches (`trace`) into a `CachePlan`, and `slot_cache` executes it.
`static` plans the rows that stay on the GPU. `curve` predicts the misses for every cache size.
"""

# The folder is linked into ``gloader/``. A plain ``import cache`` would make a second copy of every class.
if __name__ != "gloader.cache":
    raise ImportError("import this package as gloader.cache")

from gloader.cache.actions import batch_step
from gloader.cache.baselines import OnlinePolicy, Policy, StaticPolicy, make_policy
from gloader.cache.belady import hotness_levels, plan_belady
from gloader.cache.cache_plan import CachePlan
from gloader.cache.curve import MissCurve, belady_curve, lru_curve, next_use_counts, static_curve
from gloader.cache.next_use import PlannerTable, table_bytes
from gloader.cache.planner import (
    BeladyPlanner,
    PlannerName,
    PolicyPlanner,
    SuperbatchPlanner,
    make_planner,
    node_bytes,
    slot_bytes,
)
from gloader.cache.slot_cache import SlotCache
from gloader.cache.static import (
    DeviceCachePlan,
    DeviceShare,
    DeviceShelf,
    RelationEdges,
    SlotMap,
    access_counts,
    automatic_bytes,
    divide_device_bytes,
    hottest_by_degree,
    hottest_first,
    inclusion_by_type,
    inclusion_probabilities,
    no_device_cache,
    parse_hotness,
    plan_device_cache,
    rows_that_fit,
    whole_device_cache,
)
from gloader.cache.trace import NO_ROWS, Trace, decode_ids, encode_ids
from gloader.config import OnlineName

__all__ = [
    "NO_ROWS",
    "BeladyPlanner",
    "CachePlan",
    "DeviceCachePlan",
    "DeviceShare",
    "DeviceShelf",
    "MissCurve",
    "PlannerTable",
    "OnlineName",
    "OnlinePolicy",
    "PlannerName",
    "Policy",
    "PolicyPlanner",
    "RelationEdges",
    "SlotCache",
    "SlotMap",
    "StaticPolicy",
    "SuperbatchPlanner",
    "Trace",
    "access_counts",
    "automatic_bytes",
    "batch_step",
    "belady_curve",
    "decode_ids",
    "divide_device_bytes",
    "encode_ids",
    "hotness_levels",
    "hottest_by_degree",
    "hottest_first",
    "inclusion_by_type",
    "inclusion_probabilities",
    "lru_curve",
    "make_planner",
    "make_policy",
    "next_use_counts",
    "no_device_cache",
    "node_bytes",
    "parse_hotness",
    "plan_belady",
    "plan_device_cache",
    "rows_that_fit",
    "slot_bytes",
    "static_curve",
    "table_bytes",
    "whole_device_cache",
]
