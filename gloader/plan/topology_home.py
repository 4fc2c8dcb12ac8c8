"""Choice of the edges' home: memory, or the SSD with one of two ways of reading. Pure.

The topology is a graph's edges, with their offsets and weights. `choose_home` decides when a loader is opened:

- "ram": the edges are in memory.
- "sweep": the edges are on the SSD, and one pass over them serves many batches.
- "direct": the edges are on the SSD, and each batch reads its own pages.

The edges may take a share of the room. At first the room is the whole memory budget. If the plan for the rest of the
run does not fit afterwards, `less_room` makes the room smaller, and the home is chosen again.
"""

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

# Reasons for a home, for the report.
_FITS: Final = "they fit in half of the memory budget"
_TOO_LARGE: Final = "they do not fit in half of the memory budget"
_CROWDED: Final = "the rest of a run does not fit in the memory budget beside them"
_REQUESTED: Final = "as asked for"
# Memory that keeps pages of swept edges: this share of the edges' share, and at most so many bytes. It is small,
# because the pages that one batch reads seldom help the next one.
_KEPT_OF_SWEPT: Final = 1 / 8
_MOST_KEPT_OF_SWEPT: Final = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepObstacle:
    """The reason why edges cannot be swept, and the remedy. Both are parts of a message's sentence."""

    reason: str  # completes "topology='sweep' is not possible, as ..."
    remedy: str  # completes "use ..."


NO_FOLDER: Final = SweepObstacle(
    reason="there is no folder for what passes over the edges bring",
    remedy="a spill_budget (0 means none) and a spill_dir that is not in memory",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyChoice:
    """The edges' chosen home."""

    home: Literal["ram", "sweep", "direct"]
    topology_bytes: int  # bytes of offsets, edges and weights
    max_bytes: int  # memory in bytes that `gloader.dataset.topology.open_topology` may use
    reason: str  # the reason, for the report


def choose_home(
    requested: TopologyHome,
    *,
    topology_bytes: int,
    budget_bytes: int,
    obstacle: SweepObstacle | None,
    room_bytes: int | None = None,
) -> TopologyChoice:
    """Choose the edges' home: memory if half of the room holds them, else sweeps, else direct reads. Pure.

    Parameters
    ----------
    requested : the setting ``topology``
    topology_bytes : bytes of offsets, edges and weights
    budget_bytes : memory for everything
    obstacle : reason against sweeps. None means that edges can be swept.
    room_bytes : memory from which the edges' share is computed. None means the whole budget.

    Raises
    ------
    BudgetError
        "ram" was requested and does not fit. The message gives needed and allowed bytes.
    ConfigError
        "sweep" was requested and is not possible.
    """
    share = topology_share(budget_bytes if room_bytes is None else room_bytes)
    fits = topology_bytes <= share
    if requested == "ram" and topology_bytes > budget_bytes:
        raise BudgetError(
            f"topology='ram' needs {format_bytes(topology_bytes)} for the edges, and the memory budget is "
            f"{format_bytes(budget_bytes)}; use topology='sweep', 'direct' or 'auto', or raise the budget to more than "
            f"{format_bytes(2 * topology_bytes)}",
            short_bytes=topology_bytes - budget_bytes,
        )
    if requested == "ram" or (requested == "auto" and fits):
        reason = _FITS if fits else _REQUESTED
        return TopologyChoice(
            home="ram", topology_bytes=topology_bytes, max_bytes=topology_bytes, reason=reason
        )
    if requested == "sweep" and obstacle is not None:
        raise ConfigError(
            f"topology='sweep' is not possible, as {obstacle.reason}; use {obstacle.remedy}, or topology='direct', or "
            f"'ram' if the memory budget has room for {format_bytes(topology_bytes)} of edges"
        )
    # With ``topology_bytes`` or more, `open_topology` would read all edges into memory instead of pages on demand.
    most = min(share, topology_bytes - 1)
    reason = _TOO_LARGE if topology_bytes > topology_share(budget_bytes) else _CROWDED
    reason = reason if requested == "auto" else _REQUESTED
    if requested != "direct" and obstacle is None:
        kept = min(most, int(_KEPT_OF_SWEPT * share), _MOST_KEPT_OF_SWEPT)
        return TopologyChoice(home="sweep", topology_bytes=topology_bytes, max_bytes=kept, reason=reason)
    if requested == "auto" and obstacle is not None:
        reason = f"{reason}, and {obstacle.reason}"
    return TopologyChoice(home="direct", topology_bytes=topology_bytes, max_bytes=most, reason=reason)


def less_room(error: BudgetError, choice: TopologyChoice, demand: Demand, *, room_bytes: int) -> int:
    """Return a smaller room in bytes for the edges after a plan that did not fit. The last room is 0. Pure.

    The home is chosen before the rest of the run is measured. So the edges first get all the memory they need, and a
    sweep as many batches as fit. If this leaves too little for the rest, the edges get less. Without this, a larger
    budget could fail although a smaller budget works.

    Parameters
    ----------
    error : the failed plan's error, with the missing bytes
    choice, demand : the failed plan's choice and demand
    room_bytes : the failed plan's room

    Raises
    ------
    BudgetError
        ``error`` itself: the room cannot shrink, or the edges hold less than the missing bytes.
    """
    # Bytes that another home could free. ``others`` has the name and the bytes of each further part.
    held = demand.topology_bytes + sum(num_bytes for _, num_bytes in demand.others)
    if demand.sweeps is not None:
        # Direct reads, which replace the sweeps, have other buffers per call.
        held += demand.sweeps.memory_bytes + demand.sampler_call_bytes * demand.sampler_threads
    if not room_bytes or not 0 < error.short_bytes <= held:
        raise error
    # With a room as large as the edges, their share is too small for memory, so the next home is on the SSD.
    if choice.home == "ram" and room_bytes > choice.topology_bytes:
        return choice.topology_bytes
    # A smaller room makes a sweep of fewer batches. A sweep of the fewest batches gives way to direct reads.
    return room_bytes // 2 if demand.sweeps is not None and demand.sweeps.num_batches > SMALLEST else 0
