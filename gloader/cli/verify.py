"""`gloader verify`: every byte of a dataset against its checksums, every id against the number of nodes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.cli.failure import EXIT_FAILURE, EXIT_OK
from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.views.convert import convert_view
from gloader.cli.views.screen import Screen, facts
from gloader.core.units import format_bytes

if TYPE_CHECKING:
    from gloader.dataset.verify import VerifiedTable
    from gloader.ssd_store.format.verify import VerifyReport

# Problems shown to people; one bad disk can damage thousands of pages.
_MAX_SHOWN = 20


def verify(dataset: Path, /, *, output: OutputFlags = DEFAULT_OUTPUT) -> int:
    """Read every byte of a dataset or feature store and compare it with its checksums. Writes nothing.

    Ids must name nodes, and labels classes. Exits with status 1 when something is damaged.

    Parameters
    ----------
    dataset
        The folder that `gloader prepare` made.
    """
    from gloader.dataset.verify import verified_tables, verify_dataset

    screen = Screen.open(is_json=output.json)
    with _byte_view(screen) as progress:
        report = verify_dataset(dataset, progress=progress)
    tables = verified_tables(report)
    if not output.json:
        if tables:
            screen.console.print(facts({table.table: _describe(table) for table in tables}))
        _print(screen, report)
    screen.result({"ok": report.is_ok, **asdict(report), "tables": [asdict(table) for table in tables]})
    return EXIT_OK if report.is_ok else EXIT_FAILURE


@contextmanager
def _byte_view(screen: Screen) -> Iterator[Callable[[int, int], None]]:
    with convert_view(screen) as view:
        yield lambda done, total: view.advance("verifying", done, total, "bytes")


def _describe(table: "VerifiedTable") -> str:
    said = "ok" if table.num_problems == 0 else f"damaged, problems: {table.num_problems}"
    return f"{table.num_arrays} arrays, {format_bytes(table.num_bytes)}, {said}"


def _print(screen: Screen, report: "VerifyReport") -> None:
    if report.is_ok:
        size = format_bytes(report.num_bytes)
        screen.say(f"ok: {report.num_arrays} arrays, {size}, every byte is as it was written")
        return
    for problem in report.problems[:_MAX_SHOWN]:
        screen.say(f"damaged: {problem.file}: {problem.message}")
    hidden = len(report.problems) - _MAX_SHOWN
    more = f" ({hidden} more not shown; see --json)" if hidden > 0 else ""
    screen.say(f"{len(report.problems)} problems{more}: prepare the dataset again, or restore these files")
