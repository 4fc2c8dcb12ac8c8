"""Calibration of a replay: each kind of work takes as long in the replay as in the recording. Pure.

A replay simulates a recorded run (`gloader.replay.replay`). A piece of work is one stage's work on one batch, one
superbatch (batches that are planned together) or one pass over the edges. A recording has the processor time and the
moved bytes for each piece. It lacks three numbers: the cores that a computation could have used, the disk's own time
for the bytes, and a thread's waits for locks. So one number per stage is fitted: the cores for "compute", a factor on
the disk's time for a stage bound by the disk, and a lag for any other stage. A lag is time without use of a resource.
It has three parts (`Lag`): a fixed time, delay by other threads, and a wait in line at the disk.

`calibrate` replays the run, compares each stage's seconds with the recorded seconds, corrects the numbers, and repeats.
The epoch's length is not fitted. It follows from the waits, and shows whether the replay can be trusted. Predictions
(`gloader.lab.analyze.predict`) then replay the fitted work with changes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from gloader.replay.replay import replay
from gloader.replay.stalls import lag_share

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gloader.replay.demands import Measured
    from gloader.replay.replay import Replayed
    from gloader.replay.work import (
        BatchWork,
        Demands,
        Machine,
        PassWork,
        PipelineShape,
        RunWork,
        SuperbatchWork,
    )

    # The work of one item: a dataclass with fields by stage.
    W = TypeVar("W", BatchWork, SuperbatchWork, PassWork)


MOST_UNEXPLAINED: Final = 0.10  # share of an epoch; a replay with a larger error is not trusted
# Share of an epoch. Lags are fitted and stay the same under all changes, so a replay with more lags is not trusted.
MOST_LAGS: Final = 0.5
# Largest number of corrections, each with a replay. The fit stops earlier if every stage is close.
_ROUNDS: Final = 8
_CLOSE: Final = 0.003  # share of a stage's seconds; the fit ends when no stage differs by more
# Limits for the disk's factor: this number, and 1 divided by this number. Factor 1 means the rates that were measured
# when the run began.
_MOST_FACTOR: Final = 16.0
# Share of a stage's seconds; with less disk time, the disk's factor is not fitted.
_LEAST_DISK_SHARE: Final = 0.1
# Largest delay of a thread per processor second of other threads, by stage; 0 for other stages. Missing time beyond
# this delay is a wait in line or a fixed lag. In runs of `experiments/bench/replay.py` the delay was 0.1 to 0.5, and
# nearly the same under all changes.
_MOST_HELD_UP: Final = {"compute": 0.5, "trace": 0.15, "sample": 0.15}
# The stages, in the order of a batch: it is sampled ahead, its superbatch is planned ("inspect") and staged, and the
# batch is read, gathered, sent and computed. "sweep" is a pass over the edges. See `gloader.replay.work`. Each name is
# also a field of a work dataclass.
_STAGES: Final = ("trace", "sample", "inspect", "stage", "read", "gather", "transfer", "compute", "sweep")


class Mean(NamedTuple):
    """Means over a stage's pieces of work in a replay. In line means: other work uses the disk on arrival."""

    seconds: float = 0.0  # duration
    meanwhile_s: float = 0.0  # other threads' processor seconds during the work
    in_line: float = 0.0  # share of pieces that found other work at the disk
    # Upper limit of a wait in line: the mean duration of the other disk work. 0 for every stage but "read".
    longest_line_s: float = 0.0


class Lag(NamedTuple):
    """The time without use of a resource at the end of a piece of work, as a sum of three parts."""

    each_s: float = 0.0  # seconds that do not depend on other work
    held_up: float = 0.0  # seconds per processor second of other threads
    in_line_s: float = 0.0  # seconds if other work is at the disk when this work arrives

    @classmethod
    def of(cls, stage: str, seconds: float, mean: Mean) -> Lag:
        """Return the lag for which the mean piece of work lags ``seconds``.

        The delay by other threads takes as much of the seconds as `_MOST_HELD_UP` allows, then the wait in line takes
        what it can, and the rest is fixed.

        Parameters
        ----------
        stage : the stage's name
        seconds : the lag of the mean piece
        mean : the stage's means
        """
        held_up_s = min(seconds, _MOST_HELD_UP.get(stage, 0.0) * mean.meanwhile_s)
        in_line_s = min(seconds - held_up_s, mean.in_line * mean.longest_line_s)
        return cls(
            each_s=seconds - held_up_s - in_line_s,
            held_up=held_up_s / mean.meanwhile_s if held_up_s else 0.0,
            in_line_s=in_line_s / mean.in_line if in_line_s else 0.0,
        )

    def seconds(self, mean: Mean) -> float:
        """Return the lag's seconds in the mean piece of work ``mean``."""
        return self.each_s + self.held_up * mean.meanwhile_s + self.in_line_s * mean.in_line


