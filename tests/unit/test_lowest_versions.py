"""The lane of lowest versions tries those that pyproject.toml allows."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LOWEST = re.compile(r"^([A-Za-z0-9_-]+)>=([0-9.]+)")
_OPTIONAL = ("dgl", "gpu", "ogb", "plot", "pyg")


def _numbers(version: str) -> list[int]:
    numbers = [int(number) for number in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def test_the_lowest_allowed_versions_are_those_of_the_lane() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    allowed = dict(
        match.groups()
        for extra in (project["dependencies"], *(extras[name] for name in _OPTIONAL))
        for text in extra
        if (match := _LOWEST.match(text))
    )
    lines = (ROOT / "tests" / "lowest-constraints.txt").read_text().splitlines()
    tried = dict(line.partition(" #")[0].split("==") for line in lines if "==" in line)
    assert {name: _numbers(version) for name, version in allowed.items()} == {
        name: _numbers(version) for name, version in tried.items()
    }
