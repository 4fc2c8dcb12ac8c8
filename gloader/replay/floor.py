"""An epoch's least time, in any order of its work and with any mixture of ways to run it. Pure.

`gloader analyze` and `gloader autotune` compare a run with this bound. `needs_of` counts the seconds that an epoch
needs on each resource and each thread. No order of the work is faster than the largest need, so this need is the floor.
A way to run is a choice of settings. The floor for mixtures of several ways, such as another way in each superbatch,
needs a linear programme. It is Plumber's (M. Kuchnik et al., "Plumber: Diagnosing and Removing Performance Bottlenecks
in Machine Learning Data Pipelines", MLSys 2022), with the disk, the links and single threads added to the cores.

Some work of an epoch may be done before the epoch begins. The reach of a piece of work is the number of stream
positions (batches in the loop's order) ahead of the loop at which it can be done. Work within reach does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gloader.errors import MissingDependencyError, ReplayError
from gloader.replay.work import NOTHING, RESOURCES, Demands

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.replay.work import Machine, PipelineShape, RunWork


LOOP: Final = "loop"  # the first rank's loop, whose epochs are measured
_SAMPLERS: Final = "sample threads"  # all sampler threads together


def needs_of(
    work: RunWork, machine: Machine, shape: PipelineShape, *, epochs: Collection[int] = ()
) -> dict[str, float]:
    """Return an epoch's least seconds of work for each resource and each thread. Pure.

    Work that may be done before an epoch does not count: work during earlier epochs, and during the loop's pauses.
    So no replay of ``work`` takes less than any of these seconds, on average over ``epochs``.

    Parameters
    ----------
    work, machine, shape : the arguments of `gloader.replay.replay.replay`
    epochs : the counted epochs, at the end of the run; defaults to all

    Raises
    ------
    ReplayError
        There is no batch, or no batch in ``epochs``.
    """
    counted = set(epochs or (batch.epoch for batch in work.batches))
    start = next((number for number, batch in enumerate(work.batches) if batch.epoch in counted), None)
    if start is None:
        raise ReplayError("there is no batch, so there is no floor")
    # Pauses before counted epochs. The pause before the first counted epoch lies before the time that counts, unless
    # the run begins with it.
    pauses = [one for one in _pauses_between(work, shape) if one[0] > start or not one[0]]
    found = {}
    for name, placed in _placed(work, machine, shape).items():
        total = sum(float(one.seconds[start:].sum()) for one in placed)
        # Seconds that may be done before the counted epochs, or during a pause but not longer than the pause.
        before = sum(one.near(start) for one in placed) if start else 0.0
        for position, pause in pauses:
            before += min(pause, sum(one.near(position) for one in placed))
        found[name] = max(total - before, 0.0) / len(counted)
    return found


def without_reads(work: RunWork) -> RunWork:
    """Return ``work`` without reads and planning. Each batch is sampled once. Pure.

    Its floor holds for every cache, superbatch and read strategy, because none of these needs less work.
    """
    # With superbatches, each batch was sampled for its trace, and perhaps again. The longer of both remains.
    return replace(
        work,
        batches=tuple(
            replace(
                batch,
                trace=NOTHING,
                sample=max(batch.trace, batch.sample, key=lambda demands: demands.alone_s)
                if work.superbatches
                else batch.sample,
                read=NOTHING,
            )
            for batch in work.batches
        ),
        superbatches=tuple(replace(one, inspect=NOTHING, stage=NOTHING) for one in work.superbatches),
        passes=(),
    )


@dataclass(slots=True)
class _Placed:
    """The seconds on one resource or thread, for work with the same reach.

    A piece of work counts at the stream position of the first batch that waits for it.
    """

    seconds: NDArray[np.float64]  # (batches,) seconds by stream position
    reach: int  # in positions, see the module's text

    def near(self, position: int) -> float:
        """Return the seconds of all work that can be done while the loop is at ``position``."""
        return float(self.seconds[position : position + self.reach].sum())


def _placed(work: RunWork, machine: Machine, shape: PipelineShape) -> dict[str, list[_Placed]]:
    """Return the work's seconds by the name of a resource or thread, grouped by reach."""
    found: dict[str, dict[int, _Placed]] = {LOOP: {}}

    def add(name: str, job: _Job, seconds: float) -> None:
        """Add a job's seconds on the resource or thread ``name``."""
        by_reach = found.setdefault(name, {})
        if job.reach not in by_reach:
            by_reach[job.reach] = _Placed(np.zeros(len(work.batches)), job.reach)
        by_reach[job.reach].seconds[job.position] += seconds

    for job in _jobs(work, shape):
        needs = _on(machine, job.demands)
        for name, seconds in zip(RESOURCES, needs, strict=True):
            if seconds:
                add(name, job, seconds / (machine.cores if name == "cpu" else 1.0))
        # The thread's own time: it uses all resources at the same time, and then lags.
        of_each = (needs[0] / min(job.demands.cores, machine.cores), *needs[1:])
        alone = max(of_each) + job.demands.lag_s
        add(job.thread, job, alone / (shape.sampler_threads if job.thread == _SAMPLERS else 1))
    return {name: list(by_reach.values()) for name, by_reach in found.items()}


