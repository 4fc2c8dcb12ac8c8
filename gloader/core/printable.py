"""Text that comes from data (names, paths, metadata, messages about them), made fit for a terminal."""

from __future__ import annotations

import re
from typing import Final

_REPLACEMENT: Final = "\ufffd"
# Control characters but for the line's end and the tab: a terminal obeys those that begin with escape. Marks that turn
# the direction of writing, so that a name shows as another, and other ends of lines. Halves of a pair, which file names
# that are no UTF-8 have, and which no stream can encode.
_UNFIT: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return ``text`` with every character replaced that does more, or less, than show on a terminal. Pure."""
    return _UNFIT.sub(_REPLACEMENT, text)


def printable_line(text: str) -> str:
    """Return ``text`` as `printable` does, on one line. Pure."""
    return printable(text).replace("\n", _REPLACEMENT)
