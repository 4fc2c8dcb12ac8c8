"""The slot cache: bytes of any dtype, copies by several threads, and the guard."""

from __future__ import annotations

import numpy as np
import pytest

from gloader.cache import SlotCache, plan_belady
from gloader.errors import PlanError, ShapeError
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
