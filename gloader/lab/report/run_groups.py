"""Runs beside each other: which differ in their seed alone, and in what the others differ. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from gloader.lab.report.run_facts import circumstances_of
from gloader.lab.report.text_table import TextTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.lab.report.training import Training

_MOST_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs of the same settings, with different seeds; or one run."""

    name: str
    style: int  # of its lines
    runs: tuple[Training, ...]


def with_own_names(runs: Sequence[Training]) -> list[Training]:
    """Return ``runs`` with names that tell them apart: as much of their paths as that takes."""
    named = list(runs)
    for parts in range(2, 5):
        count = Counter(run.name for run in named)
        named = [
            run.named("/".join(run.source.rstrip("/").split("/")[-parts:])) if count[run.name] > 1 else run
            for run in named
        ]
    count = Counter(run.name for run in named)
    # The same run twice, for whatever reason.
    return [run.named(f"{run.name} ({i + 1})") if count[run.name] > 1 else run for i, run in enumerate(named)]


def grouped(runs: Sequence[Training]) -> list[RunGroup]:
    """Return the groups of ``runs``, in the order of their first run; runs without settings stand alone."""
    members: dict[object, list[Training]] = {}
    for place, run in enumerate(runs):
        known = {"metric": run.metric, **run.settings, **_surroundings(run)}
        key = frozenset(known.items())
        # Of one seed twice, the second is a repetition, whose figures are no other draw; and of a run without
        # settings no seed is known.
        seeds = {other.seed for other in members.get(key, [])}
        members.setdefault((key, place) if run.seed in seeds else key, []).append(run)
    return [
        RunGroup(name=_group_name(group), style=style, runs=tuple(group))
        for style, group in enumerate(members.values())
    ]


def differing_settings(groups: Sequence[RunGroup]) -> list[dict[str, str]]:
    """Return the settings of each group in which ``groups`` differ, and what was measured where that differs.

    Of a run without ``config.yaml`` nothing is known, and it differs in nothing.
    """
    columns = [
        {**group.runs[0].settings, "metric": group.runs[0].metric} if group.runs[0].settings else {}
        for group in groups
    ]
    known = [column for column in columns if column]
    names = [name for name in _all_names(known) if len({column.get(name) for column in known}) > 1]
    return [{name: column[name] for name in names if name in column} for column in columns]


def differences(groups: Sequence[RunGroup]) -> TextTable | None:
    """Return a row for each setting, version and machine in which ``groups`` differ; None where they do in nothing.

    What a run that is not finished ran on is not known, and differs in nothing.
    """
    told = differing_settings(groups)
    ran_on = [_surroundings(group.runs[0]) for group in groups]
    seeds = [{"seed": ", ".join(run.seed for run in group.runs)} for group in groups]
    # Of a setting, to be without it is a difference too.
    names = [(name, told) for name in _all_names(told)]
    names += [
        (name, columns)
        for columns in (ran_on, seeds)
        for name in _all_names(columns)
        if len({column[name] for column in columns if column.get(name)}) > 1
    ]
    rows = tuple((name, *(shortened(column.get(name, "")) for column in columns)) for name, columns in names)
    return TextTable(header=("", *(group.name for group in groups)), rows=rows) if rows else None


def _all_names(columns: Sequence[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for column in columns for name in column))


def shortened(text: str) -> str:
    """Return ``text`` as far as a cell has room for it."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def _group_name(runs: Sequence[Training]) -> str:
    if len(runs) == 1:
        return runs[0].name
    letters = takewhile(lambda column: len(set(column)) == 1, zip(*(run.name for run in runs), strict=False))
    common = "".join(column[0] for column in letters).rstrip("-_./ 0123456789")
    return f"{common or runs[0].name + ', ...'} ({len(runs)} seeds)"


def _surroundings(run: Training) -> dict[str, str]:
    """Return the versions and the machine of a run, as far as they are known."""
    versions = {f"version of {name}": str(text) for name, text in run.result.get("versions", {}).items()}
    return {**versions, **{name: text for name, text in circumstances_of(run) if name == "machine"}}
