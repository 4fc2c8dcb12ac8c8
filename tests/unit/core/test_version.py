"""The version is written down once."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import gloader
from gloader.core.version import __version__

ROOT = Path(__file__).parents[3]


def test_the_version_stands_in_one_file_and_everybody_has_it_from_there() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in pyproject["project"]
    assert pyproject["project"]["dynamic"] == ["version"]
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "gloader.core.version.__version__"
    }
    assert gloader.__version__ == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", __version__)


def test_the_installed_package_has_the_version_of_the_tree() -> None:
    assert metadata.version("gloader") == __version__
