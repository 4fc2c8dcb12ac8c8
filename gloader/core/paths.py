"""The folder of what gloader may make again, such as datasets prepared on the fly, and parts of names of files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from gloader.errors import ConfigError

_MAX_SLUG: Final = 60


def home_dir() -> Path:
    """Return $GLOADER_HOME, or the user's cache folder for gloader; it may not exist yet."""
    named = os.environ.get("GLOADER_HOME")
    if named:
        return Path(named).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME", "")).expanduser()
    # The XDG specification: a relative path is as good as none.
    return (caches if caches.is_absolute() else Path("~/.cache").expanduser()) / "gloader"


def nearest_existing(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    absolute = path.expanduser().absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.exists())


def require_parent(folder: Path, *, flag: str, keyword: str) -> None:
    """Raise ConfigError where the folder above ``folder`` is missing: making it would fill another disk.

    Parameters
    ----------
    folder : that was named, for large files
    flag, keyword : by which it was, on the command line and in Python
    """
    parent = folder.expanduser().absolute().parent
    if not parent.is_dir():
        raise ConfigError(
            f"{flag} (in Python {keyword}) is {folder}, and {parent} does not exist: mount its disk, or make the "
            "folder first"
        )


def file_slug(text: str) -> str:
    """Return the start of ``text``, which may come from data, as a part of a file's name, perhaps empty. Pure."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:_MAX_SLUG].strip("-.")


def bytes_on_disk(folder: Path, *, has_holes: bool) -> int:
    """Return the bytes that the files below ``folder`` take; files with holes take less than their sizes."""
    files = [file.stat() for file in folder.rglob("*") if file.is_file()]
    return sum(512 * file.st_blocks if has_holes else file.st_size for file in files)
