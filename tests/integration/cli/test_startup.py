"""The commands that people type first answer at once: they import no torch."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "numba", "scipy", "sklearn", "pyarrow", "dgl", "ogb")
COMMANDS = ["--help", "--version", "train --help", "prepare --help", "info --help"]
PROBE = """
import sys
from gloader.cli.main import main
for words in {commands!r}:
    try:
        status = main(words.split())
    except SystemExit as exit:
        status = exit.code
    assert status == 0, (words, status)
    print("heavy:", words, *[name for name in {heavy!r} if name in sys.modules])
"""


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(commands=COMMANDS, heavy=HEAVY)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("heavy:")]
    assert said == [f"heavy: {words}" for words in COMMANDS]
