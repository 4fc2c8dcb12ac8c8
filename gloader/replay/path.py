"""Where an epoch goes: the chain of work that its end waited for, each piece because of the one before it. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from gloader.replay.work import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from gloader.replay.engine import Event
    from gloader.replay.replay import Replayed

# What people read, by stage. A stage's own time is what it takes alone; what it takes longer, as others want the cores
# too, or hold it up, is apart.
_NAMES: Final[Mapping[str, str]] = {"stage": "sweep", "trace": "sample"}
CORES: Final = "waiting for cores"
START: Final = "start"
_CPU: Final = RESOURCES.index("cpu")


def parts_of_epoch(replayed: Replayed, epoch: int) -> dict[str, float]:
    """Return the seconds of an epoch by what they were spent on, the most first; they add up to the epoch. Pure.

    Follows the critical path back from the end of the epoch: each piece of work began because another one ended
    (J. Kelley and M. Walker, "Critical-path planning and scheduling", 1959).

    Parameters
    ----------
    replayed : the run
    epoch : one of its epochs
    """
    found: dict[str, float] = defaultdict(float)
    for event, took in _path(replayed, epoch):
        waited = 0.0
        if event.limit == _CPU or event.demands.cpu_s / event.demands.cores >= event.demands.alone_s:
            own_s = event.demands.alone_s + event.in_line_s
            waited = min(max(event.ended_s - event.started_s - own_s, 0.0), took)
        found[_NAMES.get(event.stage, event.stage)] += took - waited
        found[CORES] += waited
    # Work may have ended before what it let begin: a thread that waited for a pause, for example.
    found[START] = replayed.epoch_s[epoch] - sum(found.values())
    return {
        name: seconds
        for name, seconds in sorted(found.items(), key=lambda part: -part[1])
        if seconds > 1e-9 * replayed.epoch_s[epoch]
    }


def mean_parts(replayed: Replayed, epochs: tuple[int, ...]) -> dict[str, float]:
    """Return `parts_of_epoch` on average over ``epochs``, the most first. Pure."""
    total: dict[str, float] = defaultdict(float)
    for epoch in epochs:
        for name, seconds in parts_of_epoch(replayed, epoch).items():
            total[name] += seconds / len(epochs)
    return dict(sorted(total.items(), key=lambda part: -part[1]))


def lag_share(replayed: Replayed, epochs: tuple[int, ...], *, but: Collection[str] = ()) -> float:
    """Return the share of ``epochs`` that their critical paths spend on lags, in which nothing known is used. Pure.

    Parameters
    ----------
    replayed : the run
    epochs : of the run
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
    """Yield the work that the end of an epoch waited for, the last first, and the seconds of it that each took."""
    events, number = replayed.events, replayed.last_event[epoch]
    at = events[number].ended_s
    begin = at - replayed.epoch_s[epoch]
    while number >= 0 and at > begin:
        event = events[number]
        started = max(event.started_s, begin)
        yield event, max(min(event.ended_s, at) - started, 0.0)
        at = min(at, started)
        number = event.cause
