"""The least that an epoch takes: no order of the same work, and no mixture of ways to run it, takes less. Pure.

The linear programme is Plumber's (M. Kuchnik et al., "Plumber: Diagnosing and Removing Performance Bottlenecks in
Machine Learning Data Pipelines", MLSys 2022), with the disk, the links and single threads beside the cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.errors import MissingDependencyError, ReplayError
from gloader.replay.needs import needs_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gloader.replay.work import Machine, PipelineShape, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What an epoch takes at least, and why."""

    seconds: float
    resource: str  # that is never idle then: one of `RESOURCES`, or a thread


def find_floor(work: Work, machine: Machine, shape: PipelineShape, *, epochs: Collection[int] = ()) -> Floor:
    """Return what an epoch of ``work`` takes at least, in whatever order it is done. Pure; see `needs_of`."""
    return floor_of(needs_of(work, machine, shape, epochs=epochs))


def floor_of(needs: Mapping[str, float]) -> Floor:
    """Return the floor of one way to run: what keeps some resource, or some thread, busy. Pure.

    Parameters
    ----------
    needs : of `needs_of`
    """
    resource = max(needs, key=lambda name: needs[name])
    return Floor(seconds=needs[resource], resource=resource)


def floor_of_mixture(ways: Sequence[Mapping[str, float]]) -> Floor:
    """Return the floor of all mixtures of ways to run, such as one for each superbatch. Pure.

    It is the least T for which there are shares x of the ways, which add up to 1, so that no resource has to do more
    than T: the sum over ways c of x_c times what c needs of it.

    Parameters
    ----------
    ways : `needs_of` each

    Raises
    ------
    ReplayError
        There is no way.
    MissingDependencyError
        There are several, and scipy is not installed.
    """
    if not ways:
        raise ReplayError("there is no way to run whose floor could be told")
    if len(ways) == 1:
        return floor_of(ways[0])
    require_solver()
    from scipy.optimize import linprog

    names = list(dict.fromkeys(name for way in ways for name in way))
    needs = np.array([[way.get(name, 0.0) for way in ways] for name in names])
    found = linprog(
        np.append(np.zeros(len(ways)), 1.0),
        A_ub=np.column_stack([needs, -np.ones(len(names))]),
        b_ub=np.zeros(len(names)),
        A_eq=[[1.0] * len(ways) + [0.0]],
        b_eq=[1.0],
        method="highs",
    )
    if found.x is None:
        raise ReplayError(f"the floor of {len(ways)} settings was not found: {found.message}")
    # Its shadow price is the largest: it is what a little less of would help most.
    tight = int(np.argmin(found.ineqlin.marginals))
    return Floor(seconds=float(found.x[-1]), resource=names[tight])


def require_solver() -> None:
    """Raise MissingDependencyError where there is no scipy, whose HiGHS solves the linear programme."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError.of_extra("the floor of several settings needs scipy", "tune") from error
