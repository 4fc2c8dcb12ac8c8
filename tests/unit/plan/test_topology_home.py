"""The place of the edges: the requested one, else memory, else sweeps; a refusal names a possible one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import BudgetError, ConfigError
from gloader.plan.topology_home import NO_FOLDER, SweepObstacle, TopologyChoice, choose_home

if TYPE_CHECKING:
    from gloader.config import TopologyHome

GB = 10**9
LADIES = SweepObstacle(reason="the sampler 'ladies' looks at all edges", remedy="the sampler 'neighbor'")


def _choice(
    asked: TopologyHome = "auto", obstacle: SweepObstacle | None = None, *, edges: int = 13 * GB
) -> TopologyChoice:
    return choose_home(asked, topology_bytes=edges, budget_bytes=16 * GB, obstacle=obstacle)


@pytest.mark.parametrize(
    ("asked", "edges", "obstacle", "home", "reason"),
    [
        ("auto", 8 * GB, None, "ram", "they fit in half of the memory budget"),
        ("auto", 8 * GB + 1, None, "sweep", "they do not fit in half of the memory budget"),
        (
            "auto",
            13 * GB,
            NO_FOLDER,
            "direct",
            "they do not fit in half of the memory budget, and there is no folder for what passes over the edges bring",
        ),
        ("auto", 8 * GB, LADIES, "ram", "they fit in half of the memory budget"),
        ("ram", 13 * GB, None, "ram", "as asked for"),
        ("sweep", 1 * GB, None, "sweep", "as asked for"),
        ("direct", 1 * GB, None, "direct", "as asked for"),
        ("direct", 13 * GB, LADIES, "direct", "as asked for"),
    ],
)
def test_edges_live_where_they_fit_and_where_they_were_asked_to(
    asked: TopologyHome, edges: int, obstacle: SweepObstacle | None, home: str, reason: str
) -> None:
    found = _choice(asked, obstacle, edges=edges)
    assert (found.home, found.reason) == (home, reason)


@pytest.mark.reliability("C14")
def test_edges_that_were_asked_into_too_small_a_memory_are_refused_with_what_works() -> None:
    with pytest.raises(BudgetError) as caught:
        _choice("ram", edges=17 * GB)
    assert str(caught.value) == (
        "topology='ram' needs 17 GB for the edges, and the memory budget is 16 GB; use topology='sweep', 'direct' or "
        "'auto', or raise the budget to more than 34 GB"
    )


@pytest.mark.parametrize(
    ("obstacle", "text"),
    [
        (
            LADIES,
            "as the sampler 'ladies' looks at all edges; use the sampler 'neighbor', or topology='direct', or 'ram'",
        ),
        (
            NO_FOLDER,
            "; use a spill_budget (0 means none) and a spill_dir that is not in memory, or topology='direct'",
        ),
    ],
)
def test_sweeps_that_cannot_be_are_refused_with_what_works(obstacle: SweepObstacle, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _choice("sweep", obstacle)
    assert str(caught.value).startswith("topology='sweep' is not possible, ")
    assert text in str(caught.value)


@given(
    st.sampled_from(["auto", "ram", "sweep", "direct"]),
    st.integers(8, 10**12),
    st.integers(0, 10**12),
    st.sampled_from([None, NO_FOLDER]),
)
def test_what_is_not_held_is_not_opened_as_if_it_were(
    asked: TopologyHome, edges: int, budget: int, obstacle: SweepObstacle | None
) -> None:
    try:
        found = choose_home(asked, topology_bytes=edges, budget_bytes=budget, obstacle=obstacle)
    except (BudgetError, ConfigError):
        assert asked in ("ram", "sweep")
        return
    # `open_topology` holds what its ``max_bytes`` hold.
    assert (found.max_bytes >= edges) == (found.home == "ram")
    assert found.home == "ram" or found.max_bytes <= budget // 2
    assert found.max_bytes <= budget
