"""The home of the edges of a run, memory or SSD, with the reason, and smaller shares for a second plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError
from gloader.plan.demand import topology_share
from gloader.ssd_store.cost.strategy import SMALLEST

if TYPE_CHECKING:
    from gloader.config import TopologyHome
    from gloader.plan.demand import Demand

_FITS: Final = "they fit in half of the memory budget"
_TOO_LARGE: Final = "they do not fit in half of the memory budget"
_CROWDED: Final = "the rest of a run does not fit in the memory budget beside them"
_ASKED: Final = "as asked for"
# Of the share, where edges are swept: pages that were read for one batch are of little use to the next.
_KEPT_OF_SWEPT: Final = 1 / 8
_MOST_KEPT_OF_SWEPT: Final = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepObstacle:
    """What keeps edges from being swept."""

    reason: str  # ends "edges cannot be swept, as ..."
    remedy: str  # ends "... ; use ..."


NO_FOLDER: Final = SweepObstacle(
    reason="there is no folder for what passes over the edges bring",
    remedy="a spill_budget (0 means none) and a spill_dir that is not in memory",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyChoice:
    """Where the edges live."""

    home: Literal["ram", "sweep", "direct"]
    topology_bytes: int  # of offsets, edges and weights
    max_bytes: int  # that `open_topology` may take
    reason: str  # stands in brackets behind "edges: on the SSD, read in sweeps"


def choose_home(
    asked: TopologyHome,
    *,
    topology_bytes: int,
    budget_bytes: int,
    obstacle: SweepObstacle | None,
    room_bytes: int | None = None,
) -> TopologyChoice:
    """Return where the edges live: in memory where half of the room holds them, else swept, else read directly. Pure.

    Parameters
    ----------
    asked : the setting
    topology_bytes : of offsets, edges and weights
    budget_bytes : of memory, for everything
    obstacle : what keeps edges from being swept; None: nothing
    room_bytes : of the budget, by which edges are dealt with; 0: as little as there can be; None: the budget

    Raises
    ------
    BudgetError
        "ram" was asked for and does not fit; says needed and allowed.
    ConfigError
        "sweep" was asked for and cannot be.
    """
    share = topology_share(budget_bytes if room_bytes is None else room_bytes)
    fits = topology_bytes <= share
    if asked == "ram" and topology_bytes > budget_bytes:
        raise BudgetError(
            f"topology='ram' needs {format_bytes(topology_bytes)} for the edges, and the memory budget is "
            f"{format_bytes(budget_bytes)}; use topology='sweep', 'direct' or 'auto', or raise the budget to more than "
            f"{format_bytes(2 * topology_bytes)}",
            short_bytes=topology_bytes - budget_bytes,
        )
    if asked == "ram" or (asked == "auto" and fits):
        reason = _FITS if fits else _ASKED
        return TopologyChoice(
            home="ram", topology_bytes=topology_bytes, max_bytes=topology_bytes, reason=reason
        )
    if asked == "sweep" and obstacle is not None:
        raise ConfigError(
            f"topology='sweep' is not possible, as {obstacle.reason}; use {obstacle.remedy}, or topology='direct', or "
            f"'ram' where the memory budget holds {format_bytes(topology_bytes)} of edges"
        )
    most = min(share, topology_bytes - 1)  # else it would be held
    reason = _TOO_LARGE if topology_bytes > topology_share(budget_bytes) else _CROWDED
    reason = reason if asked == "auto" else _ASKED
    if asked != "direct" and obstacle is None:
        kept = min(most, int(_KEPT_OF_SWEPT * share), _MOST_KEPT_OF_SWEPT)
        return TopologyChoice(home="sweep", topology_bytes=topology_bytes, max_bytes=kept, reason=reason)
    if asked == "auto" and obstacle is not None:
        reason = f"{reason}, and {obstacle.reason}"
    return TopologyChoice(home="direct", topology_bytes=topology_bytes, max_bytes=most, reason=reason)


def less_room(error: BudgetError, choice: TopologyChoice, demand: Demand, *, room_bytes: int) -> int:
    """Return the room for edges to plan a run with next, where it did not fit; at last 0. Pure.

    Edges are held where they fit, and sweeps serve as many batches as fit, before the rest of a run is known. Where
    that leaves too little, less of it is better than no run: else a larger budget would be too small where a smaller
    one is not.

    Parameters
    ----------
    error : says what lacks
    choice, demand : of the plan that did not fit
    room_bytes : it had

    Raises
    ------
    BudgetError
        ``error``: no room is less, or what is held for edges is less than what lacks.
    """
    held = demand.topology_bytes + sum(num_bytes for _, num_bytes in demand.others)
    if demand.sweeps is not None:
        # What reads page by page instead has other buffers for a call.
        held += demand.sweeps.memory_bytes + demand.sampler_call_bytes * demand.sampler_threads
    if not room_bytes or not 0 < error.short_bytes <= held:
        raise error
    if choice.home == "ram" and room_bytes > choice.topology_bytes:
        return choice.topology_bytes
    return room_bytes // 2 if demand.sweeps is not None and demand.sweeps.num_batches > SMALLEST else 0
