"""Any link table is read as it was given, in any order, from memory or from disk; an oracle indexes the arrays."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from linked import LinkArrays, link_arrays, write_linked

from gloader.dataset.link_record import LinkLimits
from gloader.dataset.verify import verify_dataset

# fsync is most of the time on a disk, and nothing to these tests.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108


@st.composite
def tables(draw: Any) -> LinkArrays:
    """Draw tables of 0 to 400 rows, of none to four pages of pairs, with any of the columns beside them."""
    arrays = link_arrays(
        draw(st.sampled_from([0, 1, 127, 128, 129, 400])),
        num_destinations=40,
        num_reverses=300,
        labels=draw(st.sampled_from([None, "int64", "float32"])),
        k=draw(st.sampled_from([0, 1, 5, 1100])),
        negatives=draw(st.sampled_from(["int32", "int64"])),
        seed=draw(st.integers(0, 2**32)),
    )
    return arrays if draw(st.booleans()) else replace(arrays, times=None)


@given(tables(), st.integers(0, 2**32), st.sampled_from(["disk", "narrow", "partly", "ram"]))
@settings(max_examples=25, deadline=None)
def test_rows_of_any_table_are_read_as_they_were_given(arrays: LinkArrays, seed: int, where: str) -> None:
    rng = np.random.default_rng(seed)
    count = len(arrays.pairs)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        dataset = write_linked(Path(folder) / "d", {"t": arrays})
        assert verify_dataset(dataset.root).is_ok
        table = dataset.link_table("t")
        memories = {"disk": 0, "narrow": table.num_bytes - 1, "partly": table.num_bytes, "ram": 2**40}
        with table.open(max_bytes=memories[where]) as links:
            for size in (0, 1, 50, 900):
                rows = rng.integers(0, count, size) if count else np.empty(0, np.int64)
                arrays.require(links.read(rows), rows)


ODD = st.sampled_from([-(2**63), -(2**62), -2, -1, 0, 1, 2, 3, 4, 5, 2**31, 2**62, 2**63 - 1])


@given(
    st.lists(st.lists(ODD, min_size=4, max_size=4), min_size=1, max_size=6),
    st.lists(st.integers(0, 4), min_size=4, max_size=4),
)
@example([[-(2**63)] * 4], [0, 0, 0, 0])
@settings(max_examples=300, deadline=None)
def test_the_first_value_of_pairs_that_cannot_be_is_found(rows: list[list[int]], counts: list[int]) -> None:
    limits = LinkLimits(
        num_sources=counts[0], num_destinations=counts[1], num_edges=counts[2], num_reverses=counts[3]
    )
    expected = next(
        (
            4 * row + column
            for row, values in enumerate(rows)
            for column, value in enumerate(values)
            if not (0 if column < 2 else -1) <= value < counts[column]
        ),
        -1,
    )
    pairs = np.array(rows, dtype=np.int64)
    assert limits.first_wrong("pairs", pairs) == expected
    if expected >= 0:
        assert f"row {expected // 4}: " in limits.describe("pairs", expected, pairs.reshape(-1)[expected])
