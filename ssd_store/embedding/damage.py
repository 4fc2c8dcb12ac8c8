"""Errors of an embedding table's damaged files. A dataset can be prepared again and a table cannot: other advice."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gloader.errors import (
    ChecksumError,
    FormatError,
    IncompleteStoreError,
    StoreReadError,
    TruncatedStoreError,
)
from gloader.ssd_store.format.manifest import CHECK_DEVICE, RESTORE, VERIFY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ADVICE: Final = (VERIFY, RESTORE, CHECK_DEVICE)  # the longer text first


@contextmanager
def damage(advice: Callable[[str], str]) -> Iterator[None]:
    """Replace the advice in errors of damaged files, or add one. ``advice`` returns it for the error's text."""
    try:
        yield
    except (ChecksumError, FormatError, TruncatedStoreError) as error:
        raise type(error)(_advised(str(error), advice(str(error)))) from error
    except (IncompleteStoreError, StoreReadError) as error:
        text = _advised(error.strerror or "", advice(str(error)))
        raise type(error)(error.errno, text, error.filename) from error


def _advised(text: str, advice: str) -> str:
    """Return ``text`` with ``advice`` in place of its own. Pure."""
    for known in _ADVICE:
        if known in text:
            return text.replace(known, advice)
    return f"{text}; {advice}"
