"""`gloader doctor`: checks of this machine, as a table."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.views.screen import Screen, cell
from gloader.core.paths import home_dir

if TYPE_CHECKING:
    from gloader.cli.machine_check import Finding

_MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("problem", "bold red")}


def doctor(*, path: Path | None = None, output: OutputFlags = DEFAULT_OUTPUT) -> int:
    """Show what this machine has and what to fix. The disk is probed for about a second.

    What the disk can do is remembered, so that features on it are read accordingly.
    Exits with status 1 when something makes gloader unusable.

    Parameters
    ----------
    path
        Folder whose disk is probed; the one that holds prepared sources when not given.
    """
    from gloader.cli.machine_check import diagnose

    screen = Screen.open(is_json=output.json)
    findings = diagnose(path or home_dir())
    is_usable = all(finding.severity != "problem" for finding in findings)
    if not output.json:
        screen.console.print(_table(findings))
        screen.say(
            "everything gloader needs is here" if is_usable else "gloader cannot run: see the problems above"
        )
    screen.result({"usable": is_usable, "findings": [asdict(finding) for finding in findings]})
    return 0 if is_usable else 1


def _table(findings: "list[Finding]") -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        word, style = _MARKS[finding.severity]
        table.add_row(cell(word, style), cell(finding.name), cell(finding.value))
        if finding.fix:
            table.add_row("", "", cell(f"-> {finding.fix}", "yellow"))
    return table
