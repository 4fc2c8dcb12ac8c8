"""A command's output: text for the user, and JSON on stdout for programs with ``--json``.

Every command opens a `Screen`. `Screen.say` writes text, `Screen.result` the JSON. `facts`, `numbers` and `figures`
make tables, and `PacedLines` writes the progress of long work. The console is rich's writer to stdout or stderr. Text
from data may contain control characters, which `printable` makes visible.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Group, Parameter
from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gloader.core.flag_values import SWITCH
from gloader.core.malformed import printable, printable_line

if TYPE_CHECKING:
    from gloader.lab.report.page import TextTable


_LINE_EVERY_S: Final = 4.0  # shortest time between two progress lines, in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """One command's output, for the user and for programs."""

    # Receives tables, bars and lines. It writes to stderr if stdout carries JSON.
    console: Console
    is_json: bool  # True with the flag --json

    @classmethod
    def open(cls, *, is_json: bool) -> "Screen":
        """Return a command's screen, with or without ``--json``."""
        console = make_console(stderr=is_json)
        show_logs(console)
        return cls(console=console, is_json=is_json)

    @property
    def has_bars(self) -> bool:
        """True if the console is a terminal that can move bars. Otherwise progress is written as plain lines."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def say(self, text: str) -> None:
        """Write lines for the user."""
        self.console.print(Text(printable(text)), soft_wrap=True)

    def result(self, values: Mapping[str, object]) -> None:
        """Write ``values`` as JSON to stdout if --json is set, otherwise nothing."""
        if self.is_json:
            # The text bypasses the console, which would wrap and colour it. The flush sends it to a pipe at once.
            sys.stdout.write(json.dumps(values, indent=2, default=str) + "\n")
            sys.stdout.flush()


class PacedLines:
    """Progress lines for logs of long work, one every few seconds. On a terminal bars move instead.

    Parameters
    ----------
    screen : the command's screen. The first line comes a few seconds after this object is made
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._written = time.monotonic()  # time of the last line

    def say(self, text: str) -> None:
        """Write a line, unless the last line is recent."""
        now = time.monotonic()
        if not self._screen.has_bars and now - self._written >= _LINE_EVERY_S:
            self._screen.say(text)
            self._written = now


def make_console(*, stderr: bool, quiet: bool = False) -> Console:
    """Return a console that prints text unchanged: ``[bold]`` is no markup, and ``:smile:`` is no picture.

    Parameters
    ----------
    stderr : whether to write to stderr instead of stdout
    quiet : whether to write nothing
    """
    return _Console(stderr=stderr, quiet=quiet, highlight=False, emoji=False, markup=False)


class _Console(Console):
    """A console that omits the padding of tables in files and pipes."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        text = super()._render_buffer(buffer)
        return text if self.is_terminal else re.sub(r" +(?=\n)", "", text)


def cell(text: str, style: str = "") -> Text:
    """Return one line of text for a table. The text may come from data. Pure."""
    return Text(printable_line(text), style)


class _LogView(logging.Handler):
    """Writes the library's log to the console that shows the bars, so that lines and bars do not mix."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message on its own line."""
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        self._console.print(Text(printable(record.getMessage())), style=style, soft_wrap=True)


def show_logs(console: Console | None) -> None:
    """Show the library's log only on ``console``, or nowhere if it is None."""
    # The handler of an earlier command in this process is removed, because it would write every line again.
    logger = logging.getLogger("gloader")
    for handler in [handler for handler in logger.handlers if isinstance(handler, _LogView)]:
        logger.removeHandler(handler)
    if console is not None:
        logger.addHandler(_LogView(console))
        logger.setLevel(logging.INFO)


def facts(rows: Mapping[str, str], *, title: str | None = None) -> Table:
    """Return a two-column table of names and values, which may come from data. Pure."""
    table = Table(
        title=None if title is None else cell(title),
        show_header=False,
        box=None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(cell(name), cell(value))
    return table


def numbers(*headings: str, first: str | None = None) -> Table:
    """Return an empty table with right-aligned columns for numbers. Pure.

    Parameters
    ----------
    headings : the columns' headings
    first : heading of a text column before the others; None means no such column
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    if first is not None:
        table.add_column(first, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def figures(table: "TextTable") -> Table:
    """Return ``table`` for the console. The first column names the row, the others are right-aligned. Pure."""
    shown = Table(box=None, pad_edge=False)
    for column, name in enumerate(table.header):
        shown.add_column(cell(name, "dim"), justify="right" if column else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*map(cell, row))
    return shown


@Parameter(name="*", group=Group("Output", sort_key=99))
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    """The output flags of every command."""

    json: Annotated[bool, SWITCH] = False
    """Write one JSON document to stdout; messages and progress go to stderr."""
    debug: Annotated[bool, SWITCH] = False
    """Show the traceback of an error."""


DEFAULT_OUTPUT = OutputFlags()
