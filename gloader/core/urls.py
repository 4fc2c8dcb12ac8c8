"""URLs of datasets: which text is one, and the form in which it may be shown and kept."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from gloader.errors import ConfigError

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
_URL = re.compile(rf"(?:{'|'.join(URL_SCHEMES)})://", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20})://")
# What `pathlib.Path` makes of a URL: "s3:/bucket/papers".
_SQUEEZED = re.compile(rf"(?:{'|'.join(URL_SCHEMES)}):/(?!/)", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Return whether ``text`` begins as a URL of an object store, a web server or a mounted folder. Pure."""
    return _URL.match(text) is not None


def is_squeezed_url(text: str) -> bool:
    """Return whether ``text`` was a URL before a ``Path`` made one slash of two. Pure."""
    return _SQUEEZED.match(text) is not None


def require_no_url(text: str) -> None:
    """Raise ConfigError where ``text``, which is to be a path, was meant as a URL: misspelt, or short of a slash. Pure.

    Such a path would be made, or looked for, in the working folder.
    """
    scheme = text.partition(":")[0]
    if is_squeezed_url(text):
        raise ConfigError(
            f"{scheme}:/... has one slash where a URL has two; write {scheme}://..., and give a URL as text, since a "
            "Path takes a slash of it"
        )
    if _SCHEME.match(text) and not is_url(text):
        known = ", ".join(f"{each}://" for each in URL_SCHEMES)
        raise ConfigError(
            f"{scheme}://... is no URL of a store that gloader knows; URLs begin with {known}, and a path that looks "
            "like one is written ./..."
        )


def require_plain(url: str) -> None:
    """Raise ConfigError where something stands behind the path of ``url``: files of a dataset are below it. Pure."""
    if "?" in url or "#" in url:
        raise ConfigError(
            f"{shown_url(url)} has a query or a fragment, and a dataset's files are below its URL; leave that away, "
            "and give credentials in the environment"
        )


def shown_url(url: str) -> str:
    """Return ``url`` without user, password, query and fragment, which may be secrets. Pure.

    Nothing else of a URL may reach a message, a log, a record or a repr.
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:  # brackets that hold no address: whatever else is in it stays unsaid
        return f"{url.partition(':')[0]}://..."
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")
