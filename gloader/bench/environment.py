"""Versions and machine that a measurement was made with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

import psutil


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that figures depend on."""
    versions = {"python": platform.python_version()}
    for name in ("numpy", "numba", "torch", "dgl"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def machine() -> dict[str, Any]:
    """Return cores, memory, architecture and the load while it is asked."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": usable,
        "memory_bytes": psutil.virtual_memory().total,
        "architecture": platform.machine(),
        "load_average_1min": os.getloadavg()[0],
    }
