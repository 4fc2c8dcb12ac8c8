"""The commands that people type first answer at once: they import no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numba", "scipy", "sklearn", "pyarrow", "dgl", "ogb")
PROBE = """
import sys
from gloader.cli.main import main
try:
    status = main(sys.argv[1:])
except SystemExit as exit:
    status = exit.code
assert status == 0, status
print("heavy:", *[name for name in {heavy!r} if name in sys.modules])
"""


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["train", "--help"], ["prepare", "--help"], ["info", "--help"]]
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=HEAVY), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy:"
