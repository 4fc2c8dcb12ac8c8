"""Input that gloader did not write: errors of parsers, text for a terminal, and YAML files of settings.

`MALFORMED` holds the exceptions that parsers raise on bytes of another form. `printable` replaces the characters that
a terminal would obey. `read_yaml_mapping` reads a YAML file of any origin within fixed limits.
"""

from __future__ import annotations

import csv
import re
import reprlib
import struct
import sys
import tokenize
import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# For `except MALFORMED` around the reading of a file that anybody may have written: whatever is in it, it is the file
# that is wrong, not this program. Nothing of ours is among them that is not a ValueError too, see `gloader.errors`.
# A number that no type holds is an ArithmeticError, a nesting too deep a RecursionError, or a MemoryError of Python's
# own parser, a member that is missing a LookupError, or an AttributeError where a list stands for an object.
MALFORMED: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    csv.Error,
    struct.error,
    tokenize.TokenError,
    zlib.error,
)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


def shown(value: object) -> str:
    """Return ``repr(value)``, shortened, for a message about a value of any size, depth and kind. Pure."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # a whole number of thousands of digits, which Python does not write
        return f"a {type(value).__name__} of more than {sys.get_int_max_str_digits()} digits"


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


MAX_YAML_CHARACTERS: Final = 1 << 16  # a run's config.yaml has about 1,500
_MAX_BRACKETS: Final = 1000


def read_yaml_mapping(path: Path, *, what: str, holds: str, error: type[Exception]) -> Mapping[str, object]:
    """Return the mapping that a YAML file holds.

    Parameters
    ----------
    path : the file
    what : its kind, for messages, such as "recipe"
    holds : what such a file has, and how to write it behind a semicolon, for messages
    error : raised where it cannot be read, is not YAML, or holds anything but a mapping of texts

    Raises
    ------
    error
        As said.
    """
    import yaml

    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_YAML_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None) or str(failure)
        raise error(f"{what} {path} cannot be read: {reason}") from failure
    # Each bracket makes the YAML reader look at all that are open.
    if len(text) > MAX_YAML_CHARACTERS or text.count("[") + text.count("{") > _MAX_BRACKETS:
        raise error(
            f"{what} {path} is longer than {MAX_YAML_CHARACTERS} characters, or has more than {_MAX_BRACKETS} "
            f"brackets; it holds {holds.partition(';')[0]} alone"
        )
    try:
        content = yaml.safe_load(text)
    # Of values too: a date with a month 13, a number of thousands of digits, brackets within brackets.
    except (yaml.YAMLError, *MALFORMED) as failure:
        raise error(f"{what} {path} is not YAML: {' '.join(str(failure).split())}") from failure
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise error(f"{what} {path} holds a {type(content).__name__}, not {holds}")
    return content
