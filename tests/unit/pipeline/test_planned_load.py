"""Edges that fit in half of a budget, and the rest of a loader, which may not fit beside them."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import BudgetError
from gloader.pipeline.open import load_plan
from gloader.pipeline.open.load_plan import LoadPlanner
from gloader.plan.topology_home import choose_home


class _Run:
    """A loader with edges of a size, and the rest of another; each load that is open is counted."""

    def __init__(self, edge_bytes: int, rest_bytes: int) -> None:
        self.edge_bytes, self.rest_bytes = edge_bytes, rest_bytes
        self.num_open = 0
        self.settings = None
        self.asked: list[tuple[Any, Any]] = []

    def measure(self, stack: ExitStack, **given: Any) -> Any:
        self.num_open += 1
        stack.callback(self._close)
        self.asked.append((given["others"], given["tiers"]))
        home = choose_home(
            "auto",
            topology_bytes=self.edge_bytes,
            budget_bytes=given["budget_bytes"],
            obstacle=None,
            room_bytes=given["room_bytes"],
        )
        held = self.edge_bytes if home.home == "ram" else self.edge_bytes // 100
        demand = SimpleNamespace(topology_bytes=held, others=(), sweeps=None)
        return SimpleNamespace(
            home=home,
            demand=demand,
            work=SimpleNamespace(probe=[1], probe_s=1.0),
            files=None,
            tiers=("held",),
        )

    def plan(self, demand: Any, *_: Any, budget_bytes: int) -> None:
        lacking = demand.topology_bytes + self.rest_bytes - budget_bytes
        if lacking > 0:
            raise BudgetError("too small", short_bytes=lacking)

    def _close(self) -> None:
        self.num_open -= 1


def _home(run: _Run, budget: int, others: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setattr(load_plan, "plan_tiers", run.plan)
    with ExitStack() as stack:
        load, _ = LoadPlanner(run).plan(stack, budget_bytes=budget, others=others)  # type: ignore[arg-type]
        assert run.num_open == 1
        return load.home.home, load.home.reason


@pytest.mark.reliability("S11")
@pytest.mark.parametrize(
    ("budget", "home", "reason"),
    [
        (150, "sweep", "they do not fit in half of the memory budget"),
        (220, "sweep", "the rest of a run does not fit in the memory budget beside them"),
        (260, "ram", "they fit in half of the memory budget"),
    ],
)
def test_edges_that_leave_no_room_for_the_rest_are_not_held(
    budget: int, home: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _Run(edge_bytes=100, rest_bytes=140)
    assert _home(run, budget, None, monkeypatch) == (home, reason)
    assert run.num_open == 0


def test_other_ranks_open_their_devices_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run, others = _Run(edge_bytes=100, rest_bytes=140), object()
    _home(run, 220, others, monkeypatch)
    assert run.asked == [(others, None), (others, ("held",))]


def test_what_no_room_for_edges_would_help_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _Run(edge_bytes=100, rest_bytes=1000)
    with pytest.raises(BudgetError):
        _home(run, 220, None, monkeypatch)
    assert (len(run.asked), run.num_open) == (1, 0)


@pytest.mark.reliability("S11")
@given(st.integers(0, 1000), st.integers(1, 1000))
def test_a_larger_budget_is_never_refused_where_a_smaller_one_is_not(edges: int, rest: int) -> None:
    accepted = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        for budget in range(rest, rest + 3 * edges + 10, max(edges // 8, 1)):
            try:
                _home(_Run(edges, rest), budget, None, monkeypatch)
                accepted.append(True)
            except BudgetError:
                accepted.append(False)
    assert accepted == sorted(accepted)
    assert accepted[-1]
