"""The loader: right rows, one stream whatever the settings, clean ends, exact resume."""

import gc
import hashlib
import itertools
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gloader
from gloader.errors import (
    BudgetError,
    ConfigError,
    LoaderBusyError,
    LoaderClosedError,
    SeedError,
    StateError,
)
from gloader.ssd_store.os_io import OsIO
from gloader.types import ReadyBatch

from .conftest import DIM, Written


def _loader(written: Written, **settings: Any) -> gloader.Loader:
    defaults: dict[str, Any] = {"fanouts": [4, 3], "batch_size": 16, "memory_budget": "200MB", "threads": 2}
    return gloader.Loader(written.dataset, **(defaults | settings))


def _digest(batch: ReadyBatch) -> str:
    digest = hashlib.sha256(repr((batch.id, batch.num_seeds)).encode())
    for array in (
        batch.x,
        batch.y,
        *itertools.chain(*((b.indptr, b.indices, b.edge_ids, b.src_degree) for b in batch.blocks)),
    ):
        digest.update(array.numpy().tobytes())
    digest.update(batch.nodes.tobytes())
    return digest.hexdigest()


def _stream(loader: gloader.Loader, epochs: int = 2) -> list[str]:
    return [_digest(batch) for _ in range(epochs) for batch in loader]


def _gloader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gloader")]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("features", ["ram", "ssd"])
def test_batches_hold_the_rows_labels_and_degrees_of_their_nodes(
    write_dataset: Callable[..., Written], dtype: str, features: str
) -> None:
    written = write_dataset(dtype=dtype)
    degrees = np.diff(written.indptr)
    seen: list[np.ndarray] = []
    with _loader(written, features=features, cache=20 * DIM * 4 if features == "ssd" else None) as loader:
        assert len(loader) == 7
        for batch in loader:
            np.testing.assert_array_equal(batch.x.numpy(), written.features[batch.nodes])
            np.testing.assert_array_equal(batch.y.numpy(), written.labels[batch.nodes[: batch.num_seeds]])
            np.testing.assert_array_equal(batch.blocks[0].src_degree.numpy(), degrees[batch.nodes])
            np.testing.assert_array_equal(
                written.indices[batch.blocks[-1].edge_ids.numpy()],
                batch.nodes[batch.blocks[-1].indices.numpy()],
            )
            assert batch.blocks[0].num_src == len(batch.nodes)
            assert batch.blocks[-1].num_dst == batch.num_seeds
            seen.append(batch.nodes[: batch.num_seeds])
        stats = loader.stats
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.sort(written.dataset.train))
    assert stats.batches == 7
    assert stats.seeds == 100
    assert stats.rows_gathered == stats.cache_hits + stats.rows_read
    assert (stats.rows_read == 0) == (features == "ram")


@pytest.mark.reliability("F3")
@pytest.mark.reliability("C11")
def test_one_stream_whatever_the_settings(tiny: Written) -> None:
    with _loader(tiny, features="ram", threads=1) as loader:
        expected = _stream(loader)
    row = DIM * 4
    settings: list[dict[str, Any]] = [
        {"features": "ram", "threads": 8},
        {"features": "ssd", "policy": "none", "threads": 2},
        {"features": "ssd", "cache": 0, "io": "buffered"},
        {"features": "ssd", "cache": row, "io": "threads"},
        {"features": "ssd", "cache": 100 * row, "threads": 8},
        {"features": "ssd", "cache": 600 * row},
        *(
            {"features": "ssd", "cache": 100 * row, "policy": name}
            for name in ("lru", "fifo", "clock", "sieve", "s3fifo")
        ),
        {"features": "ssd", "cache": 10_000 * row, "verify": "off"},
        {"features": "ssd", "io_strategy": "direct", "memory_budget": "120MB"},
        {
            "features": "ssd",
            "cache": 100 * row,
            "io_strategy": "direct",
            "max_gap": 0,
            "superbatch_reset": True,
        },
        {"features": "ssd", "cache": 100 * row, "io_strategy": "staged"},
        {"features": "ssd", "cache": 100 * row, "io_strategy": "packed"},
        {"features": "ssd", "cache": 100 * row, "io_strategy": "packed", "io": "threads", "superbatch": 3},
        {"features": "ssd", "cache": 100 * row, "superbatch": 1},
        {"features": "ssd", "cache": 100 * row, "spill_budget": 0, "trace": True},
        {"features": "ssd", "cache": 100 * row, "epochs": 1},
    ]
    for setting in settings:
        with _loader(tiny, **setting) as loader:
            assert _stream(loader) == expected, setting


