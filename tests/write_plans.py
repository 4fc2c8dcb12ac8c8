"""Plans of an embedding's slots, and a plain model that executes them: dicts of versions instead of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gloader.cache import Trace
from gloader.cache.write_plan import FORWARD, TABLE, WritePlanner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.cache.write_plan import WritePlan, WriteStep

Rows = list[int]
Superbatch = list[Rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Superbatches that are planned and executed until the end, or until a restart."""

    superbatches: list[Superbatch]
    has_lookahead: list[bool]  # whether each plan knows the next superbatch
    num_loaded: int  # batches that are loaded before the restart
    num_stepped: int  # batches that are loaded before the last step


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The runs of one planner."""

    num_rows: int
    capacity: int
    depth: int
    per_step: int  # batches of a step
    runs: list[Run]


def random_case(rng: np.random.Generator) -> Case:
    """Return runs with hubs, with repeats between neighbouring batches, and with slots from few to plenty."""
    num_rows = int(rng.integers(2, 20))
    largest = int(rng.integers(1, min(num_rows, 8) + 1))
    hubs = rng.random(num_rows) ** int(rng.integers(1, 6))
    before: Rows = []
    per_step = int(rng.choice([1, 1, 2, 3]))
    runs = []
    for _ in range(rng.integers(1, 4)):
        superbatches = []
        for _ in range(rng.integers(1, 5)):
            superbatch = []
            for _ in range(per_step * int(rng.integers(0, 7 if per_step == 1 else 4))):
                kept = [row for row in before if rng.random() < 0.4]
                num_drawn = int(rng.integers(largest // 2, largest + 1)) if rng.random() < 0.9 else 0
                drawn = rng.choice(num_rows, num_drawn, replace=False, p=hubs / hubs.sum())
                before = list(dict.fromkeys([*kept, *drawn.tolist()]))[:largest]
                superbatch.append(sorted(before))
            superbatches.append(superbatch)
        num_batches = sum(map(len, superbatches))
        is_cut = rng.random() < 0.5
        num_loaded = int(rng.integers(0, num_batches + 1)) if is_cut else num_batches
        runs.append(
            Run(
                superbatches=superbatches,
                has_lookahead=[bool(rng.random() < 0.7) for _ in superbatches],
                num_loaded=num_loaded,
                num_stepped=int(rng.integers(0, num_loaded + 1)) if is_cut else num_loaded,
            )
        )
    sizes = [
        len({row for rows in superbatch[first : first + per_step] for row in rows})
        for run in runs
        for superbatch in run.superbatches
        for first in range(0, len(superbatch), per_step)
    ]
    capacity = max([1, *sizes]) + int(rng.choice([0, 0, 1, 2, 4, 12]))
    return Case(
        num_rows=num_rows, capacity=capacity, depth=int(rng.integers(1, 5)), per_step=per_step, runs=runs
    )


@dataclass(slots=True)
class Model:
    """The rows of an embedding wherever they are, as pairs of row and version: the number of its steps.

    Batches are loaded in order. ``is_eager`` decides when steps are done: as soon as their batch is loaded, or as late
    as the plans allow. The table is read twice for each staged row, at the first and at the last moment that the plan
    allows, and both must find the newest version.
    """

    num_rows: int
    capacity: int
    per_step: int
    is_eager: bool
    newest: list[int] = field(init=False)
    table: list[int] = field(init=False)
    slots: dict[int, tuple[int, int]] = field(default_factory=dict)
    forward: dict[int, dict[int, int]] = field(default_factory=dict)
    num_loads: int = 0

    def __post_init__(self) -> None:
        self.newest, self.table = [0] * self.num_rows, [0] * self.num_rows

    def execute(self, plans: Sequence[WritePlan], run: Run) -> None:
        """Execute a run until its end or its restart, and check every read."""
        batches = [(plan, index) for plan in plans for index in range(len(plan))]
        staged: dict[
            tuple[int, int], list[int]
        ] = {}  # what the stagings read, the earliest moment and the latest one
        placed: list[dict[int, int]] = []  # each loaded batch's rows and slots
        stepped = 0
        for number, (plan, index) in enumerate(batches[: run.num_loaded]):
            for other in plans:
                if len(other) and number in (other.staged_after, other.first):
                    rows = [row for i in range(len(other)) for row in other.table_rows(i).tolist()]
                    assert len(set(rows)) == len(rows), "a row is staged twice"
                    for row in rows:
                        staged.setdefault((other.first, row), []).append(self.table[row])
            step, rows = plan.batch(index), plan.accesses[index].tolist()
            assert step.number == number
            assert step.wait_for <= number // self.per_step, "a batch waits for its own step"
            while stepped < step.wait_for:
                self._step(placed, stepped)
                stepped += 1
            self._evict(step, rows)
            loads = dict(zip(step.load_pos.tolist(), step.load_from.tolist(), strict=True))
            assert [rows[p] for p, source in loads.items() if source == TABLE] == plan.table_rows(
                index
            ).tolist()
            held = {row: slot for slot, (row, _) in self.slots.items()}
            piece = self.forward.pop(number, {})
            for position, (row, slot) in enumerate(zip(rows, step.slots.tolist(), strict=True)):
                if position not in loads:
                    assert held[row] == slot, "a row is not where the plan has it"
                    continue
                assert row not in held, "a row is loaded twice"
                assert slot not in self.slots, "a row is loaded over another"
                assert 0 <= slot < self.capacity
                if loads[position] == FORWARD:
                    versions = [piece.pop(row)]
                elif loads[position] == TABLE:
                    versions = staged[plan.first, row]
                else:
                    versions = [self.table[row]]
                assert set(versions) == {self.newest[row]}, "an old version is loaded"
                self.slots[slot] = (row, versions[0])
                self.num_loads += 1
            assert not piece, "a forward piece has rows that nothing loads"
            placed.append(dict(zip(rows, step.slots.tolist(), strict=True)))
            if self.is_eager:
                while stepped < min(number + 1, run.num_stepped) // self.per_step:
                    self._step(placed, stepped)
                    stepped += 1
            if index == len(plan) - 1:
                after = {slot: row for slot, row in enumerate(plan.resident_after.tolist()) if row >= 0}
                assert after == {slot: row for slot, (row, _) in self.slots.items()}
        for number in range(stepped, run.num_stepped // self.per_step):
            self._step(placed, number)

    def restart(self) -> list[int]:
        """Bring all forward rows to the table. Return the row in each slot, -1 if empty."""
        for piece in self.forward.values():
            for row, version in piece.items():
                self.table[row] = version
        self.forward.clear()
        return [self.slots.get(slot, (-1, 0))[0] for slot in range(self.capacity)]

    def _step(self, placed: list[dict[int, int]], number: int) -> None:
        """Read all rows of the batches of a step, and write their next versions."""
        first = number * self.per_step
        of_step: dict[int, int] = {}
        for rows in placed[first : first + self.per_step]:
            for row, slot in rows.items():
                assert self.slots.get(slot) == (row, self.newest[row]), (
                    "a batch's row left its slot before the step"
                )
            of_step |= rows
        for row, slot in of_step.items():
            self.newest[row] += 1
            self.slots[slot] = (row, self.newest[row])

    def _evict(self, step: WriteStep, rows: Rows) -> None:
        assert not set(step.evict_row.tolist()) & set(rows), "a batch evicts its own row"
        for slot, row, to in zip(
            step.evict_slot.tolist(), step.evict_row.tolist(), step.evict_to.tolist(), strict=True
        ):
            held, version = self.slots.pop(slot)
            assert held == row
            if to < 0:
                self.table[row] = version
            else:
                assert to // self.per_step > step.number // self.per_step, (
                    "a row leaves within a step that needs it"
                )
                assert row not in self.forward.setdefault(to, {})
                self.forward[to][row] = version


def check(case: Case, *, expected_accesses: int | None = None) -> int:
    """Plan the case's runs and execute them with steps as early and as late as possible. Return the loads."""
    planner = WritePlanner(
        case.num_rows,
        case.capacity,
        depth=case.depth,
        batches_per_step=case.per_step,
        expected_accesses=expected_accesses,
    )
    models = [Model(case.num_rows, case.capacity, case.per_step, is_eager) for is_eager in (True, False)]
    for run in case.runs:
        plans = []
        for index, superbatch in enumerate(run.superbatches):
            lookahead = run.superbatches[index + 1 : index + 2] if run.has_lookahead[index] else []
            plans.append(planner.plan(trace(superbatch), trace(lookahead[0]) if lookahead else ()))
        contents = []
        for model in models:
            model.execute(plans, run)
            contents.append(model.restart())
        assert contents[0] == contents[1]
        planner.restart(np.array(contents[0], dtype=np.int64))
        assert planner.resident.tolist() == contents[0]
    return models[0].num_loads


def trace(superbatch: Superbatch) -> Trace:
    return Trace(np.array(rows, dtype=np.int64) for rows in superbatch)
