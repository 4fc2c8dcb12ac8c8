"""The verb "inspect": a superbatch's trace in, its plan out."""

from types import SimpleNamespace

from gloader.cache import SuperbatchPlanner, Trace, make_planner
from gloader.pipeline.flow import Inspect
from gloader.pipeline.open.tiers import SsdTable
from gloader.pipeline.superbatch import InspectJob, MissLists, SampledSuperbatch
from gloader.types import BatchId

from .items import NODES, NUM_NODES, instruments, seconds_of, trace

FIRST = BatchId(epoch=0, index=0)


def _inspect(capacity: int) -> Inspect:
    planner = make_planner("belady", num_nodes=NUM_NODES, capacity=capacity)
    return Inspect([_table(planner)], instruments())


def _table(planner: SuperbatchPlanner) -> SsdTable:
    """Return a table of these parts: no other is looked at."""
    return SimpleNamespace(planner=planner)  # type: ignore[return-value]


def _job(number: int, lookahead: Trace) -> InspectJob:
    superbatch = SampledSuperbatch(number=number, first=FIRST, traces=(trace(),))
    return InspectJob(superbatch=superbatch, lookaheads=(lookahead,))


def test_the_plan_decides_every_access() -> None:
    planned = _inspect(capacity=2).process(_job(4, Trace()))
    assert (planned.number, planned.first) == (4, FIRST)
    (plan,) = planned.plans
    assert plan.num_hits + plan.num_misses == sum(map(len, NODES))
    assert plan.num_hits == 2  # nodes 2 and 4 are in both batches
    assert [rows.tolist() for rows in MissLists(plan)] == [[2, 4, 9, 17], [11]]


def test_a_plan_begins_with_what_the_one_before_left() -> None:
    inspect = _inspect(capacity=NUM_NODES)
    inspect.process(_job(1, trace()))
    assert inspect.process(_job(2, Trace())).plans[0].num_misses == 0


def test_what_it_took_is_measured() -> None:
    found = instruments()
    planner = make_planner("belady", num_nodes=NUM_NODES, capacity=2)
    Inspect([_table(planner)], found).process(_job(1, Trace()))
    assert seconds_of(found, "inspect") > 0
