"""The order of test files in a parallel run: the longest first, so that all workers end together.

`durations.json` holds the seconds of each long file, by its path below `tests`. `make durations` measures them again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DURATIONS = TESTS / "durations.json"
_LONG_S = 1.0  # files of less have no entry, and one that is new neither: both come last


def read_durations() -> dict[str, float]:
    """Return the seconds of each file that has an entry."""
    found: dict[str, float] = json.loads(DURATIONS.read_text("utf-8"))
    return found


def longest_first(files: list[str], seconds: dict[str, float]) -> list[str]:
    """Return ``files`` by their seconds, those without an entry last, in the order in which they were. Pure."""
    return sorted(files, key=lambda file: -seconds.get(file, 0.0))


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests of a parallel worker by their files. xdist hands files out in this order."""
    if not hasattr(config, "workerinput"):
        return
    of_file: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        of_file[_file_of(item.nodeid)].append(item)
    items[:] = [item for file in longest_first(list(of_file), read_durations()) for item in of_file[file]]


@dataclass(slots=True, eq=False)  # pytest keeps plugins in sets
class DurationsWriter:
    """Adds up the seconds of each test file, and writes those of the long ones when all tests passed."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test."""
        self.seconds[_file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file."""
        if session.exitstatus == pytest.ExitCode.OK:
            long = {file: round(spent, 1) for file, spent in self.seconds.items() if spent >= _LONG_S}
            DURATIONS.write_text(json.dumps(dict(sorted(long.items())), indent=1) + "\n", "utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch."""
    parser.addoption(
        "--write-durations", action="store_true", help="write the seconds of each test file to durations.json"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Measure in the process that hears of every test."""
    if config.getoption("--write-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationsWriter(), "gloader-durations")
