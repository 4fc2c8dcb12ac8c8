"""`pytest --reliability-report`: the scorecard as a table, from the tests that carry its rows.

A row is done when every test marked with it passed; a failed, skipped or missing test leaves it open.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import pytest
from reliability_rows import ROWS

_PROPERTY = "reliability row"
_WEAKER = "reliability twin"

# The words that put a command into a mount namespace, from the shell's words for the mounts; None: there is none here.
Namespace = Callable[[str], tuple[str, ...] | None]

Status = Literal["done", "done, weaker", "open: failed", "open: skipped", "open: no test"]


@dataclass(slots=True)
class RowTally:
    """What the tests of one row did so far."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    weaker: list[str] = field(default_factory=list)  # what was proven in its place, and why

    @property
    def status(self) -> Status:
        """Done only if something passed and nothing failed or was skipped."""
        if self.failed:
            return "open: failed"
        if self.skipped:
            return "open: skipped"
        if not self.passed:
            return "open: no test"
        return "done, weaker" if self.weaker else "done"

    @property
    def is_done(self) -> bool:
        """Whether the row holds here, be it by a weaker twin of its test."""
        return self.status.startswith("done")


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Namespace:
    """Return what puts a command into a mount namespace of its own, after a shell's words for the mounts.

    None where the system allows no such namespace: the test then proves less, which the scorecard says.
    """

    def prefix(mounts: str) -> tuple[str, ...] | None:
        words = ("unshare", "-rm", "sh", "-c", f'{mounts} && exec "$@"', "sh")
        if (
            shutil.which("unshare")
            and subprocess.run([*words, "true"], check=False, capture_output=True).returncode == 0
        ):
            return words
        why = "no mount namespaces here, so the fault was injected instead"
        request.node.user_properties.append((_WEAKER, why))
        return None

    return prefix


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write the rows of each test into its reports, and refuse a mark that names none.

    The reports of a parallel worker carry them to the process that prints the table.
    """
    known = {row.id for row in ROWS}
    for item in items:
        rows = [str(row) for mark in item.iter_markers("reliability") for row in mark.args]
        unknown = set(rows) - known
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: no such reliability row: {', '.join(unknown)}")
        item.user_properties.extend((_PROPERTY, row) for row in rows)


@dataclass(slots=True, eq=False)  # pytest keeps plugins in sets
class ReliabilityReport:
    """Collects the outcome of every test that carries a reliability mark."""

    tallies: dict[str, RowTally] = field(default_factory=lambda: defaultdict(RowTally))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test to its rows."""
        weaker = [str(value) for name, value in report.user_properties if name == _WEAKER]
        for row in (str(value) for name, value in report.user_properties if name == _PROPERTY):
            tally = self.tallies[row]
            if report.when == "call":
                tally.weaker += weaker
            tally.seconds += report.duration
            if report.failed:
                tally.failed += 1
            elif report.skipped:
                tally.skipped += 1
            elif report.when == "call":
                tally.passed += 1

    def open_rows(self) -> list[str]:
        """Return the rows that are not done."""
        return [row.id for row in ROWS if not self.tallies[row.id].is_done]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that otherwise passed when a row is open."""
        if session.exitstatus == pytest.ExitCode.OK and self.open_rows():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        write = terminalreporter.write_line
        terminalreporter.section("reliability scorecard")
        write(f"{'row':<4} {'status':<14} {'seconds':>7}  fault -> promise")
        for row in ROWS:
            tally = self.tallies[row.id]
            write(
                f"{row.id:<4} {tally.status:<14} {tally.seconds:>7.2f}  {row.fault} -> {row.promise}",
                green=tally.status == "done",
                yellow=tally.status == "done, weaker",
                red=not tally.is_done,
            )
        done = sum(self.tallies[row.id].is_done for row in ROWS)
        write(f"{done} of {len(ROWS)} rows done")
        for row in ROWS:
            for why in dict.fromkeys(self.tallies[row.id].weaker):
                write(f"weaker: {row.id}: {why}", yellow=True)
        if self.open_rows():
            write(f"open: {', '.join(self.open_rows())}", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch."""
    parser.addoption(
        "--reliability-report", action="store_true", help="print the reliability scorecard at the end"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Switch the report on, in the process that prints it: a parallel worker knows only its own tests."""
    if config.getoption("--reliability-report") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ReliabilityReport(), "gloader-reliability-report")
