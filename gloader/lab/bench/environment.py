"""The origin of a measurement: the command, the commit, the package versions and the machine.

Each benchmark adds `provenance` to its figures, so that a file of figures can be judged and made again.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[3]  # the repository's root in a checkout


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that influence figures."""
    versions = {"python": platform.python_version()}
    for name in ("numpy", "numba", "torch", "dgl"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def provenance() -> dict[str, Any]:
    """Return a figure file's origin: command, commit, versions and machine."""
    return {"command": command(), "commit": commit(), "versions": versions(), "machine": machine()}


def command() -> str:
    """Return the running command, with this machine's folders as "DIR"."""
    program, *words = sys.argv
    path = Path(program)
    # The installed command has no suffix, and ``python -m gloader`` runs __main__.py.
    if path.name == "__main__.py" or path.suffix != ".py":
        started = "gloader"
    else:
        started = f"python {os.path.relpath(path.resolve(), _ROOT)}"
    return " ".join([started, *("DIR" if Path(word).is_absolute() else word for word in words)])


def commit() -> str | None:
    """Return the checked-out commit, with "-dirty" if the code was changed. None outside a checkout."""
    words = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    """Return the usable cores, the memory in bytes, the architecture, and the mean load in the last minute."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": usable,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "architecture": platform.machine(),
        "load_average_1min": os.getloadavg()[0],
    }
