"""The slot cache: bytes of any dtype, copies by several threads, and the guard."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gloader.cache import SlotCache, plan_belady
from gloader.core.thread_times import own_account
from gloader.errors import FeatureValueError, PlanError, ShapeError
from gloader.ssd_store import RamFeatures
from gloader.types import CacheStep, IdArray

NOTHING = np.empty(0, dtype=np.int64)


def hits(positions: IdArray, slots: IdArray) -> CacheStep:
    return CacheStep(
        hit_pos=positions, hit_slot=slots, miss_pos=NOTHING, miss_row=NOTHING, admit_pos=NOTHING, admit_slot=NOTHING
    )  # fmt: skip


def admissions(positions: list[int], slots: list[int]) -> CacheStep:
    return CacheStep(
        hit_pos=NOTHING, hit_slot=NOTHING, miss_pos=NOTHING, miss_row=NOTHING,
        admit_pos=np.array(positions), admit_slot=np.array(slots),
    )  # fmt: skip


def _resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_memory_of_rows_comes_as_they_are_admitted() -> None:
    with SlotCache(2, dim=256) as small:  # compiles the kernels, which takes memory of its own
        small.admit(admissions([0], [1]), np.array([7]), np.ones((1, 256), np.float32))
    before = _resident_bytes()
    with SlotCache(1 << 19, dim=256) as cache:  # 512 MiB of rows, which took half a second to write
        assert _resident_bytes() - before < 64 << 20
        cache.admit(admissions([0], [1 << 18]), np.array([7]), np.ones((1, 256), np.float32))
        assert _resident_bytes() - before < 64 << 20
        assert cache.num_bytes == (1 << 19) * (1024 + 8)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 8, 33])
def test_rows_of_any_width_are_copied_byte_by_byte(dtype: str, dim: int) -> None:
    rng = np.random.default_rng(0)
    features = rng.integers(-100, 100, (40, dim)).astype(dtype)
    with SlotCache(16, dim=dim, dtype=dtype) as cache:
        nodes = rng.permutation(40)[:20]
        out = features[nodes]
        cache.admit(admissions([3, 0, 19], [15, 2, 0]), nodes, out)
        assert cache.resident[[15, 2, 0]].tolist() == nodes[[3, 0, 19]].tolist()
        again = np.zeros_like(out)
        cache.copy_hits(hits(np.array([0, 19, 3]), np.array([2, 0, 15])), nodes, again)
        assert np.array_equal(again[[0, 3, 19]], out[[0, 3, 19]])
        assert not again[[1, 2, *range(4, 19)]].any()
        assert cache.num_bytes == 16 * (features.itemsize * dim + 8)


def _stored(name: str, rows: int, dim: int) -> tuple[RamFeatures, dict[str, Any]]:
    """Return features stored as ``name``, and what a slot cache must know to hold them so."""
    rng = np.random.default_rng(0)
    if name == "int8":
        scale = np.concatenate([rng.random(rows - 4), [0, -0.3, 1e-45, 1e36]]).astype(np.float32)
        array = rng.integers(-128, 128, (rows, dim)).astype(np.int8)
        return RamFeatures(array, scale=scale), {"dtype": np.int8, "scale": scale}
    floats = rng.standard_normal((rows, dim)).astype(np.float32)
    floats[0], floats[1], floats[2] = 0, -1e-7, 3e-5  # subnormal as float16
    if name == "float16":
        return RamFeatures(floats.astype(np.float16)), {"dtype": np.float16}
    brains = (floats.view(np.uint32) >> 16).astype(np.uint16)
    return RamFeatures(brains, is_bfloat16=True), {"dtype": np.uint16, "is_bfloat16": True}


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("dim", [1, 7, 64])
def test_rows_held_as_stored_are_the_float32_rows_bit_by_bit(name: str, dim: int) -> None:
    source, how = _stored(name, 60, dim)
    wanted = np.empty((60, dim), dtype=np.float32)
    source.read_into(np.arange(60), wanted)
    with SlotCache(50, dim=dim, threads=2, **how) as cache:
        cache.fill(np.arange(0, 40), source, chunk_rows=7)
        stored = np.empty((60, dim), dtype=source.dtype)
        source.read_into(np.arange(60), stored)
        scale = how.get("scale", np.ones(60, dtype=np.float32))
        nodes = np.random.default_rng(1).permutation(60)
        place = np.argsort(nodes)
        cache.admit(admissions(place[30:60].tolist(), list(range(20, 50))), nodes, wanted[nodes])
        same = (cache._rows[20:] == stored[30:]) | (scale[30:, None] == 0)
        assert same.all()
        assert np.array_equal(cache._rows[:20], stored[:20])
        assert cache.resident.tolist() == [*range(20), *range(30, 60)]
        held = cache.resident
        out = np.zeros((60, dim), dtype=np.float32)
        cache.copy_hits(hits(place[held], np.arange(50)), nodes, out)
        assert np.array_equal(out[place[held]].view(np.uint32), wanted[held].view(np.uint32))
        assert cache.num_bytes == 50 * (source.dtype.itemsize * dim + 8)
        with pytest.raises(PlanError, match="which holds row 0"):
            cache.copy_hits(hits(place[[1]], np.array([0])), nodes, out)
        with pytest.raises(PlanError, match="out of range"):
            cache.admit(admissions([0], [50]), nodes, out)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("value", [0.1, 1e9, -1e-10, np.nan])
def test_a_value_that_was_never_stored_is_refused_and_its_slot_left_empty(name: str, value: float) -> None:
    source, how = _stored(name, 9, 3)
    with SlotCache(2, dim=3, **how) as cache:
        cache.fill(np.arange(2), source)
        out = np.zeros((4, 3), dtype=np.float32)
        out[2, 1] = np.nextafter(np.float32(value), np.float32(0))
        if name != "int8" and np.isnan(value):
            out[2, 1:] = np.array([0x7F800001, 0]).astype(np.uint32).view(np.float32)
        with pytest.raises(FeatureValueError, match=rf"row 6 of the batch .* cannot hold as {name}"):
            cache.admit(admissions([1, 2], [0, 1]), np.array([5, 8, 6, 7]), out)
        assert cache.resident.tolist() == [8, -1]


def test_a_row_without_a_scale_is_refused() -> None:
    source, how = _stored("int8", 9, 3)
    with SlotCache(2, dim=3, **how) as cache:
        cache.fill(np.arange(2), source)
        with pytest.raises(PlanError, match="out of range"):
            cache.admit(admissions([0], [0]), np.array([9]), np.zeros((1, 3), dtype=np.float32))
        with pytest.raises(ShapeError, match="C-contiguous int8 or float32 of at least 1 rows of 3"):
            cache.admit(admissions([0], [0]), np.array([8]), np.zeros((1, 3), dtype=np.float16))
    with (
        SlotCache(2, dim=3, dtype=np.uint16) as plain,
        pytest.raises(ShapeError, match="C-contiguous uint16 of"),
    ):
        plain.admit(admissions([0], [0]), np.array([8]), np.zeros((1, 3), dtype=np.float32))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_several_threads_copy_every_hit_and_every_guard_holds(threads: int) -> None:
    rng = np.random.default_rng(0)
    features = rng.random((4000, 300), dtype=np.float32)
    with SlotCache(4000, dim=300, threads=threads) as cache:
        cache.fill(np.arange(4000), RamFeatures(features), chunk_rows=999)
        nodes = rng.permutation(4000)
        out = np.zeros((4000, 300), dtype=np.float32)
        cache.copy_hits(hits(np.arange(4000), nodes), nodes, out)
        assert np.array_equal(out, features[nodes])
        for wrong in (5, 3999):
            lied = nodes.copy()
            lied[wrong] = nodes[wrong - 1]
            with pytest.raises(
                PlanError, match=f"node {lied[wrong]} at position {wrong} was planned as a hit"
            ):
                cache.copy_hits(hits(np.arange(4000), nodes), lied, out)
        cache.close()
        cache.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_processor_time_of_copy_threads_counts_for_who_gathers(threads: int) -> None:
    features = np.ones((4000, 300), dtype=np.float32)
    nodes, out = np.arange(4000), np.zeros((4000, 300), dtype=np.float32)
    with SlotCache(4000, dim=300, threads=threads) as cache:
        cache.fill(nodes, RamFeatures(features))
        before = own_account().used_ns
        cache.copy_hits(hits(nodes, nodes), nodes, out)
    assert (own_account().used_ns > before) == (threads > 1)


@pytest.mark.reliability("E5")
def test_a_plan_for_another_content_is_an_error_not_a_wrong_row() -> None:
    features = np.arange(30, dtype=np.float32).reshape(10, 3)
    trace = [np.array([1, 2]), np.array([2, 1])]
    plan = plan_belady(trace, capacity=2)
    out = np.zeros((2, 3), dtype=np.float32)
    with SlotCache(2, dim=3) as cache:
        source = RamFeatures(features)
        cache.fill(np.array([7, 8]), source)
        with pytest.raises(
            PlanError, match=r"planned as a hit in slot \d, which holds row [78]: .* disagree"
        ):
            cache.execute(plan.steps[1], trace[1], out, source)
        for step, nodes in zip(plan.steps, trace, strict=True):
            cache.execute(step, nodes, out, source)
            assert np.array_equal(out, features[nodes])


def test_positions_and_slots_out_of_range_are_refused() -> None:
    out, nodes = np.zeros((2, 3), dtype=np.float32), np.array([1, 2])
    with SlotCache(2, dim=3) as cache:
        for position, slot in ((2, 0), (-1, 0), (0, 2), (0, -1)):
            with pytest.raises(PlanError, match="out of range"):
                cache.copy_hits(hits(np.array([position]), np.array([slot])), nodes, out)
            with pytest.raises(PlanError, match="out of range"):
                cache.admit(admissions([position], [slot]), nodes, out)
        with pytest.raises(PlanError, match="3 rows do not fit 2 slots"):
            cache.fill(np.arange(3), RamFeatures(np.zeros((5, 3), dtype=np.float32)))


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((1, 3), dtype=np.float32),
        np.zeros((2, 4), dtype=np.float32),
        np.zeros((2, 3), dtype=np.float64),
        np.zeros((3, 2), dtype=np.float32).T,
        np.zeros(6, dtype=np.float32),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(out: np.ndarray) -> None:
    with SlotCache(2, dim=3) as cache, pytest.raises(ShapeError, match="of at least 2 rows of 3"):
        cache.admit(admissions([], []), np.array([1, 2]), out)


@pytest.mark.parametrize("settings", [{"capacity": -1}, {"dim": 0}, {"threads": 0}])
def test_impossible_caches_are_refused(settings: dict) -> None:
    with pytest.raises(ShapeError, match="cannot be made"):
        SlotCache(**({"capacity": 1, "dim": 1} | settings))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_rows_are_copied_for_others_while_their_slots_hold_them(dtype: str) -> None:
    rng = np.random.default_rng(1)
    features = rng.integers(-100, 100, (50, 3)).astype(dtype)
    with SlotCache(20, dim=3, dtype=dtype) as cache:
        nodes = rng.permutation(50)[:20]
        cache.admit(admissions(list(range(20)), list(range(20))), nodes, features[nodes])
        wanted = np.arange(5, 45)
        out = np.full((40, 3 * features.itemsize), 77, np.uint8)
        is_held = cache.copy_held(wanted, out)
        assert set(wanted[is_held].tolist()) == {node for node in nodes if 5 <= node < 45}
        assert np.array_equal(out[is_held].view(dtype), features[wanted[is_held]])
        assert (out[~is_held] == 77).all()
        with pytest.raises(ShapeError, match="it must be C-contiguous uint8 of shape"):
            cache.copy_held(wanted, out[:3])
        assert not cache.copy_held(wanted[:0], out[:0]).any()


def test_a_row_that_is_replaced_while_it_is_copied_for_others_is_whole_or_not_there() -> None:
    """A thread admits one row after the other to one slot; whoever copies one meanwhile gets all of it."""
    dim, rows = 4096, np.arange(64)
    features = np.repeat(rows[:, None], dim, axis=1).astype(np.float32)
    with SlotCache(1, dim=dim) as cache:
        is_over = threading.Event()

        def replace_rows() -> None:
            while not is_over.is_set():
                for row in rows:
                    cache.admit(admissions([0], [0]), rows[row : row + 1], features[row : row + 1])

        thread = threading.Thread(target=replace_rows)
        thread.start()
        try:
            out = np.empty((64, 4 * dim), np.uint8)
            for _ in range(500):
                is_held = cache.copy_held(rows, out)
                assert np.array_equal(out[is_held].view(np.float32), features[is_held])
        finally:
            is_over.set()
            thread.join()
