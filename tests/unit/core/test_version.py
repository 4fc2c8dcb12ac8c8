"""The version is written down twice, and both say the same."""

import tomllib
from pathlib import Path

import gloader
from gloader.core.version import __version__


def test_the_package_and_pyproject_name_one_version() -> None:
    pyproject = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text("utf-8"))
    assert gloader.__version__ == __version__ == pyproject["project"]["version"]
