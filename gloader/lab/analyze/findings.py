"""The findings of an analysis as they are written: what the screen, the page and `analysis.json` show is one value."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import MALFORMED
from gloader.errors import FormatError, GloaderError
from gloader.lab.analyze.lanes import Slice, course_of, measured_slices, middle_batches, replayed_slices
from gloader.lab.analyze.result import CurvePoint
from gloader.replay.path import mean_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gloader.lab.analyze.result import Analysis, Prediction
    from gloader.replay.recording import Recording

FINDINGS_VERSION: Final = 1
LEAST_GAIN: Final = 0.02  # of an epoch: a change that saves less is not worth a line
EPOCH: Final = "epoch"  # of ``unexplained``, the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What would become of an epoch with some changes."""

    change: str  # in words, as asked
    replayed_s: float
    gain: float  # the share of the replayed epoch that it saves; below 0: it costs time
    bound_by: str  # what most of the epoch would go to, as `gloader.replay.path` names it
    memory_bytes: int | None  # that its loader plans for; None: its batches cannot be sampled again
    spill_bytes: int | None  # of disk, likewise
    settings: dict[str, Any]  # keywords of `gloader.Loader` that make the change
    note: str

    @property
    def helps(self) -> bool:
        """Whether it saves anything to speak of."""
        return self.gain >= LEAST_GAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What every lane did while some batches went from sampling to computation; times count from there."""

    epoch: int
    batches: tuple[int, ...]  # indices
    measured: tuple[Slice, ...]
    replayed: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Where an epoch goes and what would help, for files and for people."""

    run: str
    measured_s: float  # of an epoch
    replayed_s: float
    unexplained: dict[str, float]  # measured over replayed, less 1, by stage; "epoch" of the whole
    lags: float  # the share of an epoch in which nothing that was recorded is used
    refused: str  # why nothing is predicted; empty: the replay is trusted, and the rest is there
    parts: dict[str, float]  # seconds of an epoch, by what they were spent on
    stalls: dict[str, float]
    floor_s: float | None  # None: nothing is predicted
    floor_of: str
    was_asked: bool  # whether ``what_if`` is what the user asked for, in that order
    what_if: tuple[WhatIf, ...]
    curve: tuple[CurvePoint, ...]
    knee_bytes: int | None
    memory_bytes: int | None  # of the run as it was, likewise
    spill_bytes: int | None
    course: Course
    verified: dict[str, float] = field(default_factory=dict)  # see `gloader.lab.analyze.verify`

    @property
    def is_trusted(self) -> bool:
        """Whether anything is predicted."""
        return not self.refused

    @property
    def shown(self) -> tuple[WhatIf, ...]:
        """What was asked for, or what helps, the fastest first."""
        if self.was_asked:
            return self.what_if
        return tuple(sorted((one for one in self.what_if if one.helps), key=lambda one: one.replayed_s))

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``analysis.json``."""
        course = {
            name: [_slice_json(one) for one in getattr(self.course, name)]
            for name in ("measured", "replayed")
        }
        return {
            "version": FINDINGS_VERSION,
            **asdict(self),
            "trusted": self.is_trusted,
            "course": {"epoch": self.course.epoch, "batches": list(self.course.batches), **course},
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Findings:
        """Parse a result of `to_json`.

        Raises
        ------
        FormatError
            It is of another version, or malformed.
        """
        try:
            values = dict(body)
            if values.pop("version") != FINDINGS_VERSION:
                raise FormatError(
                    f"the analysis has version {body['version']!r}, this build reads version {FINDINGS_VERSION}; make "
                    "it again with gloader analyze"
                )
            del values["trusted"]
            values["what_if"] = tuple(WhatIf(**one) for one in values["what_if"])
            values["curve"] = tuple(CurvePoint(**point) for point in values["curve"])
            values["course"] = _course_from(values["course"])
            return cls(**values)
        except MALFORMED as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(
                f"the analysis is malformed: {error!r}; make it again with gloader analyze"
            ) from error


def findings_of(
    analysis: Analysis,
    recording: Recording,
    *,
    memory_bytes: Callable[[Prediction], int],
    spill_bytes: Callable[[Prediction], int],
) -> Findings:
    """Return what an analysis found; of one that is not to be trusted what was measured alone, and why.

    Parameters
    ----------
    analysis : of a run
    recording : of the same
    memory_bytes, spill_bytes : return what the loader of a prediction would take; may raise GloaderError
    """
    base = analysis.base
    epoch, indices = middle_batches(recording)
    is_trusted = not analysis.doubt
    return Findings(
        run=analysis.run,
        measured_s=analysis.measured_s,
        replayed_s=base.replayed_s,
        unexplained=dict(analysis.unexplained),
        lags=analysis.lags,
        refused=analysis.doubt,
        parts=dict(analysis.parts) if is_trusted else {},
        stalls=dict(analysis.stalls) if is_trusted else {},
        floor_s=analysis.floor_s if is_trusted else None,
        floor_of=analysis.floor_of if is_trusted else "",
        was_asked=analysis.was_asked,
        what_if=tuple(
            WhatIf(
                change=one.change,
                replayed_s=one.replayed_s,
                gain=1 - one.replayed_s / base.replayed_s,
                bound_by=bound_of(one),
                memory_bytes=_known(memory_bytes, one),
                spill_bytes=_known(spill_bytes, one),
                settings=dict(one.settings),
                note=one.note,
            )
            for one in analysis.what_if
        )
        if is_trusted
        else (),
        curve=analysis.curve,
        knee_bytes=analysis.knee_bytes,
        memory_bytes=_known(memory_bytes, base) if is_trusted else None,
        spill_bytes=_known(spill_bytes, base) if is_trusted else None,
        course=Course(
            epoch=epoch,
            batches=indices,
            measured=tuple(course_of(measured_slices(recording), epoch, indices)),
            replayed=tuple(course_of(replayed_slices(base), epoch, indices)),
        ),
        verified=dict(analysis.verified),
    )


def bound_of(prediction: Prediction) -> str:
    """Return what most of an epoch of a prediction goes to, as `gloader.replay.path` names it. Pure."""
    epochs = sorted(prediction.replayed.epoch_s)
    parts = mean_parts(prediction.replayed, tuple(epochs[1:] or epochs))
    return max(parts, key=lambda name: parts[name])


def _known(size: Callable[[Prediction], int], prediction: Prediction) -> int | None:
    """Return a size; None where it would follow from batches that cannot be sampled again."""
    try:
        return size(prediction)
    except GloaderError:
        return None


def _slice_json(one: Slice) -> dict[str, Any]:
    # Notes are for the Perfetto file, which has all batches.
    return {name: value for name, value in one._asdict().items() if name != "notes"}


def _course_from(body: Mapping[str, Any]) -> Course:
    measured, replayed = (
        tuple(Slice(**one, notes={}) for one in body[name]) for name in ("measured", "replayed")
    )
    return Course(
        epoch=int(body["epoch"]), batches=tuple(body["batches"]), measured=measured, replayed=replayed
    )