_NO_LAG: Final = Lag()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFit:
    """The fitted numbers that turn recorded demands into replayed demands."""

    cores: float  # cores that the computation keeps busy without competition
    # By stage: the disk's seconds divided by the seconds that its rates give.
    disk: Mapping[str, float] = field(default_factory=dict)
    lag: Mapping[str, Lag] = field(default_factory=dict)  # lags by stage

    def of(self, stage: str, demands: Demands) -> Demands:
        """Return the replayed demands for a piece of work in ``stage``."""
        if not demands.alone_s:  # the stage has no work here, so it gets no lag either
            return demands
        factor, lag = self.disk.get(stage, 1.0), self.lag.get(stage, _NO_LAG)
        return demands._replace(
            cores=self.cores if stage == "compute" else 1.0,
            disk_s=demands.disk_s * factor,
            spill_s=demands.spill_s * factor,  # the disk of the spill folder, if it is a second one
            lag_s=lag.each_s,
            held_up=lag.held_up,
            in_line_s=lag.in_line_s,
        )

    def apply(self, work: RunWork) -> RunWork:
        """Return ``work`` with replayed demands."""

        def fitted(one: W) -> W:
            """Return one item's work with replayed demands in each field that is a stage."""
            found: dict[str, Any] = {
                name: self.of(name, getattr(one, name)) for name in _STAGES if hasattr(one, name)
            }
            return replace(one, **found)

        return replace(
            work,
            batches=tuple(map(fitted, work.batches)),
            superbatches=tuple(map(fitted, work.superbatches)),
            passes=tuple(map(fitted, work.passes)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A recorded run with its fit."""

    fit: ReplayFit
    work: RunWork  # the work with replayed demands
    replayed: Replayed  # the replay of this work
    # By stage: measured seconds divided by replayed seconds, minus 1. The entry "epoch" compares the counted epochs,
    # which are all but the first.
    unexplained: dict[str, float]
    # Share of the counted epochs' critical path in which no resource is used. The path is the chain of work for which
    # the epoch's end waited. Lags of a GPU's stages do not count.
    lags: float

    @property
    def doubt(self) -> str:
        """Return the reason against predictions, or "" if the replay is trusted."""
        return doubt_of(self.unexplained, self.lags)


def doubt_of(unexplained: Mapping[str, float], lags: float) -> str:
    """Return the reason against predictions, from a replay's unexplained shares, or "" if it is trusted. Pure.

    Parameters
    ----------
    unexplained, lags : see `Calibrated`
    """
    if abs(unexplained["epoch"]) > MOST_UNEXPLAINED:
        of_stages = {name: share for name, share in unexplained.items() if name != "epoch"}
        worst = max(of_stages, key=lambda name: abs(of_stages[name]), default="")
        stage = (
            f"; of the stages {worst} is the furthest off, and took {_compared(of_stages[worst])}"
            if worst
            else ""
        )
        return (
            f"an epoch took {_compared(unexplained['epoch'])} than in the replay, and the replay is trusted up to "
            f"{MOST_UNEXPLAINED:.0%}{stage}"
        )
    if lags > MOST_LAGS:
        return (
            f"{lags:.0%} of an epoch is waiting that the recording does not explain (at most {MOST_LAGS:.0%} is "
            "accepted): the loop slept, or other programs had the cores"
        )
    return ""


def _compared(share: float) -> str:
    """Return a difference such as "12% longer"."""
    return f"{abs(share):.0%} {'longer' if share > 0 else 'less'}"


def calibrate(
    work: RunWork,
    measured: Measured,
    machine: Machine,
    shape: PipelineShape,
    *,
    threads: int,
    device: str = "cpu",
) -> Calibrated:
    """Return a fit in which each stage's work takes as long in the replay as in the recording. Pure.

    Parameters
    ----------
    work : the result of `work_of`
    measured : the recording's measurements
    machine, shape : the recording's machine and shape
    threads : torch's threads per operation, which is also the limit for a computation's cores
    device : the compute device's name; a GPU's time is not recorded, so all time that the replay lacks in "compute"
        and "transfer" is a fixed lag
    """
    fit = ReplayFit(cores=min(1.0, machine.cores))
    has_disk = _bound_by_disk(work, measured)
    device_stages = () if device == "cpu" else ("compute", "transfer")
    replayed = replay(fit.apply(work), machine, shape)
    for _ in range(_ROUNDS):
        known = _means(replayed, work, measured.counted)
        better = _better(fit, known, measured, has_disk, device_stages, threads=threads)
        if _is_close(known, measured) or better == fit:
            break
        fit = better
        replayed = replay(fit.apply(work), machine, shape)
    known = _means(replayed, work, measured.counted)
    unexplained: dict[str, float] = {
        name: measured.stage_s[name] / known[name].seconds - 1
        for name in _STAGES
        if name in known and known[name].seconds > 0 and name in measured.stage_s
    }
    unexplained["epoch"] = measured.seconds / replayed.mean_s(measured.counted) - 1
    return Calibrated(
        fit=fit,
        work=fit.apply(work),
        replayed=replayed,
        unexplained=unexplained,
        lags=lag_share(replayed, measured.counted, but=device_stages),
    )


def _means(replayed: Replayed, work: RunWork, counted: Collection[int]) -> dict[str, Mean]:
    """Return each stage's means per piece of work, without empty pieces. Pure.

    Parameters
    ----------
    replayed : the replay
    work : the replayed work
    counted : epochs whose work counts. A stage without work in these epochs has its means over all epochs.
    """
    of_counted: dict[str, list[Mean]] = defaultdict(list)
    of_all: dict[str, list[Mean]] = defaultdict(list)
    for event in replayed.events:
        if event.demands.alone_s:
            piece = Mean(event.ended_s - event.started_s, event.meanwhile_s, event.in_line)
            of_all[event.stage].append(piece)
            # For work on several batches, ``event.batch`` is the first one.
            if work.batches[event.batch].epoch in counted:
                of_counted[event.stage].append(piece)
    means = {}
    for name, found in of_all.items():
        fields = zip(*(of_counted.get(name) or found), strict=True)  # each field's values over all pieces
        means[name] = Mean(*map(fmean, fields))
    if "read" in means:
        # A batch's read waits behind a superbatch's or a pass's reads, which take the longest.
        other_s = max((means[name].seconds for name in ("stage", "sweep") if name in means), default=0.0)
        means["read"] = means["read"]._replace(longest_line_s=other_s)
    # A recorded computation ends when all ranks have summed their gradients. So it is compared with the mean replayed
    # step, which includes the wait for other ranks.
    mean_step_s = fmean(replayed.step_s[epoch] for epoch in counted)
    return means | {"compute": means.get("compute", Mean())._replace(seconds=mean_step_s)}


def _better(
    fit: ReplayFit,
    known: Mapping[str, Mean],
    measured: Measured,
    has_disk: Collection[str],
    device_stages: Collection[str],
    *,
    threads: int,
) -> ReplayFit:
    """Return a better fit, from one comparison of the replayed and recorded durations.

    Parameters
    ----------
    fit : the present fit
    known : each stage's mean in the replay with this fit
    measured : the recording's measurements
    has_disk : stages whose disk factor is fitted
    device_stages : stages whose lag is independent of other threads
    threads : limit for a computation's cores
    """
    disk, lags, cores = dict(fit.disk), dict(fit.lag), fit.cores
    for name in _STAGES:
        mean, recorded_s, lag = (
            known.get(name, Mean()),
            measured.stage_s.get(name, 0.0),
            lags.get(name, _NO_LAG),
        )
        if not (replayed_s := mean.seconds) or not recorded_s:
            continue
        # More cores explain a computation that was recorded shorter than replayed. Once there are more than one, their
        # number is also corrected downwards. A computation that was recorded longer than on one core waits for
        # something else, such as the interpreter's lock or a GPU. It gets a lag, and then the cores stay the same.
        uses_more_cores = replayed_s > recorded_s or cores > 1.0
        if name == "compute" and uses_more_cores and lag == _NO_LAG:
            cores = min(max(cores * replayed_s / recorded_s, 1.0), float(threads))
        elif name in has_disk:
            factor = disk.get(name, 1.0)
            disk[name] = min(max(factor * recorded_s / replayed_s, 1 / _MOST_FACTOR), _MOST_FACTOR)
        else:
            lag_s = max(lag.seconds(mean) + recorded_s - replayed_s, 0.0)
            lags[name] = Lag(lag_s) if name in device_stages else Lag.of(name, lag_s, mean)
    return ReplayFit(cores=cores, disk=disk, lag=lags)


def _is_close(known: Mapping[str, Mean], measured: Measured) -> bool:
    """Return whether no stage's replayed seconds differ from the recorded seconds by more than `_CLOSE`."""
    return all(
        abs(one.seconds / measured.stage_s[name] - 1) < _CLOSE
        for name, one in known.items()
        if one.seconds and measured.stage_s.get(name)
    )


def _bound_by_disk(work: RunWork, measured: Measured) -> set[str]:
    """Return the stages with much disk time, whose disk factor is fitted."""
    counted = measured.counted
    batches = [batch for batch in work.batches if batch.epoch in counted]
    known = {
        **{name: [getattr(batch, name) for batch in batches] for name in ("trace", "sample", "read")},
        "stage": [one.stage for one in work.superbatches],
        "sweep": [one.sweep for one in work.passes],
    }
    return {
        name
        for name, demands in known.items()
        if demands
        and fmean(d.disk_s + d.spill_s for d in demands) > _LEAST_DISK_SHARE * measured.stage_s.get(name, 0.0)
    }
