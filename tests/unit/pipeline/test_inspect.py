"""The verb "inspect": a superbatch's trace in, its plan out."""

from gloader.cache import Trace, make_planner
from gloader.observe.miss_estimate import MissSample
from gloader.pipeline.inspect import Inspect
from gloader.pipeline.superbatch import InspectJob, SampledSuperbatch
from gloader.types import BatchId

from .items import NODES, NUM_NODES, instruments, seconds_of, trace

FIRST = BatchId(epoch=0, index=0)


def _inspect(capacity: int) -> Inspect:
    planner = make_planner("belady", num_nodes=NUM_NODES, capacity=capacity)
    return Inspect(planner, MissSample(NUM_NODES, max_bytes=10**6), instruments())


def _job(number: int, lookahead: Trace) -> InspectJob:
    superbatch = SampledSuperbatch(number=number, first=FIRST, trace=trace())
    return InspectJob(superbatch=superbatch, lookahead=lookahead)


def test_the_plan_decides_every_access() -> None:
    planned = _inspect(capacity=2).process(_job(4, Trace()))
    assert (planned.number, planned.first) == (4, FIRST)
    assert planned.plan.num_hits + planned.plan.num_misses == sum(map(len, NODES))
    assert planned.plan.num_hits == 2  # nodes 2 and 4 are in both batches
    assert [rows.tolist() for rows in planned.misses] == [[2, 4, 9, 17], [11]]


def test_a_plan_begins_with_what_the_one_before_left() -> None:
    inspect = _inspect(capacity=NUM_NODES)
    inspect.process(_job(1, trace()))
    assert inspect.process(_job(2, Trace())).plan.num_misses == 0


def test_what_it_took_is_measured() -> None:
    found = instruments()
    planner = make_planner("belady", num_nodes=NUM_NODES, capacity=2)
    Inspect(planner, MissSample(NUM_NODES, max_bytes=10**6), found).process(_job(1, Trace()))
    assert seconds_of(found, "inspect") > 0
