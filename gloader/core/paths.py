"""The folder of what gloader may make again: datasets prepared on the fly, and what it learnt about disks."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def home_dir() -> Path:
    """Return $GLOADER_HOME, or the user's cache folder for gloader; it may not exist yet."""
    named = os.environ.get("GLOADER_HOME")
    return Path(named).expanduser() if named else user_cache_path("gloader")


def nearest_existing(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    absolute = path.expanduser().absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.exists())
