"""Calls of the OGB runner for tests."""

import contextlib
import io
import json
from pathlib import Path

from gloader.cli.main import main as gloader_main

OGB = Path(__file__).parents[1] / "experiments" / "ogb"


def in_this_process(*arguments):
    """Stand for a process of its own for each command, which imports torch first."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert gloader_main([*arguments, "--json"]) == 0
    return json.loads(output.getvalue())


def words(folder, *arguments, root=None):
    """Return the words of a command of the runner that writes below ``folder``."""
    places = {"--root": root or folder / "data", "--work": folder / "work", "--out": folder / "out"}
    named = [str(word) for flag in places.items() for word in flag]
    return [str(OGB / "run.py"), *arguments, "--runs", "1", *named]
