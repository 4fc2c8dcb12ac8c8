"""Direct, directory and packed reads of the same misses give the same rows: those that were stored."""

from __future__ import annotations

from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.core.signals import NEVER, Cancellation
from gloader.errors import ChannelClosedError
from gloader.ssd_store import DirectMisses, FeatureStore, Packer, load_misses
from gloader.ssd_store.read.extents import ALIGNMENT
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.ssd_store.sweep import sweep_kernels as kernels
from gloader.ssd_store.sweep.wanted_rows import collect_rows, collect_union
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.testing.faults import FaultyOS
from gloader.testing.suites import make_features, same_bits, widen

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

NUM_ROWS = 700
SHAPES = [  # rows of 1 B to 9,000 B, of which 400 B and 6,528 B straddle pages
    (1, "int8"),
    (1, "float32"),
    (3, "bfloat16"),
    (33, "int8"),
    (100, "float32"),
    (128, "float16"),
    (128, "float32"),
    (1632, "float32"),
    (2250, "float32"),
]
OPENED: list[dict[str, Any]] = [{"io": "auto"}, {"io": "threads"}, {"io": "buffered", "verify": "off"}]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, NDArray[Any], Any]]:
    found = []
    for dim, dtype in SHAPES:
        path = tmp_path_factory.mktemp("stores") / f"{dtype}-{dim}"
        array = make_features(NUM_ROWS, dim, dtype, seed=dim)
        scale = np.random.default_rng(dim).random(NUM_ROWS, np.float32) if dtype == "int8" else None
        with NewDirectory(path, manifest_name="store.json") as directory:
            with directory.array("features", dtype=dtype, shape=array.shape) as writer:
                writer.append(array)
            if scale is not None:
                with directory.array("features.scale", dtype="float32", shape=scale.shape) as writer:
                    writer.append(scale)
            directory.commit("feature_store", {})
        found.append((path, array, widen(array, dtype, scale)))
    return found


