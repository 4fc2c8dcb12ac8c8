"""The findings of an analysis in words: the lines that the screen and the page share. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.core.units import format_exact_seconds
from gloader.lab.analyze.findings import EPOCH, LEAST_GAIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.lab.analyze.findings import Findings, WhatIf

# Of an epoch: what is less is named in no line, and in every table.
_LEAST_SHARE: Final = 0.005
_LEAST_UNEXPLAINED: Final = 0.01
_LEAST_LAGS: Final = 0.02
_BOUNDS: Final = {
    "sample": "sampling",
    "inspect": "planning the cache",
    "read": "reads of the SSD",
    "sweep": "sweeps over the SSD",
    "gather": "gathering",
    "transfer": "copies to the device",
    "compute": "computing",
    "pause": "what the loop does beside the epochs",
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
    """Return what was found, a line for each heading, without the what-ifs."""
    epoch = findings.replayed_s
    lines = {
        "measured": f"{format_exact_seconds(findings.measured_s)} an epoch",
        "replayed": f"{format_exact_seconds(epoch)} ({signed(epoch / findings.measured_s - 1, digits=1)}); "
        f"unexplained: {unexplained_words(findings.unexplained)}{lag_words(findings.lags)}",
    }
    if findings.refused:
        lines["nothing predicted"] = findings.refused
    else:
        lines["where an epoch goes"] = _listed(findings.parts, epoch) or "nothing to speak of"
        lines["stalls"] = _listed(findings.stalls, epoch) or "none to speak of"
    if findings.verified:
        lines["stalls, measured"] = verified_words(findings.verified)
    if findings.floor_s is not None:
        floor, of = format_exact_seconds(findings.floor_s), resource_words(findings.floor_of)
        lines["floor"] = f"{floor}, which {of} alone would take for the same work on this machine"
    return lines


def what_if_words(one: WhatIf) -> str:
    """Return what would become of an epoch: its seconds, the change of them, what it is bound by then."""
    found = f"{format_exact_seconds(one.replayed_s)} ({signed(-one.gain)}), bound by {bound_words(one.bound_by)} then"
    return f"{found}; {one.note}" if one.note else found


def no_help_words(findings: Findings) -> str:
    """Return what stands where nothing helps."""
    tried = ", ".join(one.change for one in findings.what_if)
    return f"nothing that was tried saves {LEAST_GAIN:.0%} of an epoch" + (f" ({tried})" if tried else "")


def unexplained_words(unexplained: Mapping[str, float]) -> str:
    """Return by how much the stages took longer, or less, than in the replay, the worst first."""
    found = sorted(
        (item for item in unexplained.items() if item[0] != EPOCH and abs(item[1]) >= _LEAST_UNEXPLAINED),
        key=lambda item: -abs(item[1]),
    )
    return (
        ", ".join(f"{name} {share:+.0%}" for name, share in found) or f"no stage by {_LEAST_UNEXPLAINED:.0%}"
    )


def lag_words(lags: float) -> str:
    """Return the share of an epoch in which nothing that was recorded is used; nothing where it is small."""
    if lags < _LEAST_LAGS:
        return ""
    return (
        f"; {lags:.0%} is waiting that the recording does not explain: it is kept as it is in every what-if"
    )


def bound_words(part: str) -> str:
    """Return what a part of an epoch is, in a sentence."""
    return _BOUNDS.get(part, part)


def resource_words(resource: str) -> str:
    """Return what people call a resource of a machine."""
    return _RESOURCES.get(resource, f"the {resource}")


def verified_words(verified: Mapping[str, float]) -> str:
    """Return the stalls that differential runs measured, and what they are differences of."""
    runs = {"compute_s": "computing alone", "warm_s": "all in memory", "cold_s": "as recorded"}
    took = ", ".join(
        f"{name} {format_exact_seconds(verified[key])}" for key, name in runs.items() if key in verified
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
    doubt = "; what is below 0 says how far off the others may be: measure while nothing else runs"
    return f"{stalls} ({took}){doubt if is_disturbed else ''}"


def signed(share: float, *, digits: int = 0) -> str:
    """Return a change as a percentage with its sign; without one where it is none at all."""
    text = f"{share:+.{digits}%}"
    return text if float(text[:-1]) else text[1:]


def _listed(parts: Mapping[str, float], epoch: float) -> str:
    return ", ".join(
        f"{name} {format_exact_seconds(seconds)} ({seconds / epoch:.0%})"
        for name, seconds in sorted(parts.items(), key=lambda part: -part[1])
        if seconds >= _LEAST_SHARE * epoch
    )
