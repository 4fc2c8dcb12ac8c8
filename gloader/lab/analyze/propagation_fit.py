"""The cost of a propagation from a graph's size: slabs, bytes and seconds within a memory budget. Pure.

`plan_sized` makes the plan of `gloader propagate --nodes labelled` for a `SizedGraph`, which has no files. The result
has the rows of the training nodes, because other labelled nodes have no place in a `SizedGraph`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gloader.errors import BudgetError
from gloader.lab.analyze.fit import PLAIN_SSD
from gloader.plan.too_small import least_planned
from gloader.training.propagation.chains import PropagateSpec, grow_chains
from gloader.training.propagation.propagation_plan import GraphSizes, Rates, plan_propagation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.lab.analyze.fit import SizedGraph
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.training.propagation.propagation_plan import PropagationPlan

SPEC: Final = PropagateSpec()  # the default hops, norm, directions and statistics
_LEAST_BYTES: Final = 1 << 20  # bytes: the search for the least budget begins here
THREADS: Final = 2  # the cores of the machine on which the engine's rates were measured


def plan_sized(graph: SizedGraph, budget_bytes: int, *, rates: IoRates = PLAIN_SSD) -> PropagationPlan:
    """Return the plan of a propagation of ``graph`` with the default settings. Pure.

    Parameters
    ----------
    graph : the graph's size
    budget_bytes : memory for the propagation
    rates : the SSD's rates; those of the processor are the engine's

    Raises
    ------
    BudgetError
        The narrowest slab does not fit; the message has the least budget.
    """
    dataset = graph.dataset()
    (node_type,) = dataset.node_tables
    trees = grow_chains(
        SPEC, widths={node_type: graph.feature_dim}, relations=dataset.relations, target=node_type
    )
    return plan_propagation(
        trees,
        GraphSizes.of_dataset(dataset),
        budget_bytes=budget_bytes,
        num_kept=graph.num_seeds,
        threads=THREADS,
        rates=Rates(read_bytes_per_s=rates.read_bytes_per_s, write_bytes_per_s=rates.write_bytes_per_s),
    )


def sized_plans(graph: SizedGraph, budgets: Iterable[int]) -> dict[int, PropagationPlan]:
    """Return the plan for each of ``budgets`` that is enough for one. Pure."""
    plans = {}
    for budget in budgets:
        try:
            plans[budget] = plan_sized(graph, budget)
        except BudgetError:
            continue
    return plans


def least_to_propagate(graph: SizedGraph) -> int:
    """Return the least budget that `plan_sized` accepts. Raises BudgetError if there is none."""
    return least_planned(partial(plan_sized, graph), low=_LEAST_BYTES)


def cost_json(budget: int, plan: PropagationPlan) -> dict[str, int | float]:
    """Return a plan's figures."""
    cost = plan.cost
    return {
        "memory_budget": budget,
        "slabs": plan.num_slabs,
        "bytes_read": cost.rows_read + cost.edges_read,
        "bytes_written": cost.rows_written,
        "disk_bytes": plan.disk_bytes,
        "seconds": cost.seconds,
    }
