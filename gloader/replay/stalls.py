"""Stalls, and a replayed epoch's critical path: the work that the epoch's end waited for. Pure.

A replay simulates a recorded run (`gloader.replay.replay`). `parts_of_epoch` follows the critical path of one replay
and divides the epoch by cause. `find_stalls` measures stalls. A stall is the time that one cause adds to an epoch. Its
size is the difference between two replays, with the cause and without it.

J. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021, measures stalls by three runs: with
synthetic batches, with everything cached, and unchanged. A. Sharma et al., "Stash", ICDCS 2023, adds ranks and
machines. Here each run is a replay.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gloader.replay.replay import replay
from gloader.replay.work import NOTHING, RESOURCES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from gloader.replay.engine import Event
    from gloader.replay.replay import Replayed
    from gloader.replay.work import Machine, PipelineShape, RunWork


_NAMES: Final[Mapping[str, str]] = {"stage": "sweep", "trace": "sample"}  # words for the user, by stage
# The names of an epoch's parts that belong to no stage. A stage's part is the time that its work takes alone.
# Additional time, from competition for the cores or from delays by other work, counts as `CORES`. The time before the
# first work on the path counts as `START`.
CORES: Final = "waiting for cores"
START: Final = "start"
_CPU: Final = RESOURCES.index("cpu")


def parts_of_epoch(replayed: Replayed, epoch: int) -> dict[str, float]:
    """Return an epoch's seconds by cause, largest first. They add up to the epoch. Pure.

    Follows the critical path back from the epoch's end: the end of one piece of work started the next piece
    (J. Kelley and M. Walker, "Critical-path planning and scheduling", 1959).

    Parameters
    ----------
    replayed : the replayed run
    epoch : the epoch's number
    """
    found: dict[str, float] = defaultdict(float)
    for event, took in _path(replayed, epoch):
        waited = 0.0
        # Only work that the cores limit, together or alone, can have waited for cores.
        if event.limit == _CPU or event.demands.cpu_s / event.demands.cores >= event.demands.alone_s:
            alone_s = event.demands.alone_s + event.in_line_s
            waited = min(max(event.ended_s - event.started_s - alone_s, 0.0), took)
        found[_NAMES.get(event.stage, event.stage)] += took - waited
        found[CORES] += waited
    # The rest of the epoch. It includes gaps on the path: work may have ended before its successor began, for example
    # if a thread also waited for a pause.
    found[START] = replayed.epoch_s[epoch] - sum(found.values())
    return {
        name: seconds
        for name, seconds in sorted(found.items(), key=lambda part: -part[1])
        if seconds > 1e-9 * replayed.epoch_s[epoch]  # a smaller part is a rounding error
    }


def mean_parts(replayed: Replayed, epochs: tuple[int, ...]) -> dict[str, float]:
    """Return the mean of `parts_of_epoch` over ``epochs``, largest first. Pure."""
    total: dict[str, float] = defaultdict(float)
    for epoch in epochs:
        for name, seconds in parts_of_epoch(replayed, epoch).items():
            total[name] += seconds / len(epochs)
    return dict(sorted(total.items(), key=lambda part: -part[1]))


def lag_share(replayed: Replayed, epochs: tuple[int, ...], *, but: Collection[str] = ()) -> float:
    """Return the share of ``epochs`` that their critical paths spend on lags, without use of a resource. Pure.

    Parameters
    ----------
    replayed : the replayed run
    epochs : the counted epochs
    but : stages whose lags do not count
    """
    lags = (
        min(event.lag_s, took)
        for epoch in epochs
        for event, took in _path(replayed, epoch)
        if event.stage not in but
    )
    return sum(lags) / sum(replayed.epoch_s[epoch] for epoch in epochs)


def _path(replayed: Replayed, epoch: int) -> Iterator[tuple[Event, float]]:
    """Yield (event, seconds on the path) for the work that an epoch's end waited for, last piece first."""
    events, number = replayed.events, replayed.last_event[epoch]
    moment_s = events[number].ended_s
    begin_s = moment_s - replayed.epoch_s[epoch]
    while number >= 0 and moment_s > begin_s:
        event = events[number]
        started_s = max(event.started_s, begin_s)
        yield event, max(min(event.ended_s, moment_s) - started_s, 0.0)
        moment_s = min(moment_s, started_s)
        number = event.cause


STALLS: Final = ("preparation", "fetch", "transfer", "interconnect", "network")


def find_stalls(
    work: RunWork, machine: Machine, shape: PipelineShape, *, epochs: Collection[int]
) -> dict[str, float]:
    """Return the seconds that each kind of stall adds to an epoch. Pure.

    Preparation is the time that sampling, gathering and transfer add with everything in memory. Fetch is the time that
    the disk adds. The other stalls are the seconds that an epoch saves if one cost is removed: copies to the device
    (transfer), waits for other ranks (interconnect), or the network.

    Parameters
    ----------
    work, machine, shape : the run
    epochs : epochs whose mean counts
    """

    def seconds(changed: RunWork, of: Machine = machine, within: PipelineShape = shape) -> float:
        return replay(changed, of, within).mean_s(epochs)

    def without(resource: str) -> float:
        """Return the seconds of an epoch if ``resource`` were infinitely fast."""
        return seconds(work, replace(machine, speed={**machine.speed, resource: math.inf}))

    cold = seconds(work)  # as recorded, with reads
    warm = seconds(_without(work, "trace", "read"))  # with everything in memory
    computed = seconds(_without(work, "trace", "sample", "read", "gather", "transfer"))
    found = {"preparation": warm - computed, "fetch": cold - warm, "transfer": cold - without("link")}
    if shape.num_ranks > 1:
        found["interconnect"] = cold - seconds(work, within=replace(shape, is_synchronous=False))
    found["network"] = cold - without("network")
    return {name: max(found.get(name, 0.0), 0.0) for name in STALLS}


def _without(work: RunWork, *stages: str) -> RunWork:
    """Return ``work`` without these batch stages, and without plans, sweeps and passes."""
    left_out: dict[str, Any] = dict.fromkeys(stages, NOTHING)
    return replace(
        work,
        batches=tuple(replace(batch, **left_out) for batch in work.batches),
        superbatches=tuple(replace(one, inspect=NOTHING, stage=NOTHING) for one in work.superbatches),
        passes=(),
    )
