"""What parsers raise on bytes that are not what they parse."""

from __future__ import annotations

import csv
import reprlib
import struct
import sys
import tokenize
import zlib
from typing import Final

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
