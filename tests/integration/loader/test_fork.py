"""A loader in forked processes: an error there, never a hang, and the right batches in the parent."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from forking import in_child

import gloader
from gloader.bridges.loader_view import LoaderView
from gloader.errors import ForkError

from .conftest import DIM, NUM_NODES, Written

if TYPE_CHECKING:
    from collections.abc import Iterator


def _loader(tiny: Written, **settings: Any) -> gloader.Loader:
    defaults: dict[str, Any] = {"fanouts": [4, 3], "batch_size": 8, "memory_budget": "200MB", "threads": 2}
    return gloader.Loader(tiny.dataset, **(defaults | settings))


def _check(batch: Any, tiny: Written) -> None:
    np.testing.assert_array_equal(batch.x.numpy(), tiny.features[batch.nodes])
    np.testing.assert_array_equal(batch.y.numpy(), tiny.labels[batch.nodes[: batch.num_seeds]])


@pytest.mark.reliability("J4")
@pytest.mark.reliability("K8")
@pytest.mark.parametrize(
    "settings",
    [
        {"features": "ram"},
        {"features": "ssd", "cache": 9600, "superbatch": 2, "topology": "sweep", "spill_budget": "64MB"},
    ],
)
def test_every_call_in_a_child_answers_and_the_parent_goes_on(
    tiny: Written, settings: dict[str, Any]
) -> None:
    with _loader(tiny, trace=True, **settings) as loader:
        batches = iter(loader)
        _check(next(batches), tiny)
        assert in_child(lambda: _use(loader, batches, tiny)) == 0
        with batches._turn, loader._feedback._lock, batches._recorder._lock:  # type: ignore[attr-defined]
            # Threads of the parent may hold any lock, which the child waited for in vain.
            assert in_child(lambda: _use(loader, batches, tiny)) == 0
        for batch in batches:
            _check(batch, tiny)
        assert loader.stats.batches == len(loader)


def _use(loader: gloader.Loader, batches: Iterator[Any], tiny: Written) -> None:
    """Do what a worker may do with what it inherits."""
    refused = [
        lambda: next(batches),
        lambda: list(batches),
        lambda: iter(loader),
        lambda: loader.stats,
        lambda: loader.reports,
        loader.explain,
        loader.bottleneck,
        lambda: loader.write_trace("never"),
        lambda: loader.load_state_dict(loader.state_dict()),
        lambda: next(iter(LoaderView(loader, convert=lambda batch: batch))),
    ]
    for call in refused:
        with pytest.raises(ForkError, match="start workers with 'spawn' and build it there"):
            call()
    assert loader.state_dict()["next"] == [0, 1]
    assert len(loader) == 13
    assert loader.epoch == 0
    assert len(loader.seeds) == 100
    assert loader.memory_plan is not None
    assert loader.graph.num_nodes == NUM_NODES
    out = np.empty((NUM_NODES, DIM), np.float32)
    loader.features.read_into(np.arange(NUM_NODES), out)
    np.testing.assert_array_equal(out, tiny.features)
    batches.close()  # type: ignore[attr-defined]
    loader.close()
    loader._finalizer()
    loader._guard.finalize()
    loader._held.run = None
    gc.collect()


@pytest.mark.reliability("J4")
def test_a_child_may_drop_what_it_inherits(tiny: Written) -> None:
    """Its finalizers would wait for threads that it has not, and for the locks that they hold."""
    loader = _loader(tiny, features="ssd", cache=9600, superbatch=2)
    held: Any = [iter(loader), loader]
    _check(next(held[0]), tiny)

    def drop() -> None:
        nonlocal loader
        del loader
        held.clear()
        gc.collect()

    with _held_by_a_thread(loader._held.run._gathered._changed.lock):  # type: ignore[union-attr]
        assert in_child(drop) == 0
    with _held_by_a_thread(held[0]._recorder._lock):
        assert in_child(drop) == 0
    for batch in held[0]:
        _check(batch, tiny)
    loader.close()


@contextmanager
def _held_by_a_thread(lock: Any) -> Iterator[None]:
    is_held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        yield
    finally:
        go_on.set()
        thread.join()


@pytest.mark.reliability("J4")
def test_a_child_does_not_wait_for_the_turn_of_a_thread_that_it_has_not(tiny: Written) -> None:
    with _loader(tiny) as loader:
        epoch = iter(LoaderView(loader, convert=lambda batch: batch))

        def refused() -> None:
            with pytest.raises(ForkError):
                next(epoch)

        with _held_by_a_thread(epoch._turn):  # type: ignore[attr-defined]
            assert in_child(refused) == 0
