"""Rows that arrive late, not at all, or on a disk that fails: typed errors, and nothing left behind."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrived_rows import PlayedPages, arrange, play

from gloader.core.signals import NEVER, Cancellation
from gloader.errors import ChannelClosedError, PlanError, RankError, StoreError
from gloader.ssd_store import FeatureStore, Packer, load_misses
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gloader.ssd_store.sweep.supply import ArrivingRows
    from gloader.ssd_store.sweep.wanted_rows import ArrivalLayout

NUM_ROWS, DIM = 9000, 100
FEATURES = np.random.default_rng(0).standard_normal((NUM_ROWS, DIM)).astype(np.float32)
MISSES = [np.arange(start, NUM_ROWS, 3 + start) for start in range(4)] + [np.empty(0, np.int64)]
OPENED: dict[str, Any] = {"auto": {}, "threads": {"io": "threads"}, "plain": {"os_io": FaultyOS()}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arrivals") / "s"
    FeatureStore.create(path, FEATURES).close()
    return path


@pytest.fixture(scope="module")
def layout() -> ArrivalLayout:
    rows = np.unique(np.concatenate(MISSES))
    return arrange(rows, 4 * DIM, owners=3, rounds=4, rng=np.random.default_rng(1))


class Machine:
    """What makes packs, or staged rows, of rows that arrive."""

    def __init__(self, store: FeatureStore, spill: SpillFolder, packer: Packer, kind: str) -> None:
        self.store, self.spill, self._packer, self._kind = store, spill, packer, kind

    def make(self, arriving: ArrivingRows, cancellation: Cancellation = NEVER) -> Any:
        if self._kind == "staged":
            return load_misses(self.store, MISSES, cancellation=cancellation, arriving=arriving)
        return self._packer.pack(MISSES, superbatch=7, cancellation=cancellation, arriving=arriving)

    def require_nothing_left(self) -> None:
        names = [path.name for path in self.spill.path.iterdir()]
        assert (names, self.spill.used_bytes) == (["owner.json"], 0)


@pytest.fixture(params=["packed", "staged"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=OPENED)
def machine(request: pytest.FixtureRequest, kind: str, path: Path, tmp_path: Path) -> Iterator[Machine]:
    with (
        FeatureStore.open(path, **OPENED[request.param]) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill, memory_bytes=2**21) as packer,
    ):
        yield Machine(store, spill, packer, kind)


def require_right(made: Any) -> None:
    for batch, rows in enumerate(MISSES):
        out = np.zeros((len(rows), DIM), np.float32)
        made.read_into(batch, rows, out, at=np.arange(len(rows)))
        assert np.array_equal(out, FEATURES[rows])


def test_a_source_that_fails_or_is_cancelled_at_any_read_leaves_nothing(
    machine: Machine, layout: ArrivalLayout
) -> None:
    arriving, source = play(layout, FEATURES)
    machine.make(arriving).close()
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert len(source.reads) >= 3
    for number in range(1, len(source.reads) + 1):
        gone = RankError("rank 2 on machine b is gone")
        arriving, source = play(layout, FEATURES, error=gone, fail_at=number)
        with pytest.raises(RankError) as caught:
            machine.make(arriving)
        assert caught.value is gone
        machine.require_nothing_left()
        arriving, source = play(layout, FEATURES, wait_at=number)
        looks = 0

        def test() -> bool:
            nonlocal looks
            looks += 1
            return looks > 60  # those of the sweep itself are fewer

        with pytest.raises(ChannelClosedError, match="waiting for rows was cancelled"):
            machine.make(arriving, Cancellation(test))
        assert len(source.reads) == number
        machine.require_nothing_left()
        assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
    made = machine.make(play(layout, FEATURES)[0])
    require_right(made)
    made.close()


def test_a_sweep_over_rows_that_arrive_can_be_cancelled_at_any_look(
    machine: Machine, layout: ArrivalLayout
) -> None:
    for allowed in range(60):
        looks = 0

        def test(allowed: int = allowed) -> bool:
            nonlocal looks
            looks += 1
            return looks > allowed

        try:
            machine.make(play(layout, FEATURES)[0], Cancellation(test)).close()
        except ChannelClosedError as error:
            assert "was cancelled" in str(error)  # noqa: PT017
            machine.require_nothing_left()
        else:
            break
    assert allowed == looks >= 10


def test_rows_that_do_not_arrive_or_are_of_another_length_are_refused(
    machine: Machine, layout: ArrivalLayout
) -> None:
    rng = np.random.default_rng(2)
    without = arrange(np.setdiff1d(layout.rows, [3003]), 400, owners=3, rounds=2, rng=rng)
    with pytest.raises(PlanError, match="row 3003 is missed and does not arrive from any machine"):
        machine.make(play(without, FEATURES)[0])
    shorter = arrange(layout.rows, 200, owners=3, rounds=2, rng=rng)
    with pytest.raises(PlanError, match=r"rows of 200 bytes arrive, and those of .*features\.npy have 400"):
        machine.make(play(shorter, FEATURES[:, :50].copy())[0])
    machine.require_nothing_left()


def test_each_failing_call_while_rows_arrive(path: Path, tmp_path: Path, layout: ArrivalLayout) -> None:
    """The n-th system call on the store or the spill folder fails, for every n."""
    healthy, failures = FaultyOS(), 0
    arriving, source = play(layout, FEATURES)
    with FeatureStore.open(path, os_io=healthy) as store, SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        for n in range(1, 2000):
            faulty = FaultyOS(fail_at=n)
            store._os_io = spill._os_io = faulty
            try:
                with Packer(store, spill, memory_bytes=2**22) as packer:
                    again = replace(arriving, source=PlayedPages(source.content))
                    made = packer.pack(MISSES, superbatch=7, cancellation=NEVER, arriving=again)
                    require_right(made)
                    made.close()
            except StoreError as error:
                failures += 1
                assert getattr(error, "errno", errno.EIO) == errno.EIO  # noqa: PT017 - either is right
            spill._os_io = healthy
            if not faulty.was_hit:
                break
            if faulty.history[n - 1] != "unlink":
                assert spill.used_bytes == 0
        assert n > 60
        assert failures > 20
        assert "pwrite" in faulty.history
