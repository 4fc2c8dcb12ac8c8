"""`gloader migrate`: the migration of a DGL or PyG script."""

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

# Most line numbers shown for a name.
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
    found = migrate_file(script)
    if output.json:
        screen.result(found.to_json())
    elif diff:
        # The diff bypasses the console: it is bytes for `patch`, with the script's line ends.
        sys.stdout.buffer.write(found.diff.encode())
        sys.stdout.flush()
    else:
        _show(screen, found)
    return EXIT_OK if found.is_complete else EXIT_FAILURE


def _show(screen: Screen, found: "Migration") -> None:
    of: dict[str, list[Finding]] = {}
    for each in found.findings:
        of.setdefault(each.verdict, []).append(each)
    _places(screen, "maps, by the same name", of.get("maps", ()))
    _places(screen, "stays", of.get("stays", ()))
    _list(screen, "changes", of.get("changes", ()))
    _list(screen, "is not needed", of.get("ignored", ()))
    _list(screen, "does not map", of.get("missing", ()))
    _list(screen, "look at this", of.get("perhaps missing", ()))
    for page in dict.fromkeys(each.page for each in found.findings if each.page):
        screen.say(f"{page} says what to do about what does not map\n")
    if found.steps:
        screen.say("to do once, so that features come from the SSD:")
        for step in found.steps:
            screen.say(f"  {step.where}\n    {step.command}")
        screen.say('a loader keeps them in memory as far as its memory_budget=, such as "8GB", allows\n')
    for name in found.others:
        screen.say(f"the script imports another: gloader migrate {Path(found.name).parent / name}\n")
    screen.say(found.diff or "no line changes")
    if found.diff:
        screen.say(
            f"nothing was written; to change the script: gloader migrate {found.name} --diff | patch {found.name}"
        )


def _places(screen: Screen, title: str, findings: "Iterable[Finding]") -> None:
    """Write the places of names, one per line."""
    names: dict[str, set[str]] = {}
    for each in findings:
        names.setdefault(each.text, set()).add(each.name.rpartition(".")[2])
    _write(screen, title, [("", f"{place}: {', '.join(sorted(names[place]))}") for place in sorted(names)])


def _list(screen: Screen, title: str, findings: "Iterable[Finding]") -> None:
    """Write the verdicts on names after their line numbers. Equal verdicts share a row."""
    lines: dict[str, set[int]] = {}
    names: dict[str, dict[str, None]] = {}
    for each in findings:
        lines.setdefault(each.text, set()).add(each.line)
        names.setdefault(each.text, {})[each.name] = None
    _write(screen, title, [(_numbers(lines[text]), f"{', '.join(names[text])}: {text}") for text in lines])


def _numbers(lines: set[int]) -> str:
    first = sorted(lines)[:_MAX_LINES]
    return ", ".join(map(str, first)) + (", ..." if len(lines) > len(first) else "")


def _write(screen: Screen, title: str, rows: list[tuple[str, str]]) -> None:
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
