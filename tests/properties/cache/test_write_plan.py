"""An embedding's plan against a model that executes it: every read finds the newest version of its row."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from functools import cache
from itertools import combinations
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from write_plans import check, random_case, trace

from gloader.cache import write_kernels, write_plan
from gloader.cache.write_plan import WritePlanner
from gloader.errors import BudgetError, PlanError

if TYPE_CHECKING:
    from gloader.cache import Trace
    from gloader.cache.write_plan import WritePlan


@pytest.mark.parametrize("part", range(2))
def test_every_read_finds_the_newest_version(part: int) -> None:
    """Hundreds of runs of up to four plans, with restarts; in every other one the planner's table is hashed."""
    _check_cases(part, 200)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_every_read_finds_the_newest_version_in_ten_times_ten_thousand_plans(part: int) -> None:
    assert _check_cases(2 + part, 2200) >= 10_000


def _check_cases(part: int, num_cases: int) -> int:
    """Check random cases. Return the number of plans."""
    num_plans = 0
    for seed in range(num_cases):
        case = random_case(np.random.default_rng([part, seed]))
        check(case, expected_accesses=None if seed % 2 else 1)
        num_plans += sum(len(run.superbatches) for run in case.runs)
    return num_plans


# What is broken, the kernels' text, and what takes its place.
BREAKS = [
    ("a late row is staged", "LATE if entry == forward - 1 else TABLE", "TABLE"),
    ("a forward row is staged", "FORWARD if entry == forward else ", ""),
    ("a row goes forward to a later batch", "targets[index] = chain", "targets[index] = chain + 1"),
    ("a batch waits for one step less", "to_int(records[slot, LAST]) + 1)", "to_int(records[slot, LAST]))"),
    (
        "a batch evicts its own rows",
        """                while far > last and lengths[far] == 0:
                    far -= 1
                if far <= last:
""",
        """                while far >= last and lengths[far] == 0:
                    far -= 1
                if far < last:
""",
    ),
    (
        "the next plan forgets the forward rows",
        "values[cell(keys, row)] = to_int(base) - horizon\n",
        "pass\n",
    ),
    ("the next plan forgets the late rows", "values[cell(keys, row)] = to_int(base) - horizon - 1", "pass"),
    (
        "a row keeps its slot after its eviction",
        "values[cell(keys, victim)] = to_int(base) - horizon",
        "pass",
    ),
]


@pytest.mark.parametrize(("text", "broken"), [case[1:] for case in BREAKS], ids=[case[0] for case in BREAKS])
def test_the_model_notices_broken_kernels(text: str, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _check_with_source(_source(), monkeypatch)
    assert _source().count(text) == 1
    with pytest.raises((AssertionError, KeyError, PlanError)):
        _check_with_source(_source().replace(text, broken), monkeypatch)


def test_the_model_notices_a_staging_that_begins_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = WritePlanner.plan

    def plan_earlier(planner: WritePlanner, accesses: Trace, lookahead: Trace = ()) -> WritePlan:
        made = plan(planner, accesses, lookahead)
        return replace(made, staged_after=max(made.staged_after - 1, 0))

    monkeypatch.setattr(WritePlanner, "plan", plan_earlier)
    with pytest.raises(AssertionError, match="an old version is loaded"):
        _check_cases(0, 200)


@pytest.mark.parametrize("part", range(2))
def test_no_plan_that_admits_every_miss_loads_less(part: int) -> None:
    """300 traces in each part, planned at once or in two superbatches that know all batches; depth 1 pins nothing."""
    rng = np.random.default_rng(part)
    for _ in range(300):
        num_rows, slack = int(rng.integers(3, 9)), int(rng.integers(0, 4))
        batches = [
            sorted(rng.choice(num_rows, rng.integers(0, min(num_rows, 4) + 1), replace=False).tolist())
            for _ in range(rng.integers(1, 8))
        ]
        capacity = max(1, *map(len, batches)) + slack if batches else 1
        split = int(rng.integers(0, len(batches) + 1))
        planner = WritePlanner(num_rows, capacity, depth=1)
        resident = rng.permutation(num_rows)[: int(rng.integers(0, capacity + 1))]
        planner.restart(resident)
        plans = [
            planner.plan(trace(batches[:split]), trace(batches[split:])),
            planner.plan(trace(batches[split:])),
        ]
        fewest = _fewest_loads(batches, capacity, resident.tolist())
        assert sum(plan.num_loads for plan in plans) == fewest, (batches, capacity, split, resident)


def _fewest_loads(batches: list[list[int]], capacity: int, resident: list[int]) -> int:
    """Try every content of the slots at every batch that has the batch's rows."""

    @cache
    def best(batch: int, held: frozenset[int]) -> int:
        if batch == len(batches):
            return 0
        rows = frozenset(batches[batch])
        others = sorted(held - rows)
        kept = combinations(others, min(capacity - len(rows), len(others)))
        return len(rows - held) + min(best(batch + 1, rows | frozenset(keep)) for keep in kept)

    return best(0, frozenset(resident))


def _source() -> str:
    return inspect.getsource(write_kernels)


def _check_with_source(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check with kernels from this source, which run as Python."""
    namespace: dict[str, object] = {"__name__": "broken_kernels"}
    plain = re.sub(r"@njit\(.*\)\n", "", source)
    exec(compile(plain, "broken_kernels", "exec"), namespace)  # noqa: S102  this file's own text
    namespace["prefetch"] = lambda *_: None
    monkeypatch.setattr(write_plan, "kernels", SimpleNamespace(**namespace))
    _check_cases(0, 100)


def test_the_model_notices_loads_that_wait_for_a_step_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a step has several batches."""
    plan = WritePlanner.plan

    def plan_hasty(planner: WritePlanner, accesses: Trace, lookahead: Trace = ()) -> WritePlan:
        made = plan(planner, accesses, lookahead)
        return replace(made, waits=np.maximum(made.waits - (planner._per_step > 1), 0))

    monkeypatch.setattr(WritePlanner, "plan", plan_hasty)
    with pytest.raises(AssertionError):
        _check_cases(0, 200)


def test_the_rows_of_the_batches_of_a_step_are_in_slots_together() -> None:
    planner = WritePlanner(20, 6, batches_per_step=2)
    plan = planner.plan(trace([[0, 1, 2], [2, 3, 4], [5, 6, 7], [7, 8]]))
    for step in range(2):
        slots = [
            dict(zip(plan.accesses[i].tolist(), plan.batch(i).slots.tolist(), strict=True))
            for i in (2 * step, 2 * step + 1)
        ]
        together = {**slots[0], **slots[1]}
        assert len(set(together.values())) == len(together)
    assert [plan.batch(i).wait_for for i in range(4)] == [0, 0, 1, 1]
    with pytest.raises(
        PlanError, match="the last plan ended with batch 4, within a step of 2 batches; plan whole steps"
    ):
        planner.plan(trace([[1]]))
        planner.plan(trace([[1]]))
    planner = WritePlanner(20, 5, batches_per_step=2)
    with pytest.raises(
        BudgetError,
        match="the 2 batches of step 1, one of each rank, have 6 distinct rows of the embedding, and its cache",
    ):
        planner.plan(trace([[0, 1], [2], [3, 4, 5], [6, 7, 8]]))
