"""Paths and URLs of datasets, and gloader's own folder for files that it can rebuild.

A dataset is given by a path, or by a URL of an object store or a web server. A URL may contain a user and a password,
so messages and records contain only the result of `shown_url`. The first half of the functions is about local paths,
the second about URLs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gloader.errors import ConfigError

_MAX_SLUG: Final = 60  # characters of a text that `file_slug` keeps


def home_dir() -> Path:
    """Return $GLOADER_HOME, or the user's cache folder for gloader, which may not exist yet."""
    named = os.environ.get("GLOADER_HOME")
    if named:
        return Path(named).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME", "")).expanduser()
    # By the XDG specification a relative path counts as unset.
    return (caches if caches.is_absolute() else Path("~/.cache").expanduser()) / "gloader"


def nearest_existing(path: Path) -> Path:
    """Return ``path``, or the nearest existing folder above it."""
    absolute = path.expanduser().absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.exists())


def require_parent(folder: Path, *, flag: str, keyword: str) -> None:
    """Raise ConfigError if the parent folder of ``folder`` is missing.

    The parent may be the mount point of a disk that is not mounted. Creating it would fill another disk.

    Parameters
    ----------
    folder : a folder for large files, which may be missing
    flag, keyword : the setting's names on the command line and in Python
    """
    parent = folder.expanduser().absolute().parent
    if not parent.is_dir():
        raise ConfigError(
            f"{flag} (in Python {keyword}) is {folder}, and {parent} does not exist: mount its disk, or make the "
            "folder first"
        )


def file_slug(text: str) -> str:
    """Return the start of ``text`` in a form that is safe in a file name, perhaps empty. Pure."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:_MAX_SLUG].strip("-.")


def bytes_on_disk(folder: Path, *, has_holes: bool) -> int:
    """Return the disk bytes of the files below ``folder``.

    With ``has_holes``, only the blocks on the disk count: a file with holes takes less than its size.
    """
    files = [file.stat() for file in folder.rglob("*") if file.is_file()]
    # st_blocks counts units of 512 bytes on every Linux file system.
    return sum(512 * file.st_blocks if has_holes else file.st_size for file in files)


URL_SCHEMES: Final = (
    "s3",
    "s3a",
    "gs",
    "gcs",
    "az",
    "azure",
    "abfs",
    "abfss",
    "https",
    "http",
    "file",
    "memory",
)
# The beginning of a URL with a known scheme, and of a URL with any scheme.
_URL = re.compile(rf"(?:{'|'.join(URL_SCHEMES)})://", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20})://")
# The text of a URL that became a `pathlib.Path`, which merges slashes: "s3:/bucket/papers".
_SQUEEZED = re.compile(rf"(?:{'|'.join(URL_SCHEMES)}):/(?!/)", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Return True if ``text`` begins like a URL of an object store, a web server or a mounted folder. Pure."""
    return _URL.match(text) is not None


def is_squeezed_url(text: str) -> bool:
    """Return True if ``text`` was a URL before a ``Path`` merged two slashes into one. Pure."""
    return _SQUEEZED.match(text) is not None


def require_no_url(text: str) -> None:
    """Raise ConfigError if the path ``text`` looks like a URL that is misspelt or lacks a slash. Pure.

    Such a path would be created or searched in the working folder.
    """
    scheme = text.partition(":")[0]
    if is_squeezed_url(text):
        raise ConfigError(
            f"{scheme}:/... has one slash where a URL has two; write {scheme}://..., and give a URL as text, because a "
            "Path merges the two slashes"
        )
    if _SCHEME.match(text) and not is_url(text):
        known = ", ".join(f"{each}://" for each in URL_SCHEMES)
        raise ConfigError(
            f"{scheme}://... is no URL of a store that gloader knows; URLs begin with {known}, and a path that looks "
            "like one is written ./..."
        )


def require_plain(url: str) -> None:
    """Raise ConfigError if ``url`` has a query or a fragment, because a dataset's files lie below its path. Pure."""
    if "?" in url or "#" in url:
        raise ConfigError(
            f"{shown_url(url)} has a query or a fragment, and a dataset's files are below its URL; leave it out, and "
            "give credentials in the environment"
        )


def shown_url(url: str) -> str:
    """Return ``url`` without user, password, query and fragment, which may be secrets. Pure.

    No other part of a URL may reach a message, a log, a record or a repr.
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:  # the host is malformed, such as brackets without an address
        return f"{url.partition(':')[0]}://..."
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")
