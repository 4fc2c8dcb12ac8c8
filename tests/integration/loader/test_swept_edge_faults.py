"""Faults of edges, of the disk that passes write to and of who takes batches, through a loader that sweeps."""

import errno
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gloader
from gloader.core.signals import Cancellation
from gloader.dataset.edge_passes import PickedPasses
from gloader.errors import (
    BudgetError,
    ChannelClosedError,
    ChecksumError,
    GloaderError,
    GraphError,
    SpillError,
    StoreReadError,
    TruncatedStoreError,
)
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.os_io import StrPath
from gloader.ssd_store.spill.folder import SpillFile, SpillFolder
from gloader.testing.faults import Corruption, FaultyOS
from gloader.testing.resume import batch_digest as digest

from .swept_edges import (
    DIM,
    NODES,
    PACKED,
    PLACES,
    UNWANTED,
    epochs_in_memory,
    go_by,
    loader_of,
    sweeping,
    write_graph,
)

WAYS = ("direct", "merged", "full")
SOON_S = 5.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("swept") / "graph", num_unwanted=4096)


@pytest.fixture(scope="module")
def in_memory(path: Path) -> list[str]:
    """The batches of the first epochs, one after the other."""
    return list(itertools.chain(*epochs_in_memory(path, 8)))


class EdgeFaults(FaultyOS):
    """Reads of the edges that are as they should be, until something is put into ``fault``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.fault: Callable[[], None] = lambda: None

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        if self._paths.get(fd, "").endswith("indices.npy"):
            self.fault()
        return super().pread_into(fd, buffer, offset)


class FullDisk(FaultyOS):
    """A disk on which nothing is free."""

    def statvfs(self, path: StrPath) -> os.statvfs_result:
        found = list(super().statvfs(path))
        found[4] = 0  # free blocks
        return os.statvfs_result(found)


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def spill_folder(loader: gloader.Loader) -> SpillFolder:
    """Return the folder that passes write to."""
    passes = loader._held.tier.sweeps.passes
    folder = passes._folder if hasattr(passes, "_folder") else passes._store._folder
    assert isinstance(folder, SpillFolder)
    return folder


def taken(loader: gloader.Loader, batch: Any) -> tuple[int, str]:
    """Return the place of a batch in the stream, and its digest."""
    return batch.id.epoch * len(loader) + batch.id.index, digest(batch)


def until_error(stream: Iterator[Any], loader: gloader.Loader) -> tuple[list[tuple[int, str]], GloaderError]:
    """Take the rest of an epoch, and more epochs, until something is raised; all threads have ended then."""
    found: list[tuple[int, str]] = []
    try:
        for batch in itertools.chain(stream, *itertools.repeat(loader, 5)):
            found.append(taken(loader, batch))  # noqa: PERF401 - those before an error
    except GloaderError as error:
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("gloader-s")]
        assert left == []
        return found, error
    raise AssertionError("nothing was raised")


def check(found: list[tuple[int, str]], in_memory: list[str]) -> None:
    """Check that these are the batches of their places, one behind the other."""
    if found:
        begin = found[0][0]
        assert found == list(enumerate(in_memory[begin : begin + len(found)], begin))


def check_goes_on(loader: gloader.Loader, in_memory: list[str]) -> None:
    """Check that an epoch is right after one that failed or was left."""
    found = [taken(loader, batch) for batch in loader]
    assert len(found) == len(loader)
    check(found, in_memory)


@pytest.mark.reliability("K1")
@pytest.mark.parametrize(
    ("place", "sampler", "num_taken"),
    [("memory", "neighbor", 0), ("packed", "neighbor", 2), ("memory", "weighted", 2)],
)
def test_edges_that_cannot_be_read_end_the_stream_behind_good_batches(
    path: Path, swept: Callable[..., Any], place: str, sampler: str, num_taken: int
) -> None:
    """The disk fails, and the file is cut, before the first pass of a run or in the midst of passes."""
    in_memory = list(itertools.chain(*epochs_in_memory(path, 8, sampler=sampler)))
    file, os_io = path / "indices.npy", EdgeFaults()
    whole = file.read_bytes()

    def restore() -> None:
        os_io.fault = lambda: None
        with file.open("r+b") as written:
            written.write(whole)

    faults: list[tuple[Callable[[], None], type[GloaderError], str]] = [
        (lambda: setattr(os_io, "fault", fail), StoreReadError, "Input/output error"),
        (lambda: os.truncate(file, DATA_OFFSET + 4096), TruncatedStoreError, "truncated after it was opened"),
    ]
    with swept(3, os_io=os_io, sampler=sampler, **PLACES[place]) as loader:
        for break_it, error_type, message in faults:
            try:
                if num_taken == 0:
                    break_it()
                stream = iter(loader)
                found = [taken(loader, next(stream)) for _ in range(num_taken)]
                break_it()
                rest, error = until_error(stream, loader)
            finally:
                restore()
            check(found + rest, in_memory)
            assert type(error) is error_type
            assert message in str(error)
            assert "indices.npy" in str(error)
            assert any(note.startswith("in stage sweep, epoch ") for note in error.__notes__)
            check_goes_on(loader, in_memory)


@pytest.mark.reliability("K1")
def test_reads_that_are_short_are_continued(
    path: Path, in_memory: list[str], swept: Callable[..., Any]
) -> None:
    with swept(8, os_io=FaultyOS(short=1000), **PLACES["memory"]) as loader:
        check_goes_on(loader, in_memory)


@pytest.mark.reliability("K2")
@pytest.mark.parametrize("place", ["memory", "packed"])
def test_a_flipped_bit_in_a_page_that_nobody_wants_is_nobodys(
    path: Path, in_memory: list[str], swept: Callable[..., Any], place: str
) -> None:
    dataset = gloader.Dataset.open(path)
    begin = int(dataset.load_graph().indptr[UNWANTED])
    spoilt = FaultyOS(corrupt=Corruption(offset=DATA_OFFSET + 4 * begin + 8192, mask=16, file="indices.npy"))
    with swept(3, os_io=spoilt, **PLACES[place]) as loader:
        for way in WAYS:
            go_by(loader._held.tier.sweeps.passes, way)
            check_goes_on(loader, in_memory)
        ways = {one.report.way for one in loader._feedback.passes}
    assert ways >= set(WAYS)


@pytest.mark.reliability("K3")
@pytest.mark.parametrize(("place", "sampler"), [("packed", "neighbor"), ("memory", "labor")])
def test_a_disk_or_budget_that_is_full_in_the_midst_says_what_is_needed(
    path: Path, swept: Callable[..., Any], place: str, sampler: str
) -> None:
    in_memory = list(itertools.chain(*epochs_in_memory(path, 12, sampler=sampler)))
    with swept(3, sampler=sampler, **PLACES[place]) as loader:
        folder = spill_folder(loader)
        real, budget = folder.os_io, folder.budget_bytes

        def restore() -> None:
            folder._os_io, folder.budget_bytes = real, budget
            vars(folder).pop("reuse_file", None)

        def without_disk() -> None:
            # Files that are free would be written again: the passes are of one size.
            folder._os_io = FullDisk()
            folder.reuse_file = lambda num_bytes: None  # type: ignore[method-assign]

        read_only = FaultyOS(fail_at=1, repeat=10**6, error=errno.EROFS, calls={"open"})
        for break_it, error_type, message in (
            (
                lambda: setattr(folder, "budget_bytes", 4096),
                BudgetError,
                r"needs \d+ bytes .* allowed: the spill budget",
            ),
            (without_disk, SpillError, r"needed \d+ bytes .* are free"),
            (lambda: setattr(folder, "_os_io", read_only), SpillError, r"Read-only file system"),
        ):
            stream = iter(loader)
            found = [taken(loader, next(stream)) for _ in range(2)]
            break_it()
            try:
                rest, error = until_error(stream, loader)
            finally:
                restore()
            check(found + rest, in_memory)
            with pytest.raises(error_type, match=message):
                raise error
            assert any(note.startswith("in stage ") for note in error.__notes__)
            assert folder.used_bytes == 0
            check_goes_on(loader, in_memory)


@pytest.mark.reliability("K4")
@pytest.mark.parametrize(
    ("place", "sampler"), [("packed", "neighbor"), ("memory", "neighbor"), ("memory", "weighted")]
)
def test_what_a_pass_wrote_is_verified_where_it_is_read_back(
    path: Path, swept: Callable[..., Any], place: str, sampler: str
) -> None:
    in_memory = list(itertools.chain(*epochs_in_memory(path, 4, sampler=sampler)))
    with swept(8, sampler=sampler, threads=1, **PLACES[place]) as loader:
        folder = spill_folder(loader)

        def spoiling() -> Iterator[Any]:
            for batch in itertools.chain(*itertools.repeat(loader, 5)):
                yield batch
                # In place, as one may be read or written meanwhile; from a moment on when passes brought something.
                for file in list(folder._files) if batch.id.index > 2 else []:
                    # Files that are done with, or not made yet, are not there.
                    with suppress(FileNotFoundError), file.open("r+b") as written:
                        for page in range(0, file.stat().st_size, 4096):
                            (value,) = os.pread(written.fileno(), 1, page)
                            os.pwrite(written.fileno(), bytes([(value + 1) % 256]), page)

        found, error = until_error(spoiling(), loader)
        check(found, in_memory)
        with pytest.raises(
            ChecksumError, match=r"the pass for \d+ batches from epoch 0, batch \d+ on.*damaged"
        ):
            raise error
        assert any(
            note.startswith(("in stage sweep, epoch 0", "in stage sample, epoch 0"))
            for note in error.__notes__
        )
        check_goes_on(loader, in_memory)


@pytest.mark.reliability("K5")
@pytest.mark.parametrize("sampler", ["neighbor", "weighted"])
@pytest.mark.parametrize("end", ["break", "load_state_dict", "close"])
def test_whoever_leaves_in_the_midst_of_a_pass_leaves_soon_and_nothing_behind(
    path: Path, tmp_path: Path, swept: Callable[..., Any], sampler: str, end: str
) -> None:
    in_memory = list(itertools.chain(*epochs_in_memory(path, 3, sampler=sampler)))
    os_io, is_there, may_go = EdgeFaults(), threading.Event(), threading.Event()

    with swept(2, os_io=os_io, sampler=sampler, **PACKED) as loader:

        def hold() -> None:
            if loader._feedback.passes:  # so that something of another pass is there, too
                is_there.set()
                may_go.wait(SOON_S)

        state = loader.state_dict()
        os_io.fault = hold
        stream = iter(loader)
        found = [taken(loader, next(stream))]  # it was made before, and waits for no pass
        assert is_there.wait(SOON_S)
        threading.Timer(0.05, may_go.set).start()
        began = time.monotonic()
        if end == "close":
            loader.close()
        else:
            del stream
        assert time.monotonic() - began < SOON_S / 2
        check(found, in_memory)
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("gloader-s")]
        os_io.fault = lambda: None
        if end == "load_state_dict":
            loader.load_state_dict(state)
        if end != "close":
            assert spill_folder(loader).used_bytes == 0
            check_goes_on(loader, in_memory)


@pytest.mark.reliability("K5")
@pytest.mark.parametrize("sampler", ["neighbor", "weighted"])
def test_a_ctrl_c_while_the_first_batches_are_swept_leaves_no_file_open(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    opened = []
    open_file = SpillFile._open

    def interrupted(file: SpillFile, how: int) -> int:
        fd = open_file(file, how)
        opened.append(fd)
        if len(opened) == 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)  # where this is the main thread, its handler raises now
        return fd

    monkeypatch.setattr(SpillFile, "_open", interrupted)
    with pytest.raises(KeyboardInterrupt), sweeping(path, tmp_path, 2, sampler=sampler):
        pass
    assert opened
    targets = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]  # noqa: PTH115
    assert not [target for target in targets if str(tmp_path) in target]
    assert list(tmp_path.iterdir()) == []
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("gloader")]


@pytest.mark.reliability("K5")
def test_a_ctrl_c_ends_the_pass_for_the_first_batches(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_told = []

    def endless(passes: PickedPasses, frontiers: Any, *, label: str, cancellation: Cancellation) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        deadline = time.monotonic() + SOON_S
        while not cancellation.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        was_told.append(cancellation.is_set())
        raise ChannelClosedError(label)

    monkeypatch.setattr(PickedPasses, "sweep", endless)
    with pytest.raises(KeyboardInterrupt), sweeping(path, tmp_path, 2):
        pass
    assert was_told == [True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("K6")
@pytest.mark.parametrize("sampler", ["neighbor", "labor"])
def test_a_dataset_that_is_prepared_again_is_the_old_one_for_whoever_has_it_open(
    tmp_path: Path, sampler: str
) -> None:
    path = write_graph(tmp_path / "graph")
    in_memory = list(itertools.chain(*epochs_in_memory(path, 2, sampler=sampler)))
    with sweeping(path, tmp_path, 2, sampler=sampler, epochs=2) as loader:
        stream = iter(loader)
        found = [taken(loader, next(stream)) for _ in range(2)]
        write_graph(path, seed=2, overwrite=True)
        found += [taken(loader, batch) for batch in itertools.chain(stream, loader)]
    assert len(found) == len(in_memory)
    check(found, in_memory)


def with_wrong_source(path: Path, copy: Path, position: int, source: int) -> Path:
    """Write the graph at ``path`` again, with another source of an edge: the writer sees to its checksums."""
    dataset = gloader.Dataset.open(path)
    graph = dataset.load_graph()
    sources = graph.indices.copy()
    sources[position] = source
    with gloader.Dataset.create(copy, name="wrong", num_nodes=NODES, num_classes=3) as writer:
        with writer.indptr() as column:
            column.append(graph.indptr)
        with writer.indices(len(sources), str(sources.dtype)) as column:
            column.append(sources)
        with writer.edge_weight(len(sources)) as column:
            column.append(graph.edge_weight)
        with writer.features(DIM, "float32") as column:
            column.append(np.zeros((NODES, DIM), np.float32))
        writer.labels(dataset.labels)
        writer.splits(train=dataset.train, valid=dataset.valid, test=dataset.test)
    return copy


@pytest.mark.reliability("K7")
@pytest.mark.parametrize("place", ["memory", "packed"])
@pytest.mark.parametrize("hop", [0, 2])
def test_a_neighbour_that_is_no_node_ends_the_stream_though_its_checksum_is_right(
    path: Path, tmp_path: Path, swept: Callable[..., Any], place: str, hop: int
) -> None:
    with loader_of(path, topology="ram", features="ram") as loader:
        batches = list(loader)[:9]
    edges = [np.concatenate([np.asarray(block.edge_ids) for block in batch.blocks]) for batch in batches]
    position = int(np.setdiff1d(batches[8].blocks[-1 - hop].edge_ids, np.concatenate(edges[:8]))[0])
    wrong = with_wrong_source(path, tmp_path / "wrong", position, NODES + 7)
    with sweeping(wrong, tmp_path, 2, **PLACES[place]) as loader:
        found, error = until_error(iter(loader), loader)
        assert len(found) <= 8
        for (place_of, _), batch in zip(found, batches, strict=False):
            assert place_of == batch.id.index
        with pytest.raises(
            GraphError, match=rf"indices\[{position}\] = {NODES + 7}.* is not in 0\.\.{NODES - 1}"
        ):
            raise error
        assert any(
            note.startswith(("in stage sweep, epoch 0", "in stage sample, epoch 0"))
            for note in error.__notes__
        )
    with (
        pytest.raises(GraphError, match=rf"indices\[{position}\] = {NODES + 7} is not a node"),
        sweeping(
            wrong, tmp_path, 2, sampler="weighted"
        ),  # which looks at whole lists: its first batches meet it
    ):
        pass


@pytest.mark.reliability("K8")
def test_loaders_in_one_folder_leave_each_other_alone(
    path: Path, in_memory: list[str], tmp_path: Path
) -> None:
    with sweeping(path, tmp_path, 2, **PACKED) as one:
        with sweeping(path, tmp_path, 8, **PLACES["memory"]) as other:
            for first, second in zip(one, other, strict=True):
                assert digest(first) == digest(second) == in_memory[first.id.index]
        assert not any(folder == spill_folder(one).path.parent for folder in tmp_path.iterdir())
        check_goes_on(one, in_memory)
    assert list(tmp_path.iterdir()) == []