@pytest.mark.reliability("F3")
@pytest.mark.parametrize("features", ["ram", "ssd"])
@pytest.mark.parametrize("buffers", [1, 2])
def test_a_loop_goes_on_with_memory_for_one_batch_or_two(tiny: Written, features: str, buffers: int) -> None:
    with _loader(tiny, features="ram") as loader:
        expected = _stream(loader)
    with _loader(tiny, features=features) as loader:
        ring = loader._held.tier.ring  # type: ignore[union-attr]
        # A tiny dataset leaves memory idle, which would make further buffers.
        ring._max_bytes, ring._patience_s = int(1.2 * buffers * 4 * ring.rows[0] * DIM), 0.5
        found = _stream(loader, 1)
        for batch in loader:  # left in its middle, and its batch is still there
            assert len(batch.x)
            break
        if buffers == 2:
            del batch  # only the last one is taken back, and only where there is no other buffer
        loader.load_state_dict(loader.state_dict() | {"next": [1, 0]})
        assert found + _stream(loader, 1) == expected
        if buffers == 1:
            with pytest.raises(BudgetError, match="clone what you keep"):
                assert [batch.x[:1] for batch in loader]


def test_epochs_differ_and_seeds_differ(tiny: Written) -> None:
    with _loader(tiny) as loader:
        first, second = _stream(loader, 1), _stream(loader, 1)
    with _loader(tiny, seed=1) as loader:
        other = _stream(loader, 1)
    assert len({*first, *second, *other}) == 21


@pytest.mark.reliability("F4")
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_union_of_the_ranks_is_the_single_rank_batch(tiny: Written, world_size: int) -> None:
    with _loader(tiny) as loader:
        expected = [(batch.id, set(batch.nodes.tolist()), batch.y.tolist()) for batch in loader]
    ranks = []
    for rank in range(world_size):
        with _loader(tiny, batch_size=16 // world_size, rank=rank, world_size=world_size) as loader:
            ranks.append([(batch.id, set(batch.nodes.tolist()), batch.y.tolist()) for batch in loader])
    for single, parts in zip(expected, zip(*ranks, strict=True), strict=True):
        assert {part[0] for part in parts} == {single[0]}
        assert set.union(*(part[1] for part in parts)) == single[1]
        assert list(itertools.chain(*(part[2] for part in parts))) == single[2]


@pytest.mark.reliability("F1")
def test_resume_at_every_step_continues_bit_for_bit(tiny: Written) -> None:
    with _loader(tiny) as loader:
        stream, states = [], [loader.state_dict()]
        for _ in range(2):
            for batch in loader:
                stream.append(_digest(batch))
                states.append(loader.state_dict())
    for step, state in enumerate(states):
        with _loader(tiny, features="ssd", threads=1, cache=0) as resumed:
            resumed.load_state_dict(state)
            rest = _stream(resumed, 2)
        assert rest[: len(stream) - step] == stream[step:]


@pytest.mark.reliability("F5")
@pytest.mark.reliability("J6")
@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"seed": 3}, "seed"),
        ({"batch_size": 8}, "global_batch_size"),
        ({"world_size": 2, "rank": 0}, "global_batch_size"),
        ({"fanouts": [4, 4]}, "fanouts"),
        ({"shuffle": False}, "shuffle"),
        ({"drop_last": True}, "drop_last"),
        ({"seed_blocks": 10}, "seed_blocks"),
        ({"seed_window": 2}, "seed_window"),
        ({"sampler": "labor"}, "sampler"),
        ({"layout": "merged"}, "layout"),
        ({"seeds": np.arange(50, 150)}, "seeds"),
        ({"seeds": np.arange(101)}, "num_seeds"),
    ],
)
def test_a_state_of_another_stream_is_refused_by_the_field_that_differs(
    tiny: Written, settings: dict[str, Any], field: str
) -> None:
    with _loader(tiny) as loader:
        state = loader.state_dict()
    with _loader(tiny, **settings) as other:
        before = other.state_dict()
        with pytest.raises(StateError, match=rf"the state was saved with {field} .*, this loader has "):
            other.load_state_dict(state)
        # Version 1 named no field; its fingerprint tells the streams apart all the same.
        with pytest.raises(StateError, match=rf"saved with ({field}|fingerprint) "):
            other.load_state_dict(_of_version_1(state))
        assert other.state_dict() == before


