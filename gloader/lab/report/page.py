"""One HTML page with sections, tables and charts that needs no other file.

`render_page` writes the page from its `Section` values. A section has the facts, tables, charts and notes of one run,
or of several runs. A `TextTable` is shown as HTML or as Markdown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from gloader.lab.report.svg import DARK, LIGHT, RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.lab.report.svg import Chart
    from gloader.lab.report.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A header and rows with the same length. The first column names the row, the other columns align right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def columns(self, *places: int) -> TextTable:
        """Return a table with the columns at the indices ``places``."""
        header, *rows = (tuple(line[place] for place in places) for line in (self.header, *self.rows))
        return TextTable(header=header, rows=tuple(rows))


def as_markdown(table: TextTable) -> str:
    """Return the table in Markdown."""
    lines = [table.header, ("---", *["---:"] * (len(table.header) - 1)), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# A space between a number and its unit, such as in "12 GB", "3.5 ms" or "7 M".
_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGT]?B|[KMG]iB|KB|ms|s|min|[kMG])\b)")


def unbroken(text: str) -> str:
    """Return ``text`` with no-break spaces between numbers and their units."""
    return _UNIT.sub("\u00a0", text)


def as_html(table: TextTable) -> str:
    """Return the table as an HTML element with every text escaped."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    body = "\n".join(
        f"<tr><th>{escape(name)}</th>"
        + "".join(f"<td>{escape(unbroken(cell))}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in table.rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


_STYLE = f"""
:root {{ color-scheme: light dark; --soft: #555; --edge: #ddd; --box: #f6f6f6; --shade: #0006; {LIGHT} }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ --soft: #aaa; --edge: #3a3d41; --box: #22252a; --shade: #fff6; {DARK} }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper); }}
body {{ max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid var(--edge); }}
h3 {{ font-size: 1rem; margin: 1.6rem 0 .3rem; }}
.source {{ color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }}
figure {{ margin: 1.2rem 0; break-inside: avoid; }} figcaption {{ color: var(--soft); font-size: .9rem; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: .5rem 2rem; }}
.charts > figure {{ max-width: 40rem; align-self: start; }}
.charts > figure.whole {{ max-width: none; grid-column: 1 / -1; }}
svg.chart {{ width: 100%; height: auto; display: block; }}
{RULES}
.wide {{ overflow-x: auto; background:
  linear-gradient(90deg, var(--paper) 30%, transparent) 0 0 / 3rem 100% no-repeat local,
  linear-gradient(270deg, var(--paper) 30%, transparent) 100% 0 / 3rem 100% no-repeat local,
  linear-gradient(270deg, var(--shade), transparent) 100% 0 / 1.2rem 100% no-repeat scroll; }}
table {{ border-collapse: separate; border-spacing: 0; font-size: .85rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .2rem .6rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--edge); }}
th, td {{ max-width: 22rem; overflow-wrap: break-word; }}
tbody th, thead th:first-child {{ text-align: left; font-weight: 600; position: sticky; left: 0; }}
tbody th, thead th:first-child {{ background: var(--paper); min-width: 6rem; }}
summary {{ cursor: pointer; margin: .6rem 0; }}
pre {{ background: var(--box); padding: .6rem; font-size: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }}
dl {{ display: grid; grid-template-columns: max-content auto; gap: .1rem 1rem; font-size: .9rem; }}
dt {{ color: var(--soft); }} dd {{ margin: 0; overflow-wrap: anywhere; }}
@media (max-width: 30rem) {{ dl {{ grid-template-columns: auto; gap: 0; }} dd {{ margin: 0 0 .4rem; }} }}
""".strip()
_MOST_ROWS: Final = 12  # a foldable table with more rows is closed at first


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A page's part for one run, or for several runs."""

    title: str
    source: str  # path of the section's data
    run: Training | None = None  # the run, for comparison with other runs
    facts: tuple[tuple[str, str], ...] = ()  # names and values
    charts: tuple[Chart, ...] = ()
    tables: tuple[TextTable, ...] = ()
    named_tables: tuple[tuple[str, TextTable], ...] = ()  # tables with headings
    folded_tables: tuple[tuple[str, TextTable], ...] = ()  # long tables, folded behind a heading
    notes: tuple[str, ...] = ()  # text as it was printed


def render_page(title: str, sections: Sequence[Section], *, made: str = "") -> str:
    """Return the page. It refers to nothing outside itself and runs no script.

    Parameters
    ----------
    title : the page's heading
    sections : the page's content
    made : time and command, for the line below the heading; empty means no line
    """
    body = "\n".join(map(_section, sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"{_line(made)}{body}\n</body>\n</html>\n"
    )


def _line(made: str) -> str:
    return f'<p class="source">{escape(made)}</p>\n' if made else ""


def _section(section: Section) -> str:
    """Return a section as HTML: its facts, tables, charts, folded tables and notes."""
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(unbroken(text))}</dd>" for name, text in section.facts
    )
    parts = [
        f'<h2>{escape(section.title)}</h2>\n<p class="source">{escape(section.source)}</p>',
        f"<dl>{facts}</dl>" if facts else "",
        *(_table(table) for table in section.tables),
        *(f"<h3>{escape(name)}</h3>\n{_table(table)}" for name, table in section.named_tables),
        '<div class="charts">' + "\n".join(map(_chart, section.charts)) + "</div>" if section.charts else "",
        *(_folded(name, table) for name, table in section.folded_tables),
        *(f"<pre>{escape(note)}</pre>" for note in section.notes),
    ]
    return "<section>\n" + "\n".join(filter(None, parts)) + "\n</section>"


def _table(table: TextTable) -> str:
    return f'<div class="wide">{as_html(table)}</div>'


def _folded(name: str, table: TextTable) -> str:
    """Return a table that a click on its name opens and closes, as HTML."""
    is_open = " open" if len(table.rows) <= _MOST_ROWS else ""
    return f"<details{is_open}><summary>{escape(name)}</summary>{_table(table)}</details>"


def _chart(chart: Chart) -> str:
    figure = '<figure class="whole">' if chart.is_wide else "<figure>"
    return f"{figure}<figcaption>{escape(chart.caption)}</figcaption>{chart.svg}</figure>"


def slug(name: str) -> str:
    """Return ``name`` as a file name. Pure."""
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in name)
