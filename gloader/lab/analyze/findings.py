"""An analysis's findings, as one value and as text.

`gloader.lab.analyze.analysis` makes the `Findings` of a recorded run. The screen, the report page and `analysis.json`
show them. The functions with names such as `lines_of` and `what_if_words` return the text for the screen and the page.

A replay simulates the recorded work; the prediction of a what-if is a replay with changes. A stall is time for which
the model waits. A pack is a temporary file with the rows that miss every cache in a superbatch (consecutive batches
that are planned together), laid out batch by batch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import MALFORMED
from gloader.core.records import Records
from gloader.core.units import format_exact_seconds
from gloader.errors import FormatError, GloaderError
from gloader.lab.analyze.lanes import Slice, course_of, measured_slices, middle_batches, replayed_slices
from gloader.replay.stalls import mean_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.lab.analyze.predict import Prediction, Predictor


FINDINGS_VERSION: Final = 1
_RECORDS: Final = Records(Slice=Slice)
LEAST_GAIN: Final = 0.02  # share of an epoch; a smaller saving is not shown
EPOCH: Final = "epoch"  # key of ``Findings.unexplained`` for the whole epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The predicted epoch with some changes."""

    change: str  # the change, as requested
    replayed_s: float  # seconds per epoch
    gain: float  # the saved share of the replayed epoch; below 0 if it takes longer
    bound_by: str  # the largest part of the epoch, named as in `gloader.replay.stalls`
    memory_bytes: int | None  # the changed loader's planned memory; None if no batch can be sampled again
    spill_bytes: int | None  # disk for the packs; None in the same case
    settings: dict[str, Any]  # keywords of `gloader.Loader` that make the change
    note: str  # a further remark for the user

    @property
    def helps(self) -> bool:
        """True if the change saves a notable share of the epoch."""
        return self.gain >= LEAST_GAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The work on a few batches, from sampling to computation, in the lane of each thread.

    Times are in seconds from the start of the first batch's sampling.
    """

    epoch: int
    batches: tuple[int, ...]  # the batches' indices in the epoch
    measured: tuple[Slice, ...]  # the recorded work
    replayed: tuple[Slice, ...]  # the same work in the replay


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A host cache's miss rate at one size."""

    cache_bytes: int
    miss_rate: float  # share of the rows gathered on the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """An epoch's parts and the changes that would help, for files and the screen."""

    run: str
    measured_s: float  # seconds per epoch
    replayed_s: float  # seconds per epoch in the replay
    unexplained: dict[str, float]  # by stage: measured over replayed, minus 1; "epoch" is for the whole epoch
    lags: float  # share of an epoch in which no recorded resource (cores, disk, device ...) is used
    refused: str  # reason against predictions; empty if the replay is trusted
    memory_bytes: int | None  # the run's planned memory; None if its batches cannot be sampled again
    spill_bytes: int | None  # disk for its packs; None in the same case
    course: Course
    # Without predictions, all further fields are empty or None.
    parts: dict[str, float] = field(default_factory=dict)  # seconds per epoch, by cause
    stalls: dict[str, float] = field(default_factory=dict)  # seconds by stall, see `gloader.replay.stalls`
    floor_s: float | None = None  # lower bound: the same work in any order takes at least these seconds
    floor_of: str = ""  # the resource that gives the lower bound
    was_asked: bool = False  # True if the user requested the changes in ``what_if``
    what_if: tuple[WhatIf, ...] = ()  # the fastest first
    curve: tuple[CurvePoint, ...] = ()  # misses against cache size
    knee_bytes: int | None = None  # a cache size beyond which a byte saves little
    # Seconds that `gloader.lab.analyze.analysis.verify_stalls` has measured; empty without them.
    verified: dict[str, float] = field(default_factory=dict)

    @property
    def is_trusted(self) -> bool:
        """True if the replay is trusted. Only then are there predictions."""
        return not self.refused

    @property
    def shown(self) -> tuple[WhatIf, ...]:
        """The requested changes, or the changes that help, fastest first."""
        if self.was_asked:
            return self.what_if
        return tuple(sorted((one for one in self.what_if if one.helps), key=lambda one: one.replayed_s))

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``analysis.json``."""
        course = {
            name: [one.to_json() for one in getattr(self.course, name)] for name in ("measured", "replayed")
        }
        return {
            "version": FINDINGS_VERSION,
            **asdict(self),
            "trusted": self.is_trusted,
            "course": {**asdict(self.course), **course},
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Findings:
        """Parse a result of `to_json`.

        Raises
        ------
        FormatError
            The analysis has another version, or is malformed.
        """
        try:
            values = dict(body)
            if values.pop("version") != FINDINGS_VERSION:
                raise FormatError(
                    f"the analysis has version {body['version']!r}, this build reads version {FINDINGS_VERSION}; make "
                    "it again with gloader analyze"
                )
            del values["trusted"]
            return _RECORDS.read(cls, values)
        except MALFORMED as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(
                f"the analysis is malformed: {error!r}; make it again with gloader analyze"
            ) from error


def measured_findings(predictor: Predictor, run: str) -> Findings:
    """Return the findings from a run's measurements and its replay, without predictions.

    Parameters
    ----------
    predictor : predicts the run
    run : the run's folder, or the trace
    """
    recording, base = predictor.recording, predictor.base
    epoch, indices = middle_batches(recording)
    memory_bytes, spill_bytes = (None, None) if predictor.doubt else _sizes(predictor, base)
    return Findings(
        run=run,
        measured_s=predictor.measured.seconds,
        replayed_s=base.replayed_s,
        unexplained=dict(predictor.unexplained),
        lags=predictor.lags,
        refused=predictor.doubt,
        memory_bytes=memory_bytes,
        spill_bytes=spill_bytes,
        course=Course(
            epoch=epoch,
            batches=indices,
            measured=tuple(course_of(measured_slices(recording), epoch, indices)),
            replayed=tuple(course_of(replayed_slices(base), epoch, indices)),
        ),
    )


def what_if_of(prediction: Prediction, predictor: Predictor) -> WhatIf:
    """Return a prediction by ``predictor`` as a finding."""
    memory_bytes, spill_bytes = _sizes(predictor, prediction)
    return WhatIf(
        change=prediction.change,
        replayed_s=prediction.replayed_s,
        gain=1 - prediction.replayed_s / predictor.base.replayed_s,
        bound_by=bound_of(prediction),
        memory_bytes=memory_bytes,
        spill_bytes=spill_bytes,
        settings=dict(prediction.settings),
        note=prediction.note,
    )


def bound_of(prediction: Prediction) -> str:
    """Return the largest part of a predicted epoch, named as in `gloader.replay.stalls`. Pure."""
    epochs = sorted(prediction.replayed.epoch_s)
    # The first epoch counts only if it is the only one, because it includes the start.
    parts = mean_parts(prediction.replayed, tuple(epochs[1:] or epochs))
    return max(parts, key=lambda name: parts[name])


def _sizes(predictor: Predictor, prediction: Prediction) -> tuple[int | None, int | None]:
    """Return a predicted loader's memory and disk bytes, or None if the batches cannot be sampled again."""
    try:
        return predictor.memory_bytes(prediction), predictor.spill_bytes(prediction)
    except GloaderError:
        return None, None


