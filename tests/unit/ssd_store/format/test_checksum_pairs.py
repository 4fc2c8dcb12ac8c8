"""No two flipped bits of a page cancel: all 537 million pairs, by what each flipped bit does to its lane.

A flipped bit changes the state of its lane, and every later step is a bijection of that state. So a second bit in the
same lane takes the change back only if the two states before its word differ in that very bit alone; and one in another
lane only if the ends of both lanes meet in the same difference of the total. Both are looked up for every bit, which
leaves out no pair.
"""

from __future__ import annotations

from itertools import combinations, product
from operator import mul
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.ssd_store.format.checksum import PAGE_WORDS, checksum_pages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

LANES = 8
PRIME = 0x9E3779B97F4A7C15
BIT = np.uint64(1) << np.arange(64, dtype=np.uint64)
_33 = np.uint64(33)


def contents() -> dict[str, Words]:
    random = np.random.default_rng(7)
    return {
        "zeros": np.zeros(PAGE_WORDS, np.uint64),
        "ones": np.full(PAGE_WORDS, 2**64 - 1, np.uint64),
        "noise": random.integers(0, 2**64, PAGE_WORDS, dtype=np.uint64),
        "ids": np.arange(PAGE_WORDS, dtype=np.uint64) + np.uint64(10**6),
        "int32 ids": random.integers(0, 10**6, 2 * PAGE_WORDS, dtype=np.int32).view(np.uint64),
        "floats": random.standard_normal(2 * PAGE_WORDS, dtype=np.float32).view(np.uint64),
        "floats of one": np.ones(2 * PAGE_WORDS, np.float32).view(np.uint64),
        "text": np.frombuffer((b"subject first, short sentences. " * 200)[: PAGE_WORDS * 8], np.uint64),
    }


def rotl(words: Words, by: int) -> Words:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))


def step(lanes: Words, words: Words, version: int) -> Words:
    mixed = lanes ^ words
    turned = mixed ^ rotl(mixed, 29) ^ rotl(mixed, 47) if version == 2 else rotl(mixed, 29)
    return turned * np.uint64(PRIME)


def finish(values: Words) -> Words:
    values = (values ^ (values >> _33)) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> _33)) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> _33)


def flip_every_bit(words: Words, page: int, version: int) -> tuple[Words, Words, int]:
    """Return the ends of the lanes (8,), those with each bit of a lane flipped (4096, 8), and pairs that cancel."""
    rows = words.reshape(-1, LANES)
    sound = finish(np.array([page + 1], np.uint64)) + np.arange(LANES, dtype=np.uint64)
    flipped, cancelling = np.empty((0, LANES), np.uint64), 0
    for row in rows:
        change = flipped ^ sound
        cancelling += int((change & (change - np.uint64(1)) == 0).sum())
        flipped = np.concatenate([step(flipped, row, version), step(sound, row ^ BIT[:, None], version)])
        sound = step(sound, row, version)
    return sound, flipped, cancelling


def num_undetected(words: Words, page: int, version: int) -> int:
    """Return how many pairs of flipped bits leave the checksum of ``words`` as it is."""
    with np.errstate(over="ignore"):
        sound, flipped, cancelling = flip_every_bit(words, page, version)
        total, totals = sound[0], flipped[:, 0]
        if version == 2:
            start = finish(np.array([page + 1], np.uint64))
            sound, flipped = finish(sound), finish(flipped)
            total, totals = step(start, sound[:1], 2)[0], step(start, flipped[:, 0], 2)
        # ``totals``: with each bit of an earlier lane flipped; a lane's own bits join behind it.
        for lane in range(1, LANES):
            cancelling += int(np.isin(totals ^ total, flipped[:, lane] ^ sound[lane]).sum())
            totals = np.concatenate(
                [step(totals, sound[lane], version), step(total, flipped[:, lane], version)]
            )
            total = step(total, sound[lane], version)
        assert int(finish(total)) == int(checksums(words[None], page, version)[0])  # the kernel's, too
    return cancelling


def checksums(pages: Words, page: int = 0, version: int = 2) -> Words:
    """Return what the kernel makes of each of ``pages`` (n, 512), as page ``page`` of its file."""
    out = np.empty(len(pages), np.uint64)
    for i, words in enumerate(pages):
        checksum_pages(np.ascontiguousarray(words).view(np.uint8), page, out[i : i + 1], version)
    return out


@pytest.mark.reliability("J18")
@pytest.mark.parametrize("name", contents())
def test_every_pair_of_flipped_bits_is_detected(name: str) -> None:
    for page in (0, 2**40):
        assert num_undetected(contents()[name], page, 2) == 0


def test_the_search_finds_the_pairs_that_version_1_misses() -> None:
    """Bit 34 of a word and bit 63 of the lane's next, and bit 34 of the last words of the first two lanes."""
    words = contents()["noise"]
    assert num_undetected(words, 3, 1) >= PAGE_WORDS - LANES + 1
    for version, seen in ((1, False), (2, True)):
        for pair in ((40, 34), (48, 63)), ((504, 34), (505, 34)):
            damaged = words.copy()
            for word, bit in pair:
                damaged[word] ^= BIT[bit]
            assert (checksums(damaged[None], 3, version) != checksums(words[None], 3, version)) == seen


@pytest.mark.reliability("J18")
@pytest.mark.parametrize("num", [2_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_flipped_bits_in_threes_are_detected(num: int) -> None:
    """By the kernel: anywhere, and within neighbouring words of a lane, where most is known about a difference."""
    random = np.random.default_rng(num)
    for words in contents().values():
        expected = checksums(words[None])[0]
        for first in range(0, num, 1000):
            bits = random.integers(0, PAGE_WORDS * 64, (1000, 3))
            lane = (bits[:, :1] // 64 + LANES * random.integers(0, 3, (1000, 3))) % PAGE_WORDS
            bits = np.where(random.integers(0, 2, (1000, 1)), bits, lane * 64 + bits % 64)
            bits = bits[(np.diff(np.sort(bits)) > 0).all(axis=1)]
            pages = np.repeat(words[None], len(bits), axis=0)
            for column in bits.T:
                pages[np.arange(len(bits)), column // 64] ^= BIT[column % 64]
            assert (checksums(pages) != expected).all(), first


@pytest.mark.reliability("J18")
def test_flipped_bits_reach_the_next_word_of_their_lane_as_many() -> None:
    """Of any content: so many signed powers of two are needed, at least, to write the difference of two products."""

    def least(flips: Iterable[tuple[int, ...]]) -> int:
        changes = []
        for bits in flips:
            spread = set[int]()
            for bit in bits:
                spread ^= {bit, (bit + 29) % 64, (bit + 47) % 64}
            # Each of the bits that differ may rise or fall; all of them together make no difference.
            first, *others = (1 << bit for bit in sorted(spread))
            signs = product((1, -1), repeat=len(others))
            changes += [(first + sum(map(mul, each, others))) % 2**64 for each in signs]
        with np.errstate(over="ignore"):
            products = np.array(changes, np.uint64) * np.uint64(PRIME)
            # The digits of x without neighbours are where 3x and x differ; the last of them is left out.
            digits = (products * np.uint64(3) ^ products) >> np.uint64(1)
        return int(np.unpackbits(digits.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=1).min())

    assert least((bit,) for bit in range(64)) == 10
    assert least(combinations(range(64), 2)) == 8