@pytest.mark.reliability("J6")
def test_a_state_of_another_dataset_is_refused(tiny: Written, write_dataset: Callable[..., Written]) -> None:
    other = write_dataset(num_edges=3999, name="other")
    with _loader(tiny) as loader:
        state = loader.state_dict()
    with _loader(other, seeds=tiny.dataset.train) as loader:
        for saved, name in ((state, "dataset"), (_of_version_1(state), "fingerprint")):
            with pytest.raises(StateError, match=f"the state was saved with {name} "):
                loader.load_state_dict(saved)


def test_a_state_of_the_version_before_is_continued(tiny: Written) -> None:
    with _loader(tiny) as loader:
        batches = [_digest(batch) for batch in loader]
        loader.load_state_dict(_of_version_1(loader.state_dict() | {"next": [0, 3]}))
        assert [_digest(batch) for batch in loader] == batches[3:]
        assert set(loader.state_dict()) > set(_of_version_1(loader.state_dict()))


def _of_version_1(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != "stream"} | {"version": 1}


@pytest.mark.reliability("F6")
@pytest.mark.parametrize(
    "change",
    [
        {"version": 3},
        {"version": 1},
        {"version": True},
        {"stream": []},
        {"stream": {"dataset": 1}},
        {"stream": {}, "fingerprint": "0"},
        {"next": [0]},
        {"next": [-1, 0]},
        {"next": "0,0"},
        {"seed": "0"},
        {"fingerprint": None},
        {"extra": 1},
        {"global_batch_size": -1},
    ],
)
def test_a_hand_edited_state_is_refused(tiny: Written, change: dict[str, Any]) -> None:
    with _loader(tiny) as loader:
        with pytest.raises(StateError):
            loader.load_state_dict(loader.state_dict() | change)
        with pytest.raises(StateError):
            loader.load_state_dict([1, 2])  # type: ignore[arg-type]


@pytest.mark.reliability("F7")
def test_the_global_generators_are_neither_read_nor_written(tiny: Written) -> None:
    with _loader(tiny) as loader:
        expected = _stream(loader, 1)
    np.random.seed(123)
    torch.manual_seed(123)
    before = (np.random.get_state()[1].tobytes(), torch.get_rng_state())  # type: ignore[union-attr,index]
    with _loader(tiny) as loader:
        assert _stream(loader, 1) == expected
    assert np.random.get_state()[1].tobytes() == before[0]  # type: ignore[union-attr,index]
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.reliability("D6")
@pytest.mark.parametrize("how", ["break", "exception", "del", "drop"])
def test_leaving_an_epoch_early_ends_its_threads_and_the_next_epoch_starts_clean(
    tiny: Written, how: str
) -> None:
    loader = _loader(tiny)
    second_epoch = _stream(_loader(tiny))[7:]
    if how == "break":
        for _ in loader:
            break
    elif how == "exception":
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                _ = 1 / 0
    elif how == "del":
        iterator = iter(loader)
        next(iterator)
        assert _gloader_threads()
        del iterator
    else:
        next(iter(loader))
    assert _gloader_threads() == []
    assert loader.epoch == 0
    assert _stream(loader, 1) == second_epoch
    loader.close()


