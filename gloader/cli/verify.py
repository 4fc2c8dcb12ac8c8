"""`gloader verify`: a check of a dataset. Its bytes are compared with checksums, and its ids with the node counts.

`gloader.dataset.verify` checks; this module shows progress and prints the problems. A dataset at a URL is checked in
its mirror, a local folder with copies of its files.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.cli.conversion_view import convert_view
from gloader.cli.failure import EXIT_FAILURE, EXIT_OK
from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, facts
from gloader.config import ObjectSettings
from gloader.core.paths import is_url, require_no_url
from gloader.core.units import format_bytes

if TYPE_CHECKING:
    from gloader.dataset.verify import VerifiedTable
    from gloader.ssd_store.format.verification import VerifyReport
    from gloader.ssd_store.os_io import OsIO

_OBJECTS = ObjectSettings()
# Maximum number of problems on the screen. One bad disk can damage thousands of pages.
_MAX_SHOWN = 20


def verify(
    dataset: str, /, *, objects: ObjectSettings = _OBJECTS, output: OutputFlags = DEFAULT_OUTPUT
) -> int:
    """Read every byte of a dataset or feature store and compare it with its checksums. Writes nothing.

    Ids must name nodes, and labels must name classes. The exit status is 1 if something is damaged.

    Parameters
    ----------
    dataset
        The folder that `gloader prepare` made, or its URL (s3://...). The mirror's missing bytes are fetched.
    objects
        Settings for the mirror of a dataset at a URL.
    """
    from gloader.dataset.verify import verified_tables, verify_dataset

    screen = Screen.open(is_json=output.json)
    with ExitStack() as held:
        root, os_io = _place(dataset, objects, held)
        with _byte_view(screen) as progress:
            report = verify_dataset(root, progress=progress, os_io=os_io)
        tables = verified_tables(report, os_io=os_io)
    if not output.json:
        if tables:
            screen.console.print(facts({table.table: _describe(table) for table in tables}))
        _print(screen, report, mirror=root.parent if is_url(dataset) else None)
    found = {name: value for name, value in asdict(report).items() if name != "ranges" or value is not None}
    screen.result({"ok": report.is_ok, **found, "tables": [asdict(table) for table in tables]})
    return EXIT_OK if report.is_ok else EXIT_FAILURE


def _place(dataset: str, objects: ObjectSettings, held: ExitStack) -> "tuple[Path, OsIO]":
    """Return the folder to verify, and the object that makes its system calls.

    For a URL, these are the mirror's folder and calls, which fetch missing bytes. The mirror closes with ``held``.
    """
    from gloader.ssd_store.os_io import REAL_OS

    if not is_url(dataset):
        require_no_url(dataset)
        return Path(dataset), REAL_OS
    from gloader.dataset.mirrored import open_mirrored

    root, mirrored = open_mirrored(dataset, objects)
    held.callback(mirrored.close)
    return root, mirrored.os_io


@contextmanager
def _byte_view(screen: Screen) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of the checked bytes and all bytes, which shows the progress."""
    with convert_view(screen) as view:
        yield lambda done, total: view.advance("verifying", done, total, "bytes")


def _describe(table: "VerifiedTable") -> str:
    """Return a line on one table: the arrays of a node type, a relation (an edge type) or a link table."""
    state = "ok" if table.num_problems == 0 else f"damaged, problems: {table.num_problems}"
    return f"{table.num_arrays} arrays, {format_bytes(table.num_bytes)}, {state}"


def _print(screen: Screen, report: "VerifyReport", *, mirror: Path | None) -> None:
    """Write the verdict or the problems. ``mirror`` is the folder of a mirrored dataset, otherwise None."""
    if report.is_ok:
        size = format_bytes(report.num_bytes)
        every = "every byte"
        # A machine of a cluster may store only a part of the feature rows.
        if report.ranges is not None:
            part = f"part {report.ranges.part} of {report.ranges.of}"
            screen.say(f"of the features, the pages of {part} are here; the others are on other machines")
            every = "every byte that is here"
        screen.say(f"ok: {report.num_arrays} arrays, {size}, {every} is as it was written")
        return
    for problem in report.problems[:_MAX_SHOWN]:
        screen.say(f"damaged: {problem.file}: {problem.message}")
    hidden = len(report.problems) - _MAX_SHOWN
    more = f" ({hidden} more not shown; see --json)" if hidden > 0 else ""
    advice = "prepare the dataset again, or restore these files"
    if mirror is not None:
        advice = (
            f"remove the mirror {mirror}; if they come back, the store's copy is damaged: upload it again"
        )
    screen.say(f"{len(report.problems)} problems{more}: {advice}")
