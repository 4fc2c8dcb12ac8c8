"""A stage that fails, in memory and out of core: the first error reaches the loop, everything ends."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gloader
from gloader.errors import BudgetError, SpillError, StallError
from gloader.types import BatchId, ReadStats

from .conftest import DIM, Written
from .failing import Failing, replace_parts

ROW = DIM * 4


@pytest.fixture
def build(tiny: Written, tmp_path: Path) -> Iterator[Callable[..., gloader.Loader]]:
    """Return a function that builds loaders, closed at the end."""
    loaders: list[gloader.Loader] = []

    def build(**settings: Any) -> gloader.Loader:
        defaults: dict[str, Any] = {
            "fanouts": [4, 3],
            "batch_size": 16,
            "memory_budget": "200MB",
            "threads": 3,
            "spill_dir": tmp_path,
        }
        loaders.append(gloader.Loader(tiny.dataset, **(defaults | settings)))
        return loaders[-1]

    yield build
    for loader in loaders:
        loader.close()


@pytest.fixture(autouse=True)
def _compiled(tiny: Written, tmp_path: Path) -> None:
    """Run every kernel once: while one compiles, a failure behind it becomes overdue."""
    if _COMPILED:
        return
    for mode in MODES:
        with gloader.Loader(
            tiny.dataset, fanouts=[4, 3], batch_size=16, spill_dir=tmp_path, **mode
        ) as loader:
            list(loader)
    _COMPILED.append(True)


_COMPILED: list[bool] = []


def _drain(loader: gloader.Loader) -> tuple[list[int], BaseException]:
    """Take batches until something is raised; everything has ended then."""
    delivered: list[int] = []
    try:
        delivered.extend(batch.id.index for batch in loader)
    except BaseException as error:
        names = [t.name for t in threading.enumerate() if t.name.startswith("gloader")]
        assert names == []
        return delivered, error
    raise AssertionError("nothing was raised")


MODES: list[dict[str, Any]] = [
    {"features": "ram"},
    {"features": "ssd", "cache": 100 * ROW},
    {"features": "ssd", "cache": 100 * ROW, "superbatch": 2, "io_strategy": "packed"},
]


@pytest.mark.reliability("D1")
@pytest.mark.reliability("D3")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize("kind", [ValueError, MemoryError, SystemExit, KeyboardInterrupt])
def test_a_sampler_that_raises_reaches_the_loop_behind_the_batches_before_it(
    build: Callable[..., gloader.Loader], mode: dict[str, Any], at: int, kind: type[BaseException]
) -> None:
    loader = build(**mode)
    boom = kind("boom")
    sampler = Failing(loader._held.tier.sampler, "sample", boom, lambda i, _: i == BatchId(epoch=0, index=at))
    replace_parts(loader, sampler=sampler)
    delivered, error = _drain(loader)
    assert error is boom
    assert delivered == list(range(at))
    assert error.__notes__ == [f"in stage sample, epoch 0, batch {at}"]


@pytest.mark.reliability("D1")
def test_a_failure_far_ahead_is_heard_of_within_five_seconds(
    build: Callable[..., gloader.Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gloader.pipeline.threads._PATIENCE_S", 1.5)
    loader = build(features="ssd", cache=100 * ROW)
    boom = OSError("topology")
    replace_parts(
        loader, sampler=Failing(loader._held.tier.sampler, "sample", boom, lambda i, _: i.index == 6)
    )
    iterator = iter(loader)
    next(iterator)
    for _ in range(300):  # a slow model; the batches up to the sixth would be there
        if not [t for t in threading.enumerate() if t.name == "gloader-failure"]:
            break
        time.sleep(0.02)
    with pytest.raises(OSError, match="topology"):
        next(iterator)


@pytest.mark.reliability("D2")
@pytest.mark.parametrize(
    ("part", "method", "stage"),
    [("planner", "plan", "inspect"), ("retrieval", "begin", "stage"), ("slots", "copy_hits", "gather")],
)
def test_a_stage_that_raises_is_named(
    build: Callable[..., gloader.Loader], part: str, method: str, stage: str
) -> None:
    loader = build(features="ssd", cache=100 * ROW, superbatch=2)
    calls = iter(range(100))
    boom = RuntimeError("boom")
    inner = getattr(loader._held.tier.require_ssd()[0], part)
    replace_parts(loader, **{part: Failing(inner, method, boom, lambda *_: next(calls) == 1)})
    delivered, error = _drain(loader)
    assert error is boom
    assert delivered == [0]  # the first superbatch
    assert error.__notes__[0].startswith(f"in stage {stage}, epoch 0, batch 1")


@pytest.mark.reliability("D2")
def test_of_two_failures_one_is_raised_and_the_other_is_noted(build: Callable[..., gloader.Loader]) -> None:
    loader = build(features="ssd", cache=100 * ROW, superbatch=2)
    tier = loader._held.tier
    failed = threading.Event()

    def is_due(batch_id: BatchId, _: Any) -> bool:
        if batch_id.index == 6:
            failed.set()
        return batch_id.index == 6

    replace_parts(
        loader,
        sampler=Failing(tier.sampler, "sample", ValueError("later in the stream"), is_due),
        slots=Failing(tier.require_ssd()[0].slots, "admit", OSError("first"), lambda *_: failed.wait(5)),
    )
    delivered, error = _drain(loader)
    assert delivered == []
    assert str(error) == "first"
    assert any("ValueError('later in the stream')" in note for note in error.__notes__)
    assert any("in stage sample, epoch 0, batch 6" in note for note in error.__notes__)


def test_after_a_failure_the_next_epoch_is_right(build: Callable[..., gloader.Loader], tiny: Written) -> None:
    loader = build(features="ssd", cache=100 * ROW, superbatch=2)
    whole = loader._held.tier
    calls = iter(range(100))
    replace_parts(
        loader,
        slots=Failing(whole.require_ssd()[0].slots, "admit", OSError("x"), lambda *_: next(calls) == 3),
    )
    _drain(loader)
    loader._held.tier = whole
    batches = 0
    for batch in loader:
        np.testing.assert_array_equal(batch.x.numpy(), tiny.features[batch.nodes])
        batches += 1
    assert batches == len(loader)
    assert loader.stats.hit_rate > 0


@pytest.mark.reliability("D10")
def test_a_stage_that_does_not_come_back_is_a_stall(
    build: Callable[..., gloader.Loader], caplog: pytest.LogCaptureFixture
) -> None:
    loader = build(features="ssd", cache=100 * ROW, io_strategy="direct", stall_timeout_s=0.3)
    store = loader._held.tier.require_ssd()[0].store
    released = threading.Event()
    read_into = store.read_into

    def hang(*args: Any, **kwargs: Any) -> ReadStats:
        released.wait(20)
        return read_into(*args, **kwargs)

    store.read_into = hang  # type: ignore[method-assign]
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(StallError, match="stage read of epoch 0, batch 0") as caught,
    ):
        next(iter(loader))
    assert "has not returned" in str(caught.value)
    assert "in hang" in caplog.text  # the stacks of all threads
    assert "gloader-read" in caplog.text
    released.set()
    for thread in threading.enumerate():
        if thread.name.startswith("gloader"):
            thread.join(10)
    loader._held.tier.close()  # what a stuck thread may still use is left open, until here


@pytest.mark.reliability("E1")
def test_a_pack_that_does_not_fit_ends_the_loader_cleanly(
    build: Callable[..., gloader.Loader], tmp_path: Path
) -> None:
    loader = build(features="ssd", cache=0, io_strategy="packed", spill_budget=4096)
    delivered, error = _drain(loader)
    assert delivered == []
    assert isinstance(error, BudgetError | SpillError)
    assert "4096" in str(error)
    loader.close()
    assert [path.name for path in tmp_path.iterdir() if "spill" in path.name] == []


@pytest.mark.reliability("C14")
def test_packs_without_a_place_for_them_are_refused_at_once(build: Callable[..., gloader.Loader]) -> None:
    with pytest.raises(BudgetError, match="spill_budget"):
        build(features="ssd", cache=0, io_strategy="packed", spill_budget=0)
    assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")] == []


def test_packs_leave_with_the_loader(build: Callable[..., gloader.Loader], tmp_path: Path) -> None:
    loader = build(features="ssd", cache=0, io_strategy="packed", superbatch=2)
    for batch in loader:
        if batch.id.index == 3:
            break
    spill = loader._held.tier.require_ssd()[0].retrieval._spill
    assert spill is not None
    assert spill.used_bytes == 0  # nothing of the superbatches that were under way
    assert loader.stats.bytes_written > 0
    loader.close()
    assert [path.name for path in tmp_path.iterdir() if "spill" in path.name] == []


@pytest.mark.reliability("D13")
@pytest.mark.parametrize("mode", MODES)
def test_a_buffer_that_is_held_is_not_used_again(
    build: Callable[..., gloader.Loader], tiny: Written, mode: dict[str, Any]
) -> None:
    loader = build(**mode)
    held = []
    for batch in loader:
        held.append(batch)
        for kept in held:  # the oldest is many buffers old
            np.testing.assert_array_equal(kept.x.numpy(), tiny.features[kept.nodes])
    assert len(held) == len(loader)


@pytest.mark.reliability("D13")
def test_holding_every_buffer_blocks_and_then_says_so(build: Callable[..., gloader.Loader]) -> None:
    loader = build(features="ram")
    loader._held.tier.ring._max_bytes = 5 * 200 * ROW
    loader._held.tier.ring._patience_s = 0.2
    held = []
    with pytest.raises(BudgetError, match="held by batches that the loop keeps alive"):
        for _ in range(3):
            held.extend(loader)


@pytest.mark.reliability("D13")
def test_a_batch_on_its_way_counts_from_the_first_on(build: Callable[..., gloader.Loader]) -> None:
    """Else a slow disk would be taken for a loop that holds every buffer."""
    loader = build(features="ram")
    iterator = iter(loader)
    assert loader._held.tier.ring._on_their_way is not None
    del iterator


def test_closing_a_run_again_leaves_the_next_one_alone(build: Callable[..., gloader.Loader]) -> None:
    loader = build(features="ssd", cache=100 * ROW)
    iterator = iter(loader)
    old = loader._held.run
    assert old is not None
    del iterator
    again = iter(loader)
    old.close()
    assert len(list(again)) == len(loader)


def test_the_stages_work_on_between_epochs_and_end_with_the_last(
    build: Callable[..., gloader.Loader],
) -> None:
    loader = build(features="ssd", cache=100 * ROW, epochs=2)
    list(loader)
    run = loader._held.run
    assert run is not None
    list(loader)
    assert loader._held.run is None
    assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")] == []


def test_a_dropped_loader_ends_its_threads(build: Callable[..., gloader.Loader], tiny: Written) -> None:
    loader = gloader.Loader(tiny.dataset, fanouts=[4], batch_size=16, features="ssd", cache=0)
    for _ in loader:
        pass
    assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")]
    del loader
    assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")] == []
