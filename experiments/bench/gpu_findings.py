"""The findings of `gpu_check.py`: each result with its required value and its prediction without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "wrong", "failed", "short of it", "for comparison", "not checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFinding:
    """One thing that was checked or measured."""

    name: str
    verdict: Verdict
    value: float | None = None
    unit: str = ""
    must_be: str = ""
    predicted: str = ""
    note: str = ""
    part: str = ""  # of `gpu_check.py`

    @property
    def measured(self) -> str:
        """The value and what there is to say about it, in one line."""
        value = "" if self.value is None else f"{self.value:,.4g} {self.unit}".strip()
        note = self.note.strip().splitlines()[-1] if self.note.strip() else ""  # of a traceback the error
        return f"{value} ({note})" if value and note else value or note

    @property
    def row(self) -> str:
        """The finding as a row of a Markdown table."""
        cells = (self.name, self.measured, self.must_be, self.predicted, self.verdict)
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"

    @property
    def line(self) -> str:
        """The finding as a line of text."""
        beside = (("must be", self.must_be), ("predicted", self.predicted))
        return f"{self.verdict:>14}  {self.name}: {self.measured}" + "".join(
            f"; {what} {text}" for what, text in beside if text
        )


def bounded(
    name: str,
    value: float,
    unit: str,
    *,
    least: float | None = None,
    most: float | None = None,
    is_right: bool = True,
    predicted: str = "",
    note: str = "",
) -> GpuFinding:
    """Return a measurement beside what it must be at least, or at most.

    Parameters
    ----------
    name : what was measured
    value : in ``unit``
    unit : of value and bounds
    least, most : bounds; one of them
    is_right : beyond them it is slow, not wrong
    predicted : before any GPU was at hand
    note : goes with the value
    """
    keeps = (least is None or value >= least) and (most is None or value <= most)
    must_be = f"at least {least:g} {unit}" if least is not None else f"at most {most:g} {unit}"
    beyond: Verdict = "short of it" if is_right else "wrong"
    return GpuFinding(
        name=name,
        verdict="ok" if keeps else beyond,
        value=value,
        unit=unit,
        must_be=must_be.strip(),
        predicted=predicted,
        note=note,
    )


def required(name: str, is_met: bool, must_be: str, *, note: str = "", predicted: str = "") -> GpuFinding:
    """Return whether something is as it must be.

    Parameters
    ----------
    name : what was looked at
    is_met : whether it is
    must_be : what
    note : what was found
    predicted : before any GPU was at hand
    """
    verdict: Verdict = "ok" if is_met else "wrong"
    return GpuFinding(name=name, verdict=verdict, must_be=must_be, note=note, predicted=predicted)


def compared(name: str, is_same: bool, note: str = "") -> GpuFinding:
    """Return whether two results are the same bits."""
    found = note or ("the same bits" if is_same else "other bits")
    return required(name, is_same, "the same bits as the CPU", note=found)


def reported(
    name: str, value: float | None, unit: str = "", *, note: str = "", predicted: str = ""
) -> GpuFinding:
    """Return what has no bound.

    Parameters
    ----------
    name : what was measured
    value : None: the note says it
    unit : of the value
    note : goes with it
    predicted : before any GPU was at hand
    """
    return GpuFinding(
        name=name, verdict="for comparison", value=value, unit=unit, note=note, predicted=predicted
    )


def not_checked(name: str, why: str = "there is no GPU", *, must_be: str = "") -> GpuFinding:
    """Return that something could not be checked."""
    return GpuFinding(name=name, verdict="not checked", note=why, must_be=must_be)
