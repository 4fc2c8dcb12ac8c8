"""A table of texts, and its two renderings. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A header and rows of the same length; the first column names the row, the others align right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def columns(self, *places: int) -> TextTable:
        """Return the table of some of its columns."""
        header, *rows = (tuple(line[place] for place in places) for line in (self.header, *self.rows))
        return TextTable(header=header, rows=tuple(rows))


def as_markdown(table: TextTable) -> str:
    """Return the table in Markdown."""
    lines = [table.header, ("---", *["---:"] * (len(table.header) - 1)), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGT]?B|[KMG]iB|KB|ms|s|min|[kMG])\b)")


def unbroken(text: str) -> str:
    """Return ``text`` with no-break spaces between numbers and their units."""
    return _UNIT.sub("\u00a0", text)


def as_html(table: TextTable) -> str:
    """Return the table as an HTML element; every text is escaped."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    body = "\n".join(
        f"<tr><th>{escape(name)}</th>"
        + "".join(f"<td>{escape(unbroken(cell))}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in table.rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
