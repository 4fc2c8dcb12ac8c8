"""One HTML file that holds everything it shows. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from gloader.report.text_table import TextTable, as_html, unbroken

if TYPE_CHECKING:
    from collections.abc import Sequence

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; }
body { max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
figure { margin: 1.2rem 0; } figcaption { color: #555; font-size: .9rem; }
img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #eee; }
tbody th, thead th:first-child { text-align: left; font-weight: 600; white-space: nowrap; }
pre { background: #f6f6f6; padding: .6rem; overflow-x: auto; font-size: .8rem; }
dl { display: grid; grid-template-columns: max-content auto; gap: .1rem 1rem; } dt { color: #555; } dd { margin: 0; }
""".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A PNG and what it shows."""

    name: str  # of the file, without ".png"
    caption: str
    png: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What a page says of one run."""

    title: str
    source: str  # where it was read from
    column: str = ""  # heading where runs stand beside each other; empty: it has nothing to be compared
    facts: tuple[tuple[str, str], ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[TextTable, ...] = ()
    notes: tuple[str, ...] = ()  # text as it was printed


def render_page(title: str, sections: Sequence[Section]) -> str:
    """Return the page; it refers to nothing outside itself, and runs no script."""
    body = "\n".join(map(_section, sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"{body}\n</body>\n</html>\n"
    )


def beside(sections: Sequence[Section]) -> list[Section]:
    """Return ``sections`` with their runs' facts in one table before them, a column for each run; one run stays alone.

    Pure.
    """
    runs = [section for section in sections if section.column]
    if len(runs) < 2:
        return list(sections)
    columns = [dict(run.facts) for run in runs]
    names = dict.fromkeys(
        name for column in columns for name in column
    )  # in the order of their first mention
    table = TextTable(
        header=("", *(run.column for run in runs)),
        rows=tuple((name, *(column.get(name, "") for column in columns)) for name in names),
    )
    together = Section(
        title="Runs beside each other", source=", ".join(run.source for run in runs), tables=(table,)
    )
    # Once is enough: what the table says is left out of the runs' own sections.
    return [together, *(replace(section, facts=()) if section.column else section for section in sections)]


def _section(section: Section) -> str:
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(unbroken(text))}</dd>" for name, text in section.facts
    )
    parts = [
        f"<h2>{escape(section.title)}</h2>\n<p>{escape(section.source)}</p>",
        f"<dl>{facts}</dl>" if facts else "",
        *map(_figure, section.pictures),
        *(f'<div class="wide">{as_html(table)}</div>' for table in section.tables),
        *(f"<pre>{escape(note)}</pre>" for note in section.notes),
    ]
    return "<section>\n" + "\n".join(filter(None, parts)) + "\n</section>"


def _figure(picture: Picture) -> str:
    # Inline, so that the page can be mailed as one file.
    data = base64.b64encode(picture.png).decode("ascii")
    caption = escape(picture.caption)
    image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