# The differential runs: each run's key in ``verified``, and its name.
VERIFYING_RUNS: Final = {"compute_s": "computing alone", "warm_s": "all in memory", "cold_s": "as recorded"}
# Shares of an epoch. The lines on the screen leave out smaller values. The tables have all values.
_LEAST_SHARE: Final = 0.005  # for the parts and stalls
_LEAST_UNEXPLAINED: Final = 0.01  # for the differences between measured and replayed stages
_LEAST_LAGS: Final = 0.02  # for the time without use of a recorded resource
# The words for an epoch's parts, after "bound by", and for the resources and threads of a floor.
_BOUNDS: Final = {
    "sample": "sampling",
    "inspect": "planning the cache",
    "read": "reads of the SSD",
    "sweep": "sweeps over the SSD",
    "gather": "gathering",
    "transfer": "copies to the device",
    "compute": "computing",
    "pause": "the work of the loop between epochs",
    "waiting for cores": "too few cores",
    "start": "its start",
}
_RESOURCES: Final = {
    "cpu": "the cores",
    "disk": "the SSD",
    "spill": "the spill disk",
    "link": "the link to the device",
    "device": "the device",
    "network": "the network",
    "sample threads": "the sampling threads",
}


def lines_of(findings: Findings) -> dict[str, str]:
    """Return the findings without what-ifs, as one line of text for each heading."""
    epoch = findings.replayed_s
    lines = {
        "measured": f"{format_exact_seconds(findings.measured_s)} an epoch",
        "replayed": f"{format_exact_seconds(epoch)} ({signed(epoch / findings.measured_s - 1, digits=1)}); "
        f"unexplained: {unexplained_words(findings.unexplained)}{lag_words(findings.lags)}",
    }
    if findings.refused:
        lines["nothing predicted"] = findings.refused
    else:
        lines["where an epoch goes"] = _listed(findings.parts, epoch) or "no notable part"
        lines["stalls"] = _listed(findings.stalls, epoch) or "no notable stall"
    if findings.verified:
        lines["stalls, measured"] = verified_words(findings.verified)
    if findings.floor_s is not None:
        floor, of = format_exact_seconds(findings.floor_s), resource_words(findings.floor_of)
        lines["floor"] = f"{floor}, which {of} alone would take for the same work on this machine"
    return lines


