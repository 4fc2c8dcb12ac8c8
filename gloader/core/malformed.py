"""Input from other programs: parser errors, text for a terminal, and YAML settings files.

`MALFORMED` holds the exceptions that parsers raise on malformed bytes. `shown` shortens a value for a message.
`printable` replaces the characters that a terminal would interpret. `read_yaml_mapping` reads a YAML file of any origin
within fixed limits.
"""

from __future__ import annotations

import csv
import re
import reprlib
import struct
import sys
import tokenize
import zlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# For `except MALFORMED` around code that reads a file of unknown origin. There, such an error means a wrong file, not a
# wrong program. Of gloader's own errors, only those that are also a ValueError are caught, see `gloader.errors`. Some
# cases: a number too large for any type raises ArithmeticError. Too deep a nesting raises RecursionError, or
# MemoryError in Python's parser. A missing member raises LookupError, or AttributeError if a list is in the place of an
# object.
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
# Shortens long values in messages.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100  # characters


def shown(value: object) -> str:
    """Return ``repr(value)``, shortened, for a message about a value of any size, depth and kind. Pure."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # a whole number with thousands of digits, which Python does not print
        return f"a {type(value).__name__} of more than {sys.get_int_max_str_digits()} digits"


_REPLACEMENT: Final = "\ufffd"
# The characters that `printable` replaces. First, control characters except line end and tab: a terminal executes
# sequences that begin with the escape character. Then marks that change the writing direction, with which a name can
# look like another name, and unusual line ends. Last, surrogates: Python uses them for the bytes of file names that are
# not UTF-8, and cannot print them.
_UNFIT: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return ``text`` with replacements for all characters that a terminal would interpret or hide. Pure."""
    return _UNFIT.sub(_REPLACEMENT, text)


def printable_line(text: str) -> str:
    """Return ``text`` as `printable` does, on one line. Pure."""
    return printable(text).replace("\n", _REPLACEMENT)


MAX_YAML_CHARACTERS: Final = 1 << 16  # a run's config.yaml has about 1,500
_MAX_BRACKETS: Final = 1000  # opening brackets in a YAML file; the reader's time grows with their square


def read_yaml_mapping(path: Path, *, what: str, holds: str, error: type[Exception]) -> Mapping[str, object]:
    """Return the mapping in a YAML file.

    Parameters
    ----------
    path : the file
    what : the file's kind, for messages, such as "the description"
    holds : text for messages: the required content, and after a semicolon advice on writing the file
    error : the error's class

    Raises
    ------
    error
        The file cannot be read, is not YAML, has a key twice, or holds anything but a mapping of texts.
    """
    import yaml

    class OnceLoader(yaml.SafeLoader):
        """Refuses a mapping that has a key twice, of which YAML's own reader takes the last."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if (name := (key.tag, str(key.value))) in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {shown(key.value)} is there twice", problem_mark=key.start_mark
                    )
                seen.add(name)
            return super().construct_mapping(node, deep)

    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_YAML_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None) or str(failure)
        raise error(f"{what} {path} cannot be read: {reason}") from failure
    # The limits keep the reading fast: for each bracket, the YAML reader visits all open brackets.
    if len(text) > MAX_YAML_CHARACTERS or text.count("[") + text.count("{") > _MAX_BRACKETS:
        raise error(
            f"{what} {path} is longer than {MAX_YAML_CHARACTERS} characters, or has more than {_MAX_BRACKETS} "
            f"brackets; it must hold only {holds.partition(';')[0]}"
        )
    try:
        content = yaml.load(text, OnceLoader)  # noqa: S506 - a SafeLoader
    # Malformed values count too: a date with month 13, a number with thousands of digits, deeply nested brackets.
    except (yaml.YAMLError, *MALFORMED) as failure:
        raise error(f"{what} {path} is not YAML: {' '.join(str(failure).split())}") from failure
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise error(f"{what} {path} holds a {type(content).__name__}, not {holds}")
    return content