def _on(machine: Machine, demands: Demands) -> tuple[float, ...]:
    """Return the seconds that demands take on each resource, in the order of `RESOURCES`; "cpu" in core seconds."""
    needs = (demands.cpu_s, *demands[2:7])  # the fields 2 to 6 are "disk_s" to "network_s"
    return tuple(
        seconds / machine.speed_of(name) if seconds else 0.0
        for name, seconds in zip(RESOURCES, needs, strict=True)
    )


class _Job(NamedTuple):
    """A piece of work, with the thread that does it."""

    thread: str  # the name for the user, such as "gather thread"
    position: int  # stream position of the first batch that waits for the work
    reach: int  # largest number of positions ahead of the loop at which the work can be done
    demands: Demands  # the work's


def _jobs(work: RunWork, shape: PipelineShape) -> Iterator[_Job]:
    """Yield every piece of work."""
    ahead, has_disk = _Reaches.of(work, shape), shape.is_planned
    between = dict(_pauses_between(work, shape))
    for position, batch in enumerate(work.batches):
        rank = position % shape.num_ranks
        of_rank = f" of rank {rank}" if rank else ""
        loop = f"{LOOP}{of_rank}"
        reach = ahead.loops if rank else 0  # the measured first rank does none of its work ahead
        sender, sent_reach = (f"send thread{of_rank}", ahead.sent) if shape.is_sending else (loop, reach)
        yield _Job(_SAMPLERS, position, ahead.sampled, batch.sample)
        if has_disk:
            yield _Job(_SAMPLERS, position, ahead.traced, batch.trace)
            yield _Job("read thread", position, ahead.read, batch.read)
        yield _Job("gather thread", position, ahead.gathered, batch.gather)
        yield _Job(sender, position, sent_reach, batch.transfer)
        yield _Job(loop, position, reach, batch.compute)
        # A pause inside an epoch is work of the loop. Pauses between epochs belong to no epoch.
        if batch.pause_s and not rank and position not in between:
            yield _Job(loop, position, 0, Demands(lag_s=batch.pause_s))
    yield from _jobs_of_several(work, ahead, has_disk=has_disk)


def _jobs_of_several(work: RunWork, ahead: _Reaches, *, has_disk: bool) -> Iterator[_Job]:
    """Yield the work that serves several batches: of superbatches, and of passes over the edges."""
    first = 0  # position of the superbatch's first batch
    for superbatch in work.superbatches if has_disk else ():
        yield _Job("inspect thread", first, ahead.staged, superbatch.inspect)
        yield _Job("stage thread", first, ahead.staged, superbatch.stage)
        first += superbatch.num_batches
    for one in work.passes:
        # The last batch that the pass completes cannot be sampled before it.
        last = min(one.completed, len(work.batches)) - 1
        yield _Job("sweep thread", last, ahead.swept, one.sweep)
        if one.completed >= len(work.batches):  # no batch waits for later passes
            return


