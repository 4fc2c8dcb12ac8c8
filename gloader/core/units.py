"""Sizes and durations as people write them."""

from __future__ import annotations

import re

from gloader.errors import ConfigError

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
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")


def parse_bytes(size: str | int) -> int:
    """Return the number of bytes that ``size`` ("8GB", "512MiB", "4096" or an int) stands for. Pure.

    Raises
    ------
    ConfigError
        The text is not a size, or the size is negative.
    """
    if isinstance(size, bool) or (isinstance(size, int) and size < 0):
        raise ConfigError(f"{size!r} is not a size; write bytes as 8GB, 512MiB or a whole number")
    if isinstance(size, int):
        return size
    # KB is 1000 and KiB 1024, whatever the case: "8gb" is what people type.
    match = _SIZE.match(size)
    factor = _FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ConfigError(f"{size!r} is not a size; write bytes as 8GB, 512MiB or a whole number")
    return int(float(match[1]) * factor)


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
        if abs(value) < 10_000:
            break
        value, unit = value / 1000, larger
    return f"{value:,.0f}" if not unit else f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    """Return ``value`` with three digits, or all of those before the point. Pure."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def format_seconds(seconds: float) -> str:
    """Return a duration such as '820 ms', '3.4 s' or '2 min 05 s'. Pure."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
