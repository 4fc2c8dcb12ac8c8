"""What a page says of training runs: one alone, or several beside each other. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gloader.core.units import format_bytes
from gloader.lab.report.page import Section
from gloader.lab.report.run_charts import charts_of, epoch_parts
from gloader.lab.report.run_facts import circumstances_of, facts_of, table_of, waits_of
from gloader.lab.report.run_groups import differences, grouped, with_own_names
from gloader.lab.report.run_overview import each_seed, overview

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.lab.report.run_groups import RunGroup
    from gloader.lab.report.training import Training

_NOTHING: Final = "nothing: settings, versions and machine are the same"


def run_section(run: Training) -> Section:
    """Return the section of a run that stands alone."""
    section = _own_section(run, said=())
    return replace(section, charts=(*section.charts, *charts_of(grouped([run]))))


def beside(sections: Sequence[Section]) -> list[Section]:
    """Return ``sections`` with one before them that shows their runs together; one run stays alone."""
    runs = with_own_names([section.run for section in sections if section.run is not None])
    if len(runs) < 2:
        return list(sections)
    together, own = _together(runs), iter(runs)
    # Once is enough: what is shown of all is left out of the runs' own sections.
    return [
        together,
        *(
            section if section.run is None else _own_section(next(own), said=together.facts)
            for section in sections
        ),
    ]


def _together(runs: Sequence[Training]) -> Section:
    groups = grouped(runs)
    differing, seeds = differences(groups), each_seed(groups)
    first, *others = [circumstances_of(run) for run in runs]
    return Section(
        title="Runs beside each other",
        source=f"{len(runs)} runs, each of which has a section below",
        facts=tuple(fact for fact in first if all(fact in other for other in others)),
        tables=(overview(groups),),
        named_tables=()
        if differing is None
        else (("Settings, versions and machines that differ", differing),),
        folded_tables=() if seeds is None else (("Each seed", seeds),),
        notes=_notes(groups, has_differences=differing is not None),
        charts=tuple(charts_of(groups)),
    )


def _notes(groups: Sequence[RunGroup], *, has_differences: bool) -> tuple[str, ...]:
    """Return what a reader should know who compares the runs."""
    runs = [run for group in groups for run in group.runs]
    notes = [
        f"without a config.yaml, so that its settings are not known: {run.name}"
        for run in runs
        if not run.settings
    ]
    notes += [
        f"above its memory budget: {run.name}, by {format_bytes(run.peak_bytes - run.budget_bytes)}"
        for run in runs
        if run.peak_bytes and run.budget_bytes and run.peak_bytes > run.budget_bytes
    ]
    if not has_differences and all(run.settings for run in runs):
        notes.append(f"the runs differ in {'their seed alone' if len(groups) == 1 else _NOTHING}")
    return tuple(notes)


def _own_section(run: Training, *, said: Sequence[tuple[str, str]]) -> Section:
    parts = epoch_parts(run)
    if run.epochs:
        notes: tuple[str, ...] = ("waited for\n" + "\n".join(waits_of(run)),)
    else:
        notes = ("no epoch was finished",)
    return Section(
        title=f"Training: {run.name}",
        source=run.source,
        run=run,
        facts=(*facts_of(run), *(fact for fact in circumstances_of(run) if fact not in said)),
        charts=() if parts is None else (parts,),
        folded_tables=(("Each epoch", table_of(run)),) if run.epochs else (),
        notes=notes,
    )