@pytest.mark.reliability("D9")
def test_one_iterator_at_a_time_and_none_after_close(tiny: Written) -> None:
    loader = _loader(tiny)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(LoaderBusyError, match="still alive"):
        iter(loader)
    with pytest.raises(LoaderBusyError):
        loader.load_state_dict(loader.state_dict())
    loader.close()
    assert _gloader_threads() == []
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(LoaderClosedError):
        iter(loader)


@pytest.mark.reliability("D8")
def test_closing_ends_a_wait_for_the_next_batch(tiny: Written) -> None:
    """The disk hangs, the loop waits for a batch, and another thread closes the loader."""
    may_hang, hangs, may_go_on = threading.Event(), threading.Event(), threading.Event()

    class HangingOS(OsIO):
        def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
            if may_hang.is_set():
                hangs.set()
                may_go_on.wait(100)
            return super().pread_into(fd, buffer, offset)

    loader = gloader.Loader(
        gloader.Dataset.open(tiny.path, os_io=HangingOS()),
        fanouts=[4, 3], batch_size=16, memory_budget="200MB", features="ssd", cache=0, io="buffered",
    )  # fmt: skip
    iterator = iter(loader)
    may_hang.set()
    found: list[BaseException] = []

    def loop() -> None:
        try:
            while True:
                next(iterator)
        except BaseException as error:
            found.append(error)

    waiter = threading.Thread(target=loop, name="waiter")
    waiter.start()
    assert hangs.wait(20)
    waiter.join(0.2)
    closer = threading.Thread(target=loader.close, name="closer")
    closer.start()
    waiter.join(10)
    assert not waiter.is_alive(), "the loop waits for a loader that is being closed"
    may_go_on.set()
    closer.join(10)
    assert not closer.is_alive()
    assert len(found) == 1
    assert isinstance(found[0], LoaderClosedError), repr(found[0])
    assert _gloader_threads() == []


@pytest.mark.reliability("D8")
def test_close_is_idempotent_also_from_another_thread(tiny: Written) -> None:
    loader = _loader(tiny)
    next(iter(loader))
    thread = threading.Thread(target=loader.close, name="closer")
    thread.start()
    thread.join(10)
    loader.close()
    assert _gloader_threads() == []


def test_a_closed_loader_frees_what_it_held_at_once(tiny: Written) -> None:
    gc.disable()
    try:
        loader = _loader(tiny, features="ssd", cache="4KB")
        for _ in loader:
            pass
        tier = weakref.ref(loader._held.tier.ring)
        loader.close()
        del loader, _
        assert tier() is None
    finally:
        gc.enable()


def test_keeping_every_batch_is_safe_within_the_budget(tiny: Written) -> None:
    with _loader(tiny) as loader:
        kept = list(loader)
    for batch in kept:
        np.testing.assert_array_equal(batch.x.numpy(), tiny.features[batch.nodes])


@pytest.mark.reliability("D11")
def test_a_forked_child_is_told_to_spawn(tiny: Written) -> None:
    with _loader(tiny) as loader:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                iter(loader)
            except gloader.errors.ForkError:  # type: ignore[attr-defined]
                os._exit(42)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42


@pytest.mark.reliability("C7")
def test_no_seeds_is_an_empty_epoch_without_threads(tiny: Written) -> None:
    with _loader(tiny, seeds=np.empty(0, dtype=np.int64)) as loader:
        iterator = iter(loader)
        assert _gloader_threads() == []
        assert list(iterator) == []
        assert len(loader) == 0