def what_if_words(one: WhatIf) -> str:
    """Return the text for a predicted epoch: its seconds, their change, and its largest part."""
    found = f"{format_exact_seconds(one.replayed_s)} ({signed(-one.gain)}), bound by {bound_words(one.bound_by)} then"
    return f"{found}; {one.note}" if one.note else found


def no_help_words(findings: Findings) -> str:
    """Return the text for an analysis without helpful changes."""
    tried = ", ".join(one.change for one in findings.what_if)
    return f"no tried change saves {LEAST_GAIN:.0%} of an epoch" + (f" ({tried})" if tried else "")


def unexplained_words(unexplained: Mapping[str, float]) -> str:
    """Return the text for the differences between measured and replayed stages, largest first."""
    found = sorted(
        (item for item in unexplained.items() if item[0] != EPOCH and abs(item[1]) >= _LEAST_UNEXPLAINED),
        key=lambda item: -abs(item[1]),
    )
    return (
        ", ".join(f"{name} {share:+.0%}" for name, share in found) or f"no stage by {_LEAST_UNEXPLAINED:.0%}"
    )


def lag_words(lags: float) -> str:
    """Return the text for an epoch's share without use of any recorded resource, or "" if it is small."""
    if lags < _LEAST_LAGS:
        return ""
    return (
        f"; {lags:.0%} is waiting that the recording does not explain: it is kept as it is in every what-if"
    )


def bound_words(part: str) -> str:
    """Return the text for an epoch's part."""
    return _BOUNDS.get(part, part)


def resource_words(resource: str) -> str:
    """Return the text for a machine's resource."""
    return _RESOURCES.get(resource, f"the {resource}")


def verified_words(verified: Mapping[str, float]) -> str:
    """Return the text for the stalls that differential runs measured, with these runs' seconds."""
    took = ", ".join(
        f"{name} {format_exact_seconds(verified[key])}"
        for key, name in VERIFYING_RUNS.items()
        if key in verified
    )
    stalls = ", ".join(
        f"{name} {format_exact_seconds(verified[name])}"
        for name in ("preparation", "fetch")
        if name in verified
    )
    if not stalls:
        return f"none: the dataset does not fit in memory ({took})"
    least = min(verified["preparation"], verified["fetch"])
    is_disturbed = least < -LEAST_GAIN * verified["cold_s"]
    doubt = (
        "; a stall below 0 shows how large the error of each stall may be: measure while nothing else runs"
    )
    return f"{stalls} ({took}){doubt if is_disturbed else ''}"


def signed(share: float, *, digits: int = 0) -> str:
    """Return a change as a percentage with its sign. Zero has no sign."""
    text = f"{share:+.{digits}%}"
    return text if float(text[:-1]) else text[1:]


def _listed(parts: Mapping[str, float], epoch: float) -> str:
    """Return the parts with their seconds and shares of the ``epoch`` (seconds), largest first, without small parts."""
    return ", ".join(
        f"{name} {format_exact_seconds(seconds)} ({seconds / epoch:.0%})"
        for name, seconds in sorted(parts.items(), key=lambda part: -part[1])
        if seconds >= _LEAST_SHARE * epoch
    )
