"""Rows that arrive from other machines give the packs and staged rows that those of the own disk give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrived_rows import arrange, play, slot_of_each
from hypothesis import given
from hypothesis import strategies as st

from gloader.core.signals import NEVER
from gloader.errors import PlanError
from gloader.ssd_store import FeatureStore, Packer, load_misses
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.testing.faults import FaultyOS
from gloader.testing.suites import make_features, same_bits, widen

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

NUM_ROWS = 500
SHAPES = [  # rows of 4 B to 9,000 B; of int8 with and without scales
    (1, "float32", False),
    (33, "int8", True),
    (200, "int8", False),
    (100, "float32", False),
    (128, "float16", False),
    (1000, "bfloat16", False),
    (1632, "float32", False),
    (2250, "float32", False),
]
OPENED: list[dict[str, Any]] = [{"io": "auto"}, {"io": "threads"}, {"io": "buffered", "verify": "off"}, {}]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, NDArray[Any], Any]]:
    found = []
    for dim, dtype, has_scale in SHAPES:
        path = tmp_path_factory.mktemp("stores") / f"{dtype}-{dim}"
        array = make_features(NUM_ROWS, dim, dtype, seed=dim)
        scale = np.random.default_rng(dim).random(NUM_ROWS, np.float32) if has_scale else None
        with NewDirectory(path, manifest_name="store.json") as directory:
            with directory.array("features", dtype=dtype, shape=array.shape) as writer:
                writer.append(array)
            if scale is not None:
                with directory.array("features.scale", dtype="float32", shape=scale.shape) as writer:
                    writer.append(scale)
            directory.commit("feature_store", {})
        found.append(
            (path, array, array if dtype == "int8" and not has_scale else widen(array, dtype, scale))
        )
    return found


def draw_misses(rng: np.random.Generator, num_batches: int) -> list[NDArray[np.int64]]:
    """Lists of rows: none, one, a few, half, all, the same again."""
    lists: list[NDArray[np.int64]] = []
    for kind in rng.integers(0, 6, num_batches).tolist():
        if kind == 5 and lists:
            lists.append(lists[-1])
        else:
            share = (0.0, 0.002, 0.05, 0.5, 2.0, 0.01)[kind]
            lists.append(np.flatnonzero(rng.random(NUM_ROWS) < share))
    return lists


@given(
    seed=st.integers(0, 2**32),
    num_rows=st.integers(0, 300),
    row_bytes=st.integers(4, 9000),
    owners=st.integers(1, 5),
    rounds=st.integers(1, 6),
    is_aligned=st.booleans(),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_slots_and_their_order_are_those_of_a_list_of_all(
    seed, num_rows, row_bytes, owners, rounds, is_aligned, dtype
) -> None:
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(10_000, num_rows, replace=False))
    layout = arrange(
        rows, row_bytes, owners=owners, rounds=rounds, rng=rng, is_aligned=is_aligned, dtype=dtype
    )
    slots = slot_of_each(layout)
    for share in (0.0, 0.02, 0.5, 1.0):
        wanted = rows[rng.random(num_rows) < share]
        order = layout.order.positions(wanted)
        assert wanted[order].tolist() == sorted(wanted.tolist(), key=slots.__getitem__)
        assert layout.slots(wanted).tolist() == sorted(slots[row] for row in wanted.tolist())
    for stranger in np.setdiff1d(np.arange(10_000), rows)[[0, -1, int(rng.integers(9_000))]].tolist():
        with pytest.raises(PlanError, match=f"row {stranger} is missed and does not arrive from any machine"):
            layout.slots(np.union1d(wanted, [stranger]))


@given(
    seed=st.integers(0, 2**32),
    which=st.integers(0, len(SHAPES) - 1),
    settings=st.sampled_from(OPENED),
    num_batches=st.integers(1, 20),
    owners=st.integers(1, 5),
    rounds=st.integers(1, 6),
    others=st.sampled_from([0.0, 0.3]),
    is_aligned=st.booleans(),
    memory_mib=st.sampled_from([2, 16]),
    as_floats=st.booleans(),
)
def test_rows_that_arrive_are_those_that_were_stored(
    stores, seed, which, settings, num_batches, owners, rounds, others, is_aligned, memory_mib, as_floats,
    tmp_path_factory,
) -> None:  # fmt: skip
    path, array, wide = stores[which]
    expected = wide if as_floats else array
    settings = settings or {"os_io": FaultyOS()}  # one request at a time
    rng = np.random.default_rng(seed)
    misses = draw_misses(rng, num_batches)
    # Others may come as well, which this machine does not miss any more.
    rows = np.unique(np.concatenate([*misses, np.flatnonzero(rng.random(NUM_ROWS) < others)]))
    with (
        FeatureStore.open(path, **settings) as store,
        SpillFolder(tmp_path_factory.getbasetemp(), budget_bytes=10**9) as spill,
        Packer(store, spill, memory_bytes=memory_mib * 2**20) as packer,
    ):
        layout = arrange(rows, store.row_bytes, owners=owners, rounds=rounds, rng=rng, is_aligned=is_aligned)
        staged_rows, staged_from = play(layout, array)
        packed_rows, packed_from = play(layout, array)
        staged = load_misses(store, misses, cancellation=NEVER, arriving=staged_rows)
        packed = packer.pack(misses, superbatch=0, cancellation=NEVER, arriving=packed_rows)
        assert staged_from.num_closed == packed_from.num_closed == 0, "they are their owner's"
        for batch, wanted in enumerate(misses):
            at = rng.permutation(NUM_ROWS + 3)[: len(wanted)]
            right = np.full((NUM_ROWS + 3, array.shape[1]), 7, expected.dtype)
            right[at] = expected[wanted]
            for source in (staged, packed):
                out = np.full_like(right, 7)
                assert source.read_into(batch, wanted, out, at=at).rows == len(wanted)
                assert same_bits(out, right), source.strategy
                source.release(batch)
        for made, played in ((staged, staged_from), (packed, packed_from)):
            assert made.cost.read.bytes_read == made.cost.read.requests == 0
            assert made.cost.bytes_brought == sum(length for _, length in played.reads)
            made.close()
        assert spill.used_bytes == 0
