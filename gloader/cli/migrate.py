"""`gloader migrate`: the migration of a DGL or PyG script to gloader.

Each name that the script uses from DGL or PyG gets a verdict. The name maps (gloader has the same name), stays (the
script keeps it), changes, is not needed, or does not map. A finding is one name with its verdict, its line and a text.
`gloader.bridges.migrate` makes the findings. This module shows them, and the changed lines as a diff.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from gloader.cli.failure import EXIT_FAILURE, EXIT_OK
from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, cell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.bridges.migrate.draft import Finding
    from gloader.bridges.migrate.migration import Migration

# Maximum number of line numbers in a row of the table.
_MAX_LINES = 3


def migrate(
    script: Path,
    /,
    *,
    diff: Annotated[bool, Parameter(negative="")] = False,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> int:
    """Read a DGL or PyG script; show the calls that map, those that do not and why, and the changed lines as a diff.

    The script is not executed, and nothing is written. `gloader migrate SCRIPT --diff | patch SCRIPT` changes it. Exits
    with status 1 when something does not map.

    Parameters
    ----------
    script
        A Python script.
    diff
        Write the diff alone, as `patch -p0` and `git apply -p0` take it.
    """
    from gloader.bridges.migrate.migration import migrate_file

    screen = Screen.open(is_json=output.json)
    migration = migrate_file(script)
    if output.json:
        screen.result(migration.to_json())
    elif diff:
        # The diff bypasses the console: it is bytes for `patch`, with the script's line ends.
        sys.stdout.buffer.write(migration.diff.encode())
        sys.stdout.flush()
    else:
        _show(screen, migration)
    return EXIT_OK if migration.is_complete else EXIT_FAILURE


def _show(screen: Screen, migration: "Migration") -> None:
    """Write the names by verdict, further steps, and the diff."""
    by_verdict: dict[str, list[Finding]] = {}
    for finding in migration.findings:
        by_verdict.setdefault(finding.verdict, []).append(finding)
    _modules(screen, "maps, by the same name", by_verdict.get("maps", ()))
    _modules(screen, "stays", by_verdict.get("stays", ()))
    _list(screen, "changes", by_verdict.get("changes", ()))
    _list(screen, "is not needed", by_verdict.get("ignored", ()))
    _list(screen, "does not map", by_verdict.get("missing", ()))
    _list(screen, "look at this", by_verdict.get("perhaps missing", ()))
    for page in dict.fromkeys(finding.page for finding in migration.findings if finding.page):
        screen.say(f"{page} says what to do about what does not map\n")
    if migration.steps:
        screen.say("to do once, so that features come from the SSD:")
        for step in migration.steps:
            screen.say(f"  {step.where}\n    {step.command}")
        screen.say('a loader keeps them in memory as far as its memory_budget=, such as "8GB", allows\n')
    for name in migration.others:
        screen.say(f"the script imports another: gloader migrate {Path(migration.name).parent / name}\n")
    screen.say(migration.diff or "no line changes")
    if migration.diff:
        screen.say(
            f"nothing was written; to change the script: gloader migrate {migration.name} --diff | patch "
            f"{migration.name}"
        )


def _modules(screen: Screen, title: str, findings: "Iterable[Finding]") -> None:
    """Write a line for each module with the names that the script uses from it.

    In findings with these verdicts, ``text`` is the module or the class that has the name.
    """
    names: dict[str, set[str]] = {}  # the names by module
    for finding in findings:
        names.setdefault(finding.text, set()).add(finding.name.rpartition(".")[2])
    _write(screen, title, [("", f"{text}: {', '.join(sorted(names[text]))}") for text in sorted(names)])


def _list(screen: Screen, title: str, findings: "Iterable[Finding]") -> None:
    """Write a row for each explanation (``text``): line numbers, the explained names, and the explanation."""
    lines: dict[str, set[int]] = {}  # by explanation
    names: dict[str, dict[str, None]] = {}  # by explanation; the inner dictionary is an ordered set
    for finding in findings:
        lines.setdefault(finding.text, set()).add(finding.line)
        names.setdefault(finding.text, {})[finding.name] = None
    _write(screen, title, [(_numbers(lines[text]), f"{', '.join(names[text])}: {text}") for text in lines])


def _numbers(lines: set[int]) -> str:
    """Return the first line numbers as text."""
    first = sorted(lines)[:_MAX_LINES]
    return ", ".join(map(str, first)) + (", ..." if len(lines) > len(first) else "")


def _write(screen: Screen, title: str, rows: list[tuple[str, str]]) -> None:
    """Write a table with two columns, or nothing without ``rows``."""
    if not rows:
        return
    table = Table(
        title=cell(title), title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0),
        show_header=False,
    )  # fmt: skip
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for left, right in rows:
        table.add_row(cell(left), cell(right))
    screen.console.print(table)
    screen.say("")
