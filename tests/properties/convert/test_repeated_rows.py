"""Repeated rows of tables, found in any number of buckets, against a dictionary."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gloader.convert.links import repeated_rows
from gloader.convert.links.repeated_rows import find_repeats

ROWS = st.lists(st.tuples(*[st.integers(0, 2)] * 3), max_size=40)


@given(
    tables=st.lists(ROWS, min_size=1, max_size=3),
    most=st.integers(1, 9),
    budget=st.sampled_from([0, 600, 1 << 20]),
)
def test_every_repeated_row_is_found_once(tables, most, budget):
    def reader(rows):
        array = np.array(rows, np.int64).reshape(-1, 3)
        return lambda max_rows: (array[i : i + max_rows] for i in range(0, len(array), max_rows))

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(repeated_rows, "_MIN_ROWS", most),
        mock.patch.object(repeated_rows, "_MAX_ROWS", most),
    ):
        found = find_repeats(
            [(len(rows), reader(rows)) for rows in tables], Path(folder), budget_bytes=budget
        )
        assert list(Path(folder).iterdir()) == []
    earlier = set()
    for rows, repeats in zip(tables, found, strict=True):
        seen, wanted, shared = set(), [], 0
        for row in rows:
            wanted.append(row in seen)
            shared += row not in seen and row in earlier
            seen.add(row)
        earlier |= seen
        assert repeats.of(0, len(rows)).tolist() == wanted
        assert (repeats.num_repeated, repeats.num_shared) == (sum(wanted), shared)
        for start in range(len(rows)):
            assert repeats.of(start, len(rows)).tolist() == wanted[start:]
