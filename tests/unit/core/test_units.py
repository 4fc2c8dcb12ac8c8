"""Sizes, counts and durations as people read and write them."""

from __future__ import annotations

import pytest

from gloader.core.units import (
    format_bytes,
    format_count,
    format_exact_seconds,
    format_seconds,
    parse_bytes,
)
from gloader.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8 * 10**9),
        ("512MiB", 512 * 2**20),
        ("32.3MB", 32_300_000),
        ("4096", 4096),
        (" 1.5 kb ", 1500),
        ("2G", 2 * 10**9),
        (7, 7),
        (0, 0),
    ],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.reliability("C14")
@pytest.mark.parametrize("text", ["4", " 35 "])
def test_a_small_number_without_a_unit_is_taken_for_a_slip(text: str) -> None:
    """`--memory-budget 4` was refused as a budget of 4 B, a screen later."""
    with pytest.raises(ConfigError, match=rf"without a unit means bytes; write {text.strip()}GB or"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "8 QB", "1,5GB", "nan", -1, True])
def test_malformed_sizes_say_how_to_write_one(text: str | int) -> None:
    with pytest.raises(ConfigError, match=r"is not a size; write bytes as 8GB, 512MiB or a whole number"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1_610_000_000, "1.61 GB"), (999_600, "1,000 KB"), (5_000e12, "5,000 TB")],
)
def test_sizes_are_written(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (12_345, "12.3 k"),
        (999_499, "999 k"),
        (1_075_000, "1.07 M"),
        (12_300_000, "12.3 M"),
        (3e12, "3,000 G"),
    ],
)
def test_counts_are_written(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.82, "820 ms"),
        (3.42, "3.4 s"),
        (125, "2 min 05 s"),
        (59.99, "60.0 s"),
        (11_524, "3 h 12 min"),
        (7_195, "2 h 00 min"),
    ],
)
def test_durations_are_written(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.reliability("J10")
@pytest.mark.parametrize(
    "size", ["9" * 400, "9" * 90 + "GB", "4097 PiB", "5000000TB", 1 << 63, 1.5, None, b"1", "٣GB"]
)
def test_sizes_of_no_machine_are_refused(size: object) -> None:
    with pytest.raises(ConfigError, match=r"is not a size|is more than any machine has") as caught:
        parse_bytes(size)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0824, "82.4 ms"),
        (-0.012, "-12 ms"),
        (0.9, "900 ms"),
        (1.0, "1 s"),
        (3.4177, "3.42 s"),
        (125.4, "125 s"),
        (12_345.0, "12,345 s"),
    ],
)
def test_exact_seconds_have_three_digits(seconds: float, text: str) -> None:
    assert format_exact_seconds(seconds) == text
