"""The table of keys in memory: the share of its bytes that keys take, and the most keys that it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.convert.keys import key_table
from gloader.convert.keys.key_table import KeyRecords, KeyTable
from gloader.convert.keys.numbering import Numbering
from gloader.convert.keys.numbering_kernels import LEAVE, LEFT, MAKE, pack_keys
from gloader.core.keys import readonly, text_chunk

if TYPE_CHECKING:
    from pathlib import Path


def block_of(texts: list[str], *, cut: int = 0) -> KeyRecords:
    """Return a block with all texts."""
    chunk = text_chunk(texts)
    block = KeyRecords.of_bytes(24 * (chunk.num_bytes + 16 * len(chunk)))
    block.num_records = pack_keys(
        readonly(chunk.data), readonly(chunk.starts), 0, 0, cut, block.records, block.places, block.hashes
    )
    assert block.num_records == len(texts)
    return block


@pytest.mark.parametrize("length", [7, 12, 100, 900])
@pytest.mark.parametrize("max_bytes", [1 << 19, 3 << 18, 1 << 20])
def test_keys_take_at_least_half_of_a_full_table(length: int, max_bytes: int) -> None:
    """Only a table with memory to spare has more slots than it must have."""
    block = block_of([str(i).rjust(length, "0") for i in range(max_bytes // length)])
    table = KeyTable(max_bytes=max_bytes)
    placed = table.place(block, 0, missing=MAKE)
    assert placed == table.num_keys < block.num_records
    assert table.records.nbytes >= max_bytes / 2
    assert 0.8 * max_bytes < table.num_bytes <= max_bytes
    # A full table still answers for its keys, and for those that it lacks.
    assert table.place(block, 0, missing=LEAVE) == block.num_records
    assert block.ids[:placed].tolist() == [*range(placed)]
    assert np.all(block.ids[placed : block.num_records] == LEFT)


def test_keys_with_equal_hashes_are_told_apart_by_length_and_bytes() -> None:
    texts = [text + "\0" * i for i in range(9) for text in ("a", "b", "long-key-", "long-kez-")]
    block = block_of(texts, cut=63)
    assert len(set(block.hashes[: len(texts)].tolist())) == 2
    table = KeyTable(max_bytes=1 << 16, cut=63)
    for missing in (MAKE, LEAVE):
        assert table.place(block, 0, missing=missing) == len(texts)
        assert block.ids[: len(texts)].tolist() == [*range(len(texts))]


def test_keys_beyond_the_most_that_a_table_holds_are_spilled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of the table's keys have 32 bits in the order of a stream, whatever memory there is."""
    monkeypatch.setattr(key_table, "_MOST_KEYS", 3000)
    texts = [f"user-{i}" for i in range(5000)]
    with Numbering("user", "text", folder=tmp_path, budget_bytes=1 << 24) as numbering:
        stream = numbering.open_stream("e.csv")
        stream.append(text_chunk(texts))
        stream.append(text_chunk(texts[::-1]))
        stream.close()
        report = numbering.resolve()
        assert 0 < report.spilled_bytes <= 2 * 2000 * 24
        expected = [*range(5000), *range(5000)[::-1]]
        assert [int(i) for part in numbering.ids(stream, 999) for i in part] == expected
