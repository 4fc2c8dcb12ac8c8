"""Each check of the planner suite passes a toy policy, and fails one that is broken in that way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from unit.testing.broken import must_fail

from gloader.cache import CachePlan, Trace
from gloader.testing.planner_suite import SuperbatchPlannerSuite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.cache import SuperbatchPlanner
    from gloader.types import IdArray

ADMIT, BYPASS = -2, -1


class ToyPlanner:
    """First in, first out: every missed row enters the next slot in turn, as long as a batch leaves one free."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.turn = 0
        self._resident = np.full(capacity, -1, np.int64)

    @property
    def resident(self) -> IdArray:
        return self._resident

    def decide(self, nodes: Sequence[int]) -> list[int]:
        slots = {int(node): slot for slot, node in enumerate(self._resident) if node >= 0}
        actions, used = [], {slots[node] for node in nodes if node in slots}
        for node in nodes:
            if node in slots:
                actions.append(slots[node])
                continue
            free = [
                slot for slot in np.roll(np.arange(self.capacity), -self.turn).tolist() if slot not in used
            ]
            if not free:
                actions.append(BYPASS)
                continue
            self.turn = free[0] + 1
            used.add(free[0])
            self._resident[free[0]] = node
            actions.append(ADMIT - free[0])
        return actions

    def plan(self, accesses: Sequence[IdArray], lookahead: Sequence[IdArray] = ()) -> CachePlan:
        self._resident = self._resident.copy()
        decided = [np.array(self.decide(list(nodes)), np.int32) for nodes in accesses]
        return CachePlan(
            capacity=self.capacity,
            accesses=accesses,
            offsets=np.cumsum([0, *map(len, decided)]),
            actions=np.concatenate([np.zeros(0, np.int32), *decided]),
            hits=np.array([(a >= 0).sum() for a in decided], np.int64),
            misses=np.array([(a < 0).sum() for a in decided], np.int64),
            admissions=np.array([(a <= ADMIT).sum() for a in decided], np.int64),
            resident_after=self._resident,
        )

    def restart(self, resident: IdArray) -> None:
        self._resident = np.full(self.capacity, -1, np.int64)


class TestToy(SuperbatchPlannerSuite):
    def make_planner(self, *, num_nodes: int, capacity: int) -> SuperbatchPlanner:
        return ToyPlanner(capacity)


class CountsAHitTooMany(ToyPlanner):
    def plan(self, accesses: Sequence[IdArray], lookahead: Sequence[IdArray] = ()) -> CachePlan:
        plan = super().plan(accesses, lookahead)
        return replace(plan, hits=plan.hits + 1)


class PlansAnotherTrace(ToyPlanner):
    def plan(self, accesses: Sequence[IdArray], lookahead: Sequence[IdArray] = ()) -> CachePlan:
        return super().plan([nodes[1:] for nodes in accesses])


class SaysTheWrongRowsStay(ToyPlanner):
    def plan(self, accesses: Sequence[IdArray], lookahead: Sequence[IdArray] = ()) -> CachePlan:
        plan = super().plan(accesses, lookahead)
        self._resident = np.roll(plan.resident_after, 1)
        return plan


class HitsWhatItNeverAdmitted(ToyPlanner):
    def decide(self, nodes: Sequence[int]) -> list[int]:
        return [0 if self.capacity else BYPASS for _ in nodes]


class HasOneSlotMore(ToyPlanner):
    def __init__(self, capacity: int) -> None:
        super().__init__(capacity + 1)


class ForgetsItsOwnAdmissions(ToyPlanner):
    """Plans each superbatch for the slots as they were at first: nothing resident, then hits by name alone."""

    def plan(self, accesses: Sequence[IdArray], lookahead: Sequence[IdArray] = ()) -> CachePlan:
        plan = super().plan(accesses, lookahead)
        self._resident = np.sort(plan.resident_after)
        return plan


class WritesIntoTheLastPlan(ToyPlanner):
    last: CachePlan | None = None

    def plan(self, accesses: Sequence[IdArray], lookahead: Sequence[IdArray] = ()) -> CachePlan:
        if self.last is not None:
            self.last.actions[:] = BYPASS
        self.last = super().plan(accesses, lookahead)
        return self.last


class GoesOnAfterARestart(ToyPlanner):
    def restart(self, resident: IdArray) -> None:
        pass


class TrustsNumbersOfSlots(ToyPlanner):
    """Takes the content it is told, but for the wrong slots."""

    def restart(self, resident: IdArray) -> None:
        self._resident = np.roll(resident, 1)


class LivesOfChance(ToyPlanner):
    def decide(self, nodes: Sequence[int]) -> list[int]:
        self.turn = int(np.random.default_rng().integers(self.capacity))
        return super().decide(nodes)


class NeedsBatches(ToyPlanner):
    def plan(self, accesses: Sequence[IdArray], lookahead: Sequence[IdArray] = ()) -> CachePlan:
        if not len(accesses):
            raise IndexError("no batch")
        return super().plan(accesses, lookahead)


class NeedsRows(ToyPlanner):
    def decide(self, nodes: Sequence[int]) -> list[int]:
        self.first = nodes[0]
        return super().decide(nodes)


PROMISES = SuperbatchPlannerSuite.test_every_plan_keeps_its_promises
ROWS = SuperbatchPlannerSuite.test_every_batch_gets_its_rows
STAYS = SuperbatchPlannerSuite.test_a_plan_stays_as_it_is_when_the_next_one_is_made
GIVEN_UP = SuperbatchPlannerSuite.test_rows_are_right_after_plans_that_were_given_up
EQUAL = SuperbatchPlannerSuite.test_equal_histories_give_equal_plans
NOTHING = SuperbatchPlannerSuite.test_nothing_to_plan

MUTANTS = [
    (PROMISES, CountsAHitTooMany, [7]),
    (PROMISES, PlansAnotherTrace, [7]),
    (PROMISES, SaysTheWrongRowsStay, [7]),
    (PROMISES, HitsWhatItNeverAdmitted, [7]),
    (PROMISES, HasOneSlotMore, [7]),
    (PROMISES, HasOneSlotMore, [0]),
    (PROMISES, ForgetsItsOwnAdmissions, [7]),
    (ROWS, HitsWhatItNeverAdmitted, [7]),
    (ROWS, HasOneSlotMore, [1]),
    (ROWS, ForgetsItsOwnAdmissions, [7]),
    (STAYS, WritesIntoTheLastPlan, []),
    (GIVEN_UP, GoesOnAfterARestart, [7, 1]),
    (GIVEN_UP, TrustsNumbersOfSlots, [7, 3]),
    (EQUAL, LivesOfChance, []),
    (NOTHING, NeedsBatches, []),
    (NOTHING, NeedsRows, []),
]


@pytest.mark.parametrize(("check", "kind", "arguments"), MUTANTS)
def test_a_broken_planner_fails(check: Any, kind: type[ToyPlanner], arguments: list[Any]) -> None:
    class Broken(SuperbatchPlannerSuite):
        def make_planner(self, *, num_nodes: int, capacity: int) -> SuperbatchPlanner:
            return kind(capacity)

    must_fail(check, Broken(), *arguments)


def test_every_check_has_a_mutant() -> None:
    checks = {name for name in vars(SuperbatchPlannerSuite) if name.startswith("test_")}
    assert {check.__name__ for check, _, _ in MUTANTS} == checks


def test_the_toy_hits() -> None:
    planner = ToyPlanner(3)
    assert planner.plan(Trace([np.array([1, 2]), np.array([2, 3])])).num_hits == 1
