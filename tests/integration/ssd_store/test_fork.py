"""An open store in forked processes: the right rows there and in the parent, under torch's own DataLoader too."""

from __future__ import annotations

import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch.utils.data
from forking import LIMIT_S, in_child
from numba.core.compiler_lock import global_compiler_lock

from gloader.errors import StoreError
from gloader.ssd_store import FeatureStore

if TYPE_CHECKING:
    from pathlib import Path

ROWS, DIM = 3000, 100


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fork") / "store"
    FeatureStore.create(folder, _right(np.arange(ROWS))).close()
    return folder


def _right(rows: Any) -> Any:
    return (np.asarray(rows)[:, None] * 1000 + np.arange(DIM)).astype(np.float32)


def _num_wrong(store: FeatureStore, seed: int) -> int:
    rows = np.random.default_rng(seed).choice(ROWS, 400, replace=False)
    out = np.empty((len(rows), DIM), np.float32)
    store.read_into(rows, out)
    return int((out != _right(rows)).any(axis=1).sum())


class Reads(torch.utils.data.Dataset[int]):
    """What a user writes: items that are read from a store which the process before the fork opened."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return 24

    def __getitem__(self, item: int) -> int:
        return _num_wrong(self._store, item)


@pytest.mark.reliability("J4")
@pytest.mark.parametrize("verify", ["read", "off"])
@pytest.mark.parametrize("io", ["auto", "threads", "buffered"])
def test_workers_of_a_data_loader_read_a_store_beside_their_parent(path: Path, io: Any, verify: Any) -> None:
    with FeatureStore.open(path, io=io, verify=verify) as store:
        assert _num_wrong(store, 0) == 0  # its threads are there, its memory is warm
        workers = torch.utils.data.DataLoader(
            Reads(store), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=LIMIT_S
        )
        wrong = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for number, counts in enumerate(workers):
                wrong += int(counts.sum()) + _num_wrong(store, 1000 + number)
        assert wrong == 0
        assert _num_wrong(store, 0) == 0


@pytest.mark.reliability("J4")
def test_a_child_that_is_forked_in_the_middle_of_a_read_waits_for_nobody(path: Path) -> None:
    with FeatureStore.open(path, io="threads") as store:
        assert _num_wrong(store, 0) == 0
        with store._lane._lock:  # as a thread of the parent holds it, which the child has not
            assert in_child(lambda: _no_wrong(store)) == 0


@pytest.mark.reliability("J4")
def test_a_child_that_closes_takes_nothing_from_its_parent(path: Path) -> None:
    with FeatureStore.open(path) as store:
        assert in_child(lambda: _opens_once(store)) == 0
        assert in_child(store.close) == 0
        assert in_child(lambda: (_no_wrong(store), store.close(), store.close())) == 0
        assert _num_wrong(store, 1) == 0
    assert in_child(lambda: _refused(store)) == 0


def _opens_once(store: FeatureStore) -> None:
    _no_wrong(store)
    backend = store._lane._backend
    _no_wrong(store)
    assert store._lane._backend is backend


def _no_wrong(store: FeatureStore) -> None:
    assert _num_wrong(store, 3) == 0


def _refused(store: FeatureStore) -> None:
    with pytest.raises(StoreError, match="the store is closed"):
        _num_wrong(store, 3)


@pytest.mark.reliability("J4")
def test_a_child_that_is_forked_while_kernels_are_compiled_can_compile_too() -> None:
    """A thread of the parent, which the child has not, holds the compiler."""
    is_held = threading.Event()

    def compile_long() -> None:
        with global_compiler_lock:
            is_held.set()
            time.sleep(0.3)

    thread = threading.Thread(target=compile_long)
    thread.start()
    is_held.wait()
    assert in_child(_compile) == 0
    thread.join()


def _compile() -> None:
    with global_compiler_lock:
        pass