class _Reaches(NamedTuple):
    """The reach of each kind of work, in positions; see the module's text."""

    loops: int  # other ranks' loops
    sent: int  # transfers to the device
    gathered: int
    read: int
    sampled: int  # sampling of batches
    staged: int  # also the reach for inspections, the planning of superbatches
    traced: int  # sampling ahead
    swept: int  # passes over the edges

    @classmethod
    def of(cls, work: RunWork, shape: PipelineShape) -> _Reaches:
        """Return upper bounds for a pipeline's reaches; see `gloader.replay.replay`."""
        superbatch = max((one.num_batches for one in work.superbatches), default=0)
        sent = shape.sent_ahead + 2 if shape.is_sending else 0
        gathered = shape.num_ranks * (shape.num_buffers + 1 + sent)
        # Reads without a feature buffer, for features in memory, can go on while the gather waits for a buffer: one
        # batch is taken, others wait, and one is read.
        read = gathered + (0 if shape.filling == "read" or not shape.is_planned else shape.waiting + 2)
        sampled = read + 1 + shape.ahead
        return cls(
            loops=shape.num_ranks,
            sent=shape.num_ranks * sent,
            gathered=gathered,
            read=read,
            sampled=sampled,
            # A superbatch counts at its first batch. Beyond the gathered batches, only superbatches with a plan are
            # staged.
            staged=gathered + (shape.planned_at_once - 1) * superbatch,
            # The inspector plans a superbatch after its traces and the following superbatch's traces were sampled.
            traced=gathered + (shape.planned_at_once + 2) * superbatch + shape.ahead,
            swept=sampled + max((one.most_waiting for one in work.passes), default=0),
        )


def _pauses_between(work: RunWork, shape: PipelineShape) -> list[tuple[int, float]]:
    """Return (position, seconds) of the pause before each epoch on the first rank. These belong to no epoch."""
    found, epoch = [], None
    for position in range(0, len(work.batches), shape.num_ranks):
        batch = work.batches[position]
        if batch.epoch != epoch:
            found.append((position, batch.pause_s))
            epoch = batch.epoch
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """A lower bound for an epoch's time, and its cause."""

    seconds: float  # per epoch
    resource: str  # the resource or thread that would never be idle in such an epoch: a key of `needs_of`


def find_floor(
    work: RunWork, machine: Machine, shape: PipelineShape, *, epochs: Collection[int] = ()
) -> Floor:
    """Return a lower bound for an epoch of ``work`` in any order. Pure; see `needs_of`."""
    return floor_of(needs_of(work, machine, shape, epochs=epochs))


def floor_of(needs: Mapping[str, float]) -> Floor:
    """Return the floor for one way to run: the largest need of a resource or a thread. Pure.

    Parameters
    ----------
    needs : the result of `needs_of`
    """
    resource = max(needs, key=lambda name: needs[name])
    return Floor(seconds=needs[resource], resource=resource)


def floor_of_mixture(ways: Sequence[Mapping[str, float]]) -> Floor:
    """Return the floor for all mixtures of several ways to run, such as one way per superbatch. Pure.

    Each way c has a share x_c, and the shares add up to 1. The floor is the least T at which no resource exceeds T.
    A resource's use is the sum of x_c times its need in way c.

    Parameters
    ----------
    ways : one result of `needs_of` per way

    Raises
    ------
    ReplayError
        There is no way.
    MissingDependencyError
        There are several ways, and scipy is not installed.
    """
    if not ways:
        raise ReplayError("there is no way to run, so there is no floor")
    if len(ways) == 1:
        return floor_of(ways[0])
    require_solver()
    from scipy.optimize import linprog

    names = list(dict.fromkeys(name for way in ways for name in way))
    needs = np.array([[way.get(name, 0.0) for way in ways] for name in names])  # (resources, ways)
    # The variables are the shares x_c and, last, T. T is minimized.
    solution = linprog(
        np.append(np.zeros(len(ways)), 1.0),
        A_ub=np.column_stack([needs, -np.ones(len(names))]),
        b_ub=np.zeros(len(names)),
        A_eq=[[1.0] * len(ways) + [0.0]],
        b_eq=[1.0],
        method="highs",
    )
    if solution.x is None:
        raise ReplayError(f"the floor of {len(ways)} settings was not found: {solution.message}")
    # This resource has the largest shadow price: a small reduction of its needs lowers T most.
    tight = int(np.argmin(solution.ineqlin.marginals))
    return Floor(seconds=float(solution.x[-1]), resource=names[tight])


def require_solver() -> None:
    """Raise MissingDependencyError without scipy, whose HiGHS solves the linear programme."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError.of_extra("the floor of several settings needs scipy", "tune") from error