@pytest.mark.reliability("C6")
def test_a_graph_without_edges_gives_batches_of_seeds_alone(write_dataset: Callable[..., Written]) -> None:
    written = write_dataset(num_edges=0, name="edgeless")
    with _loader(written, features="ssd") as loader:
        for batch in loader:
            assert len(batch.nodes) == batch.num_seeds
            assert [block.indices.shape[0] for block in batch.blocks] == [0, 0]
            np.testing.assert_array_equal(batch.x.numpy(), written.features[batch.nodes])


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"features": "disk"}, ConfigError, "features='disk'"),
        ({"policy": "no such"}, ConfigError, "policy='no such'"),
        ({"device_cache": "lots"}, ConfigError, "not a size"),
        ({"device_hotness": "colour"}, ConfigError, "device_hotness"),
        ({"device": "gpu"}, ConfigError, "device 'gpu' is not known; allowed: cpu, cuda, cuda:0"),
        ({"device": "meta"}, ConfigError, "neither 'cpu' nor 'cuda'"),
        ({"threads": 0}, ConfigError, "threads is 0"),
        ({"fanouts": [[]]}, ConfigError, "fanouts"),
        ({"fanouts": [2.7, 3]}, ConfigError, r"fanouts\[0\] is 2.7"),
        ({"fanouts": "many"}, ConfigError, "'many' is not a fan-out"),
        ({"seeds": [1.5, 2.0]}, SeedError, "float64"),
        ({"seeds": [[1], [2]]}, SeedError, "shape"),
        ({"seeds": np.array([2**63], dtype=np.uint64)}, SeedError, "9223372036854775808"),
        ({"memory_budget": "lots"}, ConfigError, "lots"),
        ({"seeds": [0, 600]}, SeedError, "600"),
        ({"seeds": [1, 1]}, SeedError, "repeat"),
        ({"memory_budget": "1MB"}, BudgetError, "smaller batch size"),
        ({"memory_budget": "30MB", "features": "ssd", "cache": "40KB"}, BudgetError, "budget"),
    ],
)
@pytest.mark.reliability("C14")
def test_bad_settings_fail_at_construction_and_leave_nothing_open(
    tiny: Written, settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        _loader(tiny, **({"batch_size": 1} | settings))
    assert _gloader_threads() == []


def test_explain_names_the_tiers(tiny: Written) -> None:
    with _loader(tiny, features="ram") as loader:
        assert "in memory (they fit" in loader.explain()
    with _loader(tiny, features="ssd", cache=60 * DIM * 4) as loader:
        assert "60 rows (10.0%)" in loader.explain()


@pytest.mark.parametrize(
    ("strategy", "stage"), [("direct", "read"), ("staged", "stage"), ("packed", "stage")]
)
def test_a_damaged_page_is_raised_by_the_stage_that_reads_it(
    tiny: Written, strategy: str, stage: str
) -> None:
    path = tiny.path / "features.npy"
    with path.open("r+b") as file:
        file.seek(4096 + 5 * 4096 + 17)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))
    with (
        _loader(tiny, features="ssd", policy="none", io_strategy=strategy) as loader,
        pytest.raises(gloader.errors.ChecksumError) as caught,
    ):  # type: ignore[attr-defined]
        for _ in loader:
            pass
    assert any(f"in stage {stage}, epoch 0, batch" in note for note in caught.value.__notes__)
    assert "page 5" in str(caught.value)
    assert _gloader_threads() == []


@pytest.mark.reliability("D4")
def test_an_interrupt_ends_the_epoch(tiny: Written) -> None:
    with _loader(tiny) as loader, pytest.raises(KeyboardInterrupt):
        for _ in loader:
            signal.raise_signal(signal.SIGINT)
    assert _gloader_threads() == []


def test_a_dataset_can_be_opened_by_its_path(tiny: Written) -> None:
    assert gloader.Dataset.open(Path(tiny.path)).fingerprint == tiny.dataset.fingerprint


def test_a_closed_loader_has_no_finalizer_of_its_parts(tiny: Written) -> None:
    """A Ctrl-C at the first line of a finalizer is lost, so `close` drops the finalizer while signals wait."""
    loader = _loader(tiny)
    guard = weakref.ref(loader._guard)  # type: ignore[arg-type]
    loader.close()
    assert guard() is None