@st.composite
def miss_lists(draw: st.DrawFn) -> list[NDArray[np.int64]]:
    """Lists of rows: none, all, the same again, dense, sparse and clustered ones."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lists = []
    for kind in draw(st.lists(st.sampled_from(["none", "all", "again", "some", "few", "range"]), max_size=9)):
        first = int(rng.integers(NUM_ROWS))
        if kind == "again" and lists:
            rows = lists[-1]
        elif kind == "range":
            rows = np.arange(first, min(first + 70, NUM_ROWS))
        else:
            share = {"none": 0.0, "all": 2.0, "some": 0.4}.get(kind, 0.01)
            rows = np.flatnonzero(rng.random(NUM_ROWS) < share)
        lists.append(rows)
    return lists


@given(
    which=st.integers(0, len(SHAPES) - 1),
    settings=st.sampled_from([*OPENED, {}]),
    misses=miss_lists(),
    memory_mib=st.sampled_from([2, 3, 16]),
    gap=st.sampled_from([0, 4096, 10**6]),
    as_floats=st.booleans(),
)
def test_every_source_gives_the_rows_that_were_stored(
    stores, which, settings, misses, memory_mib, gap, as_floats, tmp_path_factory
) -> None:
    path, array, wide = stores[which]
    expected = wide if as_floats else array
    settings = settings or {"os_io": FaultyOS()}  # one request at a time
    with (
        FeatureStore.open(path, **settings) as store,
        SpillFolder(tmp_path_factory.getbasetemp(), budget_bytes=10**9) as spill,
        Packer(store, spill, memory_bytes=memory_mib * 2**20, max_gap_bytes=gap) as packer,
    ):
        sources = [
            DirectMisses(store),
            load_misses(store, misses, cancellation=NEVER),
            packer.pack(misses, superbatch=0, cancellation=NEVER),
        ]
        rng = np.random.default_rng(which)
        for batch, rows in enumerate(misses):
            at = rng.permutation(NUM_ROWS + 3)[: len(rows)]
            right = np.full((NUM_ROWS + 3, array.shape[1]), 7, expected.dtype)
            right[at] = expected[rows]
            for source in sources:
                out = np.full_like(right, 7)
                stats = source.read_into(batch, rows, out, at=at)
                assert same_bits(out, right), source.strategy
                assert stats.rows == len(rows)
                source.release(batch)
        assert spill.used_bytes == 0
        for source in sources:
            source.close()


@given(
    misses=st.lists(st.sets(st.integers(0, 99)), max_size=5),
    row_bytes=st.one_of(st.integers(1, 700), st.integers(1, 20_000)),
)
def test_collected_rows_and_pages_are_those_a_set_would_hold(misses: list[set[int]], row_bytes: int) -> None:
    arrays = [np.array(sorted(rows), np.int64) for rows in misses]
    pages = {
        page
        for rows in misses
        for row in rows
        for page in range(row * row_bytes // ALIGNMENT, ((row + 1) * row_bytes - 1) // ALIGNMENT + 1)
    }
    for collect, lists in ((collect_rows, misses), (collect_union, [set().union(*misses)])):
        wanted = collect(arrays, num_rows=100, row_bytes=row_bytes, cancellation=NEVER)
        found = [wanted.ids[first:last].tolist() for first, last in pairwise(wanted.bounds)]
        assert found == [sorted(rows) for rows in lists]
        bits = np.unpackbits(wanted.pages.view(np.uint8), bitorder="little")
        assert set(np.flatnonzero(bits)) == pages


def test_collecting_ends_when_it_is_cancelled() -> None:
    answers = iter([False, True])
    with pytest.raises(ChannelClosedError, match="batch 1 was cancelled"):
        collect_rows(
            [np.arange(3)] * 3, num_rows=9, row_bytes=4, cancellation=Cancellation(lambda: next(answers))
        )


@pytest.mark.parametrize("which", range(len(SHAPES)), ids=str)
def test_rows_of_every_kind_in_a_sparse_superbatch(stores, which: int, tmp_path: Path) -> None:
    path, array, wide = stores[which]
    misses = [np.arange(5 + batch, NUM_ROWS, 7) for batch in range(3)]
    with (
        FeatureStore.open(path) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill, max_gap_bytes=0) as packer,
    ):
        sources = (
            load_misses(store, misses, cancellation=NEVER),
            packer.pack(misses, superbatch=0, cancellation=NEVER),
        )
        for source, expected in product(sources, (array, wide)):
            for batch, rows in enumerate(misses):
                out = np.zeros((len(rows), array.shape[1]), expected.dtype)
                source.read_into(batch, rows, out, at=np.arange(len(rows)))
                assert same_bits(out, expected[rows])


@given(
    bits=st.binary(min_size=8, max_size=64).filter(lambda bits: len(bits) % 8 == 0),
    max_pages=st.integers(1, 5),
    gap_pages=st.integers(0, 3),
    ring_pages=st.integers(5, 17),
    depth=st.integers(1, 9),
    consume=st.randoms(use_true_random=False),
)
def test_extents_cover_the_wanted_pages_and_share_no_byte_of_the_ring(
    bits, max_pages, gap_pages, ring_pages, depth, consume
) -> None:
    pages = np.frombuffer(bits, np.uint64).copy()
    num_pages = 64 * len(pages)
    none, words = np.zeros(0, np.int64), np.zeros(512 * ring_pages, np.uint64)
    sweep = kernels.Sweep(
        ids=none.astype(np.int32), long_ids=none, ends=np.zeros(1, np.int64), has_more=np.zeros(1, np.bool_),
        pages=pages, num_pages=num_pages, row_bytes=4,
        checksums=none.view(np.uint64), format_version=2, max_bytes=max_pages * ALIGNMENT,
        gap_bytes=gap_pages * ALIGNMENT,
        ring=words.view(np.uint8), ring_words=words, extents=np.zeros((5, depth), np.int64),
        batches=np.zeros((6, 1), np.int64), pieces=words.view(np.uint8), piece_words=words, piece_bytes=4096,
        owners=np.zeros((3, 1), np.int64), free=np.zeros(1, np.int64), ready=np.zeros(1, np.int64),
        failed=np.zeros(1, np.int64), sums=none.view(np.uint64), first_page=np.zeros(1, np.int64),
        state=np.zeros(kernels.NUM_STATES, np.int64),
    )  # fmt: skip
    kernels.begin(sweep, np.zeros(1, np.int64))
    state, read = sweep.state, []
    while True:
        kernels.plan_reads(sweep)
        in_flight = range(int(state[kernels.HEAD]), int(state[kernels.PLANNED]))
        if not in_flight:
            break
        taken = sorted(
            tuple(sweep.extents[[kernels.AT, kernels.LENGTH], number % depth].tolist())
            for number in in_flight
        )
        assert all(at + length <= after for (at, length), (after, _) in pairwise(taken))
        assert taken[-1][0] + taken[-1][1] <= 4096 * ring_pages
        for number in in_flight[: consume.randint(1, len(in_flight))]:
            start, length = sweep.extents[[kernels.START, kernels.LENGTH], number % depth] // ALIGNMENT
            assert length <= max_pages
            read += range(start, start + length)
            assert kernels.deal_out(number % depth, sweep) == kernels.DEALT
    wanted = np.flatnonzero(np.unpackbits(pages.view(np.uint8), bitorder="little"))
    assert read == sorted(set(read))
    assert set(wanted) <= set(read)
    assert gap_pages > 0 or len(read) == len(wanted)
