"""The file of a report page, built from runs and written as a whole."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from gloader.errors import ConfigError
from gloader.lab.report.canvas import slug
from gloader.lab.report.page import Section, render_page
from gloader.lab.report.run_sections import beside
from gloader.lab.report.sections import read_sections
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.atomic_file import make_output_folder, require_file_target, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def make_report(
    runs: Sequence[Path],
    out: Path,
    *,
    png: Path | None = None,
    title: str = "",
    os_io: OsIO = REAL_OS,
) -> list[Section]:
    """Write one HTML page that shows ``runs``, and return what it holds.

    Parameters
    ----------
    runs : folders and files, see `gloader.lab.report.sections.read_sections`
    out : the page; replaced as a whole, or left as it was
    png : folder for the pictures, as files of their own; None for none
    title : heading of the page; empty: the names of the runs

    Raises
    ------
    ConfigError, FormatError
        There are no runs, or one of them cannot be shown.
    MissingDependencyError
        matplotlib is not installed.
    StoreExistsError
        A file to write is there and is no regular file: a folder, a link, a device.
    StoreWriteError
        Writing failed.
    """
    if not runs:
        raise ConfigError("there are no runs; give at least one folder or file")
    require_file_target(out, os_io=os_io)
    # All of it is read and drawn before the old page is touched.
    sections = beside([section for run in runs for section in read_sections(run)])
    make_output_folder(out.parent, os_io=os_io)
    named = (
        title or ", ".join(section.run.name for section in sections if section.run is not None) or "gloader"
    )
    made = f"{datetime.now().astimezone():%Y-%m-%d %H:%M}, gloader report {' '.join(map(str, runs))}"
    write_atomically(
        out, render_page(named, sections, made=made).encode(errors="backslashreplace"), os_io=os_io
    )
    if png is not None:
        make_output_folder(png, os_io=os_io)
        for name, data in name_pictures(sections).items():
            write_atomically(png / name, data, os_io=os_io)
    return sections


def name_pictures(sections: Sequence[Section]) -> dict[str, bytes]:
    """Return the pictures by the names of their files; a name that occurs again gets a number. Pure."""
    found = [(slug(chart.name), ".svg", chart.as_file()) for section in sections for chart in section.charts]
    found += [(picture.name, ".png", picture.png) for section in sections for picture in section.pictures]
    named: dict[str, bytes] = {}
    for base, kind, content in found:
        name, number = base + kind, 2
        while name in named:
            name, number = f"{base}-{number}{kind}", number + 1
        named[name] = content
    return named
