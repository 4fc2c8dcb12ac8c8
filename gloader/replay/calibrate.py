"""What the demands of a recording leave open, fitted so that each kind of work takes as long as it did. Pure.

A record says what processor time a piece of work used, and what it moved. It does not say how many cores a computation
could have used, what the disk really took for its bytes, and how long a thread waited for a lock. These are fitted: one
number for each stage, so that its work takes as long in the replay as it did. How long the epoch takes is not fitted:
that follows from what waits for what, and says whether the replay is to be trusted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Final

from gloader.replay.path import lag_share
from gloader.replay.replay import replay

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gloader.replay.demands import Measured
    from gloader.replay.replay import Replayed
    from gloader.replay.work import BatchWork, Demands, Machine, PipelineShape, SuperbatchWork, Work

MOST_UNEXPLAINED: Final = 0.10  # of an epoch: a replay that is further off predicts nothing
# Of an epoch: where more of it is lags, which are fitted and stay as they are whatever changes, nothing is predicted.
MOST_LAGS: Final = 0.5
# Replays until the numbers hardly change.
_ROUNDS: Final = 8
_CLOSE: Final = 0.003  # of a stage's seconds
# The disk is not taken to be further off than this from what was measured when the run began.
_MOST_FACTOR: Final = 16.0
_PART: Final = 0.1  # of the seconds of a stage: below it, the disk is not what they are spent on
_STAGES: Final = ("trace", "sample", "inspect", "stage", "read", "gather", "transfer", "compute", "sweep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What was fitted: how demands become those of a replay."""

    cores: float  # that the computation keeps busy where nobody else wants them
    # Seconds of the disk over those of its rates, by stage.
    disk: Mapping[str, float] = field(default_factory=dict)
    lag: Mapping[str, float] = field(default_factory=dict)  # seconds after a piece of work, by stage

    def of(self, stage: str, demands: Demands) -> Demands:
        """Return the demands of a piece of work of ``stage`` as they are replayed."""
        if not demands.alone_s:
            return demands
        factor = self.disk.get(stage, 1.0)
        return demands._replace(
            cores=self.cores if stage == "compute" else 1.0,
            disk_s=demands.disk_s * factor,
            spill_s=demands.spill_s * factor,
            lag_s=self.lag.get(stage, 0.0),
        )

    def apply(self, work: Work) -> Work:
        """Return ``work`` as it is replayed."""

        def of_batch(batch: BatchWork) -> BatchWork:
            return replace(
                batch,
                trace=self.of("trace", batch.trace),
                sample=self.of("sample", batch.sample),
                read=self.of("read", batch.read),
                gather=self.of("gather", batch.gather),
                transfer=self.of("transfer", batch.transfer),
                compute=self.of("compute", batch.compute),
            )

        def of_superbatch(one: SuperbatchWork) -> SuperbatchWork:
            return replace(one, inspect=self.of("inspect", one.inspect), stage=self.of("stage", one.stage))

        return replace(
            work,
            batches=tuple(map(of_batch, work.batches)),
            superbatches=tuple(map(of_superbatch, work.superbatches)),
            passes=tuple(replace(one, sweep=self.of("sweep", one.sweep)) for one in work.passes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A recorded run, fitted."""

    fit: Fit
    work: Work  # as it is replayed
    replayed: Replayed
    # Measured over replayed, less 1, of each stage; "epoch" of the epochs that count.
    unexplained: dict[str, float]
    # The share of the epochs that count in which nothing that was recorded is used. Of a device, its computation does.
    lags: float

    @property
    def doubt(self) -> str:
        """Say why nothing is to be predicted; empty where the replay is trusted."""
        return doubt_of(self.unexplained, self.lags)


def doubt_of(unexplained: Mapping[str, float], lags: float) -> str:
    """Say why nothing is to be predicted from what is unexplained of a replay; empty where it is trusted. Pure.

    Parameters
    ----------
    unexplained, lags : as of `Calibrated`
    """
    if abs(unexplained["epoch"]) > MOST_UNEXPLAINED:
        of_stages = {name: share for name, share in unexplained.items() if name != "epoch"}
        worst = max(of_stages, key=lambda name: abs(of_stages[name]), default="")
        stage = (
            f"; of the stages {worst} is the furthest off, and took {_than(of_stages[worst])}"
            if worst
            else ""
        )
        return (
            f"an epoch took {_than(unexplained['epoch'])} than it does in the replay, and beyond "
            f"{MOST_UNEXPLAINED:.0%} nothing is predicted{stage}"
        )
    if lags > MOST_LAGS:
        return (
            f"in {lags:.0%} of an epoch no core, disk or device did anything for it that was recorded, and beyond "
            f"{MOST_LAGS:.0%} nothing is predicted: the loop slept, or other programs had the cores"
        )
    return ""


def _than(share: float) -> str:
    return f"{abs(share):.0%} {'longer' if share > 0 else 'less'}"


def seconds_of(replayed: Replayed, measured: Measured) -> float:
    """Return the seconds of an epoch of a replay, on average over those that count. Pure."""
    return sum(replayed.epoch_s[epoch] for epoch in measured.counted) / len(measured.counted)


def calibrate(
    work: Work,
    measured: Measured,
    machine: Machine,
    shape: PipelineShape,
    *,
    threads: int,
    device: str = "cpu",
) -> Calibrated:
    """Return what makes the work of each stage take as long in the replay as it did. Pure.

    Parameters
    ----------
    work : of `work_of`
    measured : of the same recording
    machine, shape : on which it was recorded
    threads : that an operation of torch may use, which a computation has at most
    device : that computes; what it takes is in no record, and what its computations are fitted by
    """
    fit = Fit(cores=min(1.0, machine.cores))
    has_disk = _bound_by_disk(work, measured)
    replayed = replay(fit.apply(work), machine, shape)
    for _ in range(_ROUNDS):
        known = stage_seconds(replayed, work, measured.counted)
        better = _better(fit, known, measured, has_disk, threads=threads)
        if _is_close(known, measured) or better == fit:
            break
        fit = better
        replayed = replay(fit.apply(work), machine, shape)
    known = stage_seconds(replayed, work, measured.counted)
    unexplained: dict[str, float] = {
        name: measured.stage_s[name] / known[name] - 1
        for name in _STAGES
        if known.get(name, 0.0) > 0 and name in measured.stage_s
    }
    unexplained["epoch"] = measured.seconds / seconds_of(replayed, measured) - 1
    own = () if device == "cpu" else ("compute", "transfer")
    return Calibrated(
        fit=fit,
        work=fit.apply(work),
        replayed=replayed,
        unexplained=unexplained,
        lags=lag_share(replayed, measured.counted, but=own),
    )


def stage_seconds(replayed: Replayed, work: Work, counted: Collection[int]) -> dict[str, float]:
    """Return how long a piece of work of each stage took on average, where it had anything to do. Pure.

    Parameters
    ----------
    replayed : the replay
    work : that was replayed
    counted : epochs whose work counts, where a stage worked for any of them
    """
    of_counted: dict[str, list[float]] = defaultdict(list)
    of_all: dict[str, list[float]] = defaultdict(list)
    for event in replayed.events:
        if event.demands.alone_s:
            of_all[event.stage].append(event.ended_s - event.started_s)
            if work.batches[event.batch].epoch in counted:
                of_counted[event.stage].append(event.ended_s - event.started_s)
    means = {name: fmean(of_counted.get(name) or found) for name, found in of_all.items()}
    # Ranks add up their gradients within the step: it is not over before all have come that far.
    return means | {"compute": fmean(replayed.step_s[epoch] for epoch in counted)}


def _better(
    fit: Fit, known: Mapping[str, float], measured: Measured, has_disk: set[str], *, threads: int
) -> Fit:
    """Return the fit after one more look at how long work took."""
    disk, lag, cores = dict(fit.disk), dict(fit.lag), fit.cores
    for name in _STAGES:
        took, wanted = known.get(name, 0.0), measured.stage_s.get(name, 0.0)
        if not took or not wanted:
            continue
        # A computation that takes longer than a core would need waits for something, such as the interpreter's lock.
        if name == "compute" and (took > wanted or cores > 1.0) and not lag.get(name):
            cores = min(max(cores * took / wanted, 1.0), float(threads))
        elif name in has_disk:
            before = disk.get(name, 1.0)
            disk[name] = min(max(before * wanted / took, 1 / _MOST_FACTOR), _MOST_FACTOR)
        else:
            lag[name] = max(lag.get(name, 0.0) + wanted - took, 0.0)
    return Fit(cores=cores, disk=disk, lag=lag)


def _is_close(known: Mapping[str, float], measured: Measured) -> bool:
    return all(
        abs(known[name] / measured.stage_s[name] - 1) < _CLOSE
        for name in _STAGES
        if known.get(name) and measured.stage_s.get(name)
    )


def _bound_by_disk(work: Work, measured: Measured) -> set[str]:
    """Return the stages whose time the disk has a part in: what its rates say of it is what is fitted."""
    counted = measured.counted
    batches = [batch for batch in work.batches if batch.epoch in counted]
    known = {
        "trace": [batch.trace for batch in batches],
        "sample": [batch.sample for batch in batches],
        "read": [batch.read for batch in batches],
        "stage": [one.stage for one in work.superbatches],
        "sweep": [one.sweep for one in work.passes],
    }
    return {
        name
        for name, demands in known.items()
        if demands and fmean(d.disk_s + d.spill_s for d in demands) > _PART * measured.stage_s.get(name, 0.0)
    }
