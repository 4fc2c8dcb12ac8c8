"""Sizes and durations as text: `parse_bytes` reads a size such as "8GB", and the ``format_`` functions write text."""

from __future__ import annotations

import re
from typing import Final

from gloader.core.malformed import shown
from gloader.errors import ConfigError

# Bytes per unit, by the unit in capitals.
_FACTORS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}
# A size: a number, and perhaps a unit.
_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*$")
# A number from 1 to 99 without a unit. A user who writes it probably means GB or MB.
_NO_UNIT = re.compile(r"^\s*[1-9][0-9]?\s*$")
MAX_BYTES: Final = 1 << 62  # 4 EB, more than any machine has; fits int64
_MAX_DIGITS = 100  # digits before the unit; longer numbers exceed MAX_BYTES


def parse_bytes(size: str | int) -> int:
    """Return the bytes for ``size``, such as "8GB", "512MiB", "4096" or an int. Pure.

    Raises
    ------
    ConfigError
        The text is not a size, has no unit and is less than 100, or the size is negative or beyond 4 EB.
    """
    num_bytes = _size_of_text(size) if isinstance(size, str) else size
    if isinstance(size, str) and _NO_UNIT.match(size):
        raise ConfigError(
            f"{shown(size)} without a unit means bytes; write {size.strip()}GB or {size.strip()}MB"
        )
    if not isinstance(num_bytes, int) or isinstance(num_bytes, bool) or num_bytes < 0:
        raise ConfigError(f"{shown(size)} is not a size; write bytes as 8GB, 512MiB or a whole number")
    if num_bytes > MAX_BYTES:
        raise ConfigError(f"{shown(size)} is more than any machine has; a size is at most 4 EB")
    return num_bytes


def _size_of_text(text: str) -> int | None:
    """Return the bytes for ``text``, or None if it is no size."""
    match = _SIZE.match(text)
    # Upper and lower case mean the same, as "8gb" is a common spelling: KB is 1000 bytes, KiB is 1024.
    factor = _FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        return None
    if len(match[1]) > _MAX_DIGITS:
        return MAX_BYTES + 1
    # The arithmetic is with integers: with floats, 32.3MB would be one byte less than 32.3 million.
    whole, _, digits = match[1].partition(".")
    return int(whole + digits) * factor // 10 ** len(digits)


def format_bytes(num_bytes: float) -> str:
    """Return ``num_bytes`` in decimal units with three digits, such as '1.61 GB'. Pure."""
    value, unit = float(num_bytes), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if abs(value) < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{_three_digits(value)} {unit}"


def format_count(count: float) -> str:
    """Return ``count`` in short form, such as '4.2 M'. Pure."""
    value, unit = float(count), ""
    for larger in ("k", "M", "G"):
        # Four digits are easy to read, and 1.08 M is easier than 1,080 k.
        if abs(value) < (1000 if unit else 10_000):
            break
        value, unit = value / 1000, larger
    return f"{value:,.0f}" if not unit else f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    """Return ``value`` with three digits, or all digits before the point if there are more. Pure."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def format_exact_seconds(seconds: float) -> str:
    """Return a duration with three digits, such as '82.4 ms', '3.42 s' or '125 s'. Pure."""
    return f"{_three_digits(1000 * seconds)} ms" if abs(seconds) < 1 else f"{_three_digits(seconds)} s"


def format_seconds(seconds: float) -> str:
    """Return a duration such as '820 ms', '3.4 s', '2 min 05 s' or '3 h 12 min'. Pure."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"
