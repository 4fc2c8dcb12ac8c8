"""Calibration of a replay: each kind of work takes as long as it was recorded. Pure.

A record has the processor time of a piece of work and the bytes that it moved. It has neither the number of cores
that a computation could have used, nor the disk's own time for the bytes, nor the time that a thread waited for a
lock. One factor for each stage is fitted, so that its work takes as long in the replay as in the run. The length of
the epoch is not fitted. It follows from the waits, and shows whether the replay is to be trusted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple

from gloader.replay.replay import replay
from gloader.replay.stalls import lag_share

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
# Seconds that a thread may be held up for each processor second of others, at most; what is missing beyond is a lag
# whoever works. In runs of `experiments/bench/replay.py` it was 0.1 to 0.5, and much the same whatever was changed.
_MOST_HELD_UP: Final = {"compute": 0.5, "trace": 0.15, "sample": 0.15}
_STAGES: Final = ("trace", "sample", "inspect", "stage", "read", "gather", "transfer", "compute", "sweep")


class Mean(NamedTuple):
    """A piece of work of a stage, on average."""

    seconds: float = 0.0
    meanwhile_s: float = 0.0  # processor seconds that others used while it was at work
    in_line: float = 0.0  # how often others were at its disk as it came
    longest_line_s: float = 0.0  # that it may have stood in line then: as long as what they did there took


class Lag(NamedTuple):
    """What follows a piece of work before its thread goes on."""

    each_s: float = 0.0  # whoever works
    held_up: float = 0.0  # seconds for each processor second that others use meanwhile
    in_line_s: float = 0.0  # where others are at the disk as it comes

    @classmethod
    def of(cls, stage: str, seconds: float, mean: Mean) -> Lag:
        """Return that of so many seconds in a piece of work such as ``mean``."""
        held_up_s = min(seconds, _MOST_HELD_UP.get(stage, 0.0) * mean.meanwhile_s)
        in_line_s = min(seconds - held_up_s, mean.in_line * mean.longest_line_s)
        return cls(
            each_s=seconds - held_up_s - in_line_s,
            held_up=held_up_s / mean.meanwhile_s if held_up_s else 0.0,
            in_line_s=in_line_s / mean.in_line if in_line_s else 0.0,
        )

    def seconds(self, mean: Mean) -> float:
        """Return the seconds of it in a piece of work such as ``mean``."""
        return self.each_s + self.held_up * mean.meanwhile_s + self.in_line_s * mean.in_line


_NO_LAG: Final = Lag()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What was fitted: how demands become those of a replay."""

    cores: float  # that the computation keeps busy where nobody else wants them
    # Seconds of the disk over those of its rates, by stage.
    disk: Mapping[str, float] = field(default_factory=dict)
    lag: Mapping[str, Lag] = field(default_factory=dict)  # by stage

    def of(self, stage: str, demands: Demands) -> Demands:
        """Return the demands of a piece of work of ``stage`` as they are replayed."""
        if not demands.alone_s:
            return demands
        factor, lag = self.disk.get(stage, 1.0), self.lag.get(stage, _NO_LAG)
        return demands._replace(
            cores=self.cores if stage == "compute" else 1.0,
            disk_s=demands.disk_s * factor,
            spill_s=demands.spill_s * factor,
            lag_s=lag.each_s,
            held_up=lag.held_up,
            in_line_s=lag.in_line_s,
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
            f"an epoch took {_than(unexplained['epoch'])} than in the replay, and the replay is trusted up to "
            f"{MOST_UNEXPLAINED:.0%}{stage}"
        )
    if lags > MOST_LAGS:
        return (
            f"{lags:.0%} of an epoch is waiting that the recording does not explain (at most {MOST_LAGS:.0%} is "
            "accepted): the loop slept, or other programs had the cores"
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
    own = () if device == "cpu" else ("compute", "transfer")
    replayed = replay(fit.apply(work), machine, shape)
    for _ in range(_ROUNDS):
        known = _means(replayed, work, measured.counted)
        better = _better(fit, known, measured, has_disk, own, threads=threads)
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
    unexplained["epoch"] = measured.seconds / seconds_of(replayed, measured) - 1
    return Calibrated(
        fit=fit,
        work=fit.apply(work),
        replayed=replayed,
        unexplained=unexplained,
        lags=lag_share(replayed, measured.counted, but=own),
    )


def _means(replayed: Replayed, work: Work, counted: Collection[int]) -> dict[str, Mean]:
    """Return how long a piece of work of each stage took on average, where it had anything to do. Pure.

    Parameters
    ----------
    replayed : the replay
    work : that was replayed
    counted : epochs whose work counts, where a stage worked for any of them
    """
    of_counted: dict[str, list[Mean]] = defaultdict(list)
    of_all: dict[str, list[Mean]] = defaultdict(list)
    for event in replayed.events:
        if event.demands.alone_s:
            one = Mean(event.ended_s - event.started_s, event.meanwhile_s, event.in_line)
            of_all[event.stage].append(one)
            if work.batches[event.batch].epoch in counted:
                of_counted[event.stage].append(one)
    means = {
        name: Mean(*map(fmean, zip(*(of_counted.get(name) or found), strict=True)))
        for name, found in of_all.items()
    }
    if "read" in means:
        sweep_s = max((means[name].seconds for name in ("stage", "sweep") if name in means), default=0.0)
        means["read"] = means["read"]._replace(longest_line_s=sweep_s)
    # Ranks add up their gradients within the step: it is not over before all have come that far.
    step_s = fmean(replayed.step_s[epoch] for epoch in counted)
    return means | {"compute": means.get("compute", Mean())._replace(seconds=step_s)}


def _better(
    fit: Fit,
    known: Mapping[str, Mean],
    measured: Measured,
    has_disk: Collection[str],
    own: Collection[str],
    *,
    threads: int,
) -> Fit:
    """Return the fit after one more look at how long work took; the time of ``own`` stages is a device's."""
    disk, lags, cores = dict(fit.disk), dict(fit.lag), fit.cores
    for name in _STAGES:
        mean, wanted, lag = known.get(name, Mean()), measured.stage_s.get(name, 0.0), lags.get(name, _NO_LAG)
        if not (took := mean.seconds) or not wanted:
            continue
        # A computation that takes longer than a core would need waits for something, such as the interpreter's lock.
        if name == "compute" and (took > wanted or cores > 1.0) and lag == _NO_LAG:
            cores = min(max(cores * took / wanted, 1.0), float(threads))
        elif name in has_disk:
            before = disk.get(name, 1.0)
            disk[name] = min(max(before * wanted / took, 1 / _MOST_FACTOR), _MOST_FACTOR)
        else:
            lag_s = max(lag.seconds(mean) + wanted - took, 0.0)
            lags[name] = Lag(lag_s) if name in own else Lag.of(name, lag_s, mean)
    return Fit(cores=cores, disk=disk, lag=lags)


def _is_close(known: Mapping[str, Mean], measured: Measured) -> bool:
    return all(
        abs(one.seconds / measured.stage_s[name] - 1) < _CLOSE
        for name, one in known.items()
        if one.seconds and measured.stage_s.get(name)
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
