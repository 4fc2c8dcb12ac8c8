"""Any elements, asked for in any order and with any room, are those of the array; what is kept is what was used."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gloader.ssd_store.format.format import STORE_MANIFEST, load_manifest
from gloader.ssd_store.read.columns import ArrayFile, Rule
from gloader.ssd_store.read.lane import ReadLane
from gloader.ssd_store.read.paged_array import KeptPages, PagedArray
from gloader.ssd_store.write.new_directory import NewDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = {"int32": 9_000, "int64": 5_000, "float32": 1_024, "float64": 1}
OBEYED = Rule(first_wrong=lambda _: -1, error=lambda position, value: ValueError(f"{position} {value}"))
SLOT_BYTES, ENTRY_BYTES = 4096 + 5, 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("paged") / "store"
    with NewDirectory(path, manifest_name=STORE_MANIFEST) as directory:
        for name, size in SIZES.items():
            with directory.array(name, dtype=name, shape=(size,)) as writer:
                writer.append(np.arange(size).astype(name))
        directory.commit("feature_store", {})
    return path


@contextmanager
def opened(store: Path, *, room: int) -> Iterator[dict[str, PagedArray]]:
    """Open all arrays of ``store`` with room for ``room`` pages, which they share."""
    records = load_manifest(store, STORE_MANIFEST).arrays
    pages = {name: records[name].num_pages for name in SIZES}
    kept = KeptPages(sum(pages.values()), max_bytes=ENTRY_BYTES * sum(pages.values()) + SLOT_BYTES * room)
    with ExitStack() as stack:
        lane = ReadLane(1 << 20, io="threads", is_direct=False, when_closed="closed")
        stack.callback(lane.close)
        arrays: dict[str, PagedArray] = {}
        for name in SIZES:
            before = sum(pages[other] for other in arrays)
            file = ArrayFile(store, records[name], rule=OBEYED)
            stack.callback(file.close)
            arrays[name] = PagedArray(file, lane=lane, kept=kept, first_page=before)
        yield arrays


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    room=st.integers(0, 24),
    asked=st.lists(
        st.tuples(st.sampled_from(sorted(SIZES)), st.lists(st.integers(0, 8_999), max_size=60)), max_size=6
    ),
)
def test_elements_are_those_of_the_array_whatever_is_kept(
    store: Path, room: int, asked: list[tuple[str, list[int]]]
) -> None:
    with opened(store, room=room) as arrays:
        for name, wanted in asked:
            positions = np.array(wanted, dtype=np.int64) % SIZES[name]
            found = arrays[name].take(positions)
            assert found.dtype == np.dtype(name)
            assert not found.flags.writeable
            assert found.tolist() == positions.tolist()
        for name, size in SIZES.items():
            pieces = [piece.copy() for piece in arrays[name].pieces()]
            assert np.concatenate(pieces).tolist() == list(range(size))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    round_pages=st.integers(1, 5),
    calls=st.lists(
        st.lists(st.tuples(st.integers(0, 4_999), st.sampled_from([0, 1, 2, 511, 512, 4_000])), max_size=6),
        max_size=5,
    ),
    is_sorted=st.booleans(),
)
def test_lists_are_those_of_the_array_in_any_order_and_any_number_of_calls(
    store: Path, round_pages: int, calls: list[list[tuple[int, int]]], is_sorted: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gloader.ssd_store.read.paged_array._ROUND_PAGES", round_pages)
        with opened(store, room=0) as arrays:
            scan = arrays["int64"].scan()
            for lists in calls:
                asked = [(start, min(count, 5_000 - start)) for start, count in lists]
                asked = sorted(asked) if is_sorted else asked
                starts, counts = (np.array([pair[i] for pair in asked], dtype=np.int64) for i in (0, 1))
                expected = [position for start, count in asked for position in range(start, start + count)]
                assert scan.lists(starts, counts).tolist() == expected


def test_what_was_used_stays_and_what_was_not_goes() -> None:
    kept = KeptPages(10, max_bytes=ENTRY_BYTES * 10 + SLOT_BYTES * 3)

    def keep(*pages: int) -> None:
        content = np.repeat(np.array(pages, np.uint8)[:, None], 4096, axis=1)
        kept.keep(np.array(pages), content)

    def held(*, uses: tuple[int, ...] = tuple(range(10))) -> list[int]:
        out, missing = np.zeros(len(uses), np.uint8), np.empty(len(uses), np.int32)
        count = kept.copy(0, 4096 * np.array(uses, dtype=np.int64), out, missing)
        there = sorted(set(range(len(uses))) - set(missing[:count].tolist()))
        assert [int(out[at]) for at in there] == [uses[at] for at in there]
        return [uses[at] for at in there]

    keep(1, 2, 3)
    assert held(uses=(2,)) == [2]
    keep(4, 5)  # in place of 1 and 3, which nobody used
    assert held() == [2, 4, 5]
    keep(6, 7, 8, 9)  # more than there is room for
    assert len(held()) == 3
    keep(9)  # it is there already
    assert len(held()) == 3


def test_without_room_nothing_is_kept() -> None:
    kept = KeptPages(10, max_bytes=0)
    kept.keep(np.array([1]), np.zeros((1, 4096), np.uint8))
    assert kept.copy(0, np.array([4096]), np.zeros(1, np.uint8), np.empty(1, np.int32)) == 1
    assert kept.num_bytes == 10 * ENTRY_BYTES
