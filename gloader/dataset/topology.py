"""The topology of a dataset: it can be sampled from at once, and is verified and moved into memory meanwhile."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Self

from gloader.core.locks import SignalSafeCondition
from gloader.core.signals import uninterrupted
from gloader.core.thread_start import thread_errors
from gloader.samplers import CscGraph
from gloader.ssd_store.format.array_file import ArrayFile

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.dataset.dataset import Dataset

EAGER_BYTES: Final = 256 * 2**20  # loading and verifying so much takes a tenth of a second
UPFRONT_BYTES: Final = 2**30  # a second on a disk that reads 1 GB/s: 134 million nodes
_NICE: Final = 10  # samplers and the model come first


def open_topology(
    dataset: Dataset, *, in_memory: bool, eager_bytes: int = EAGER_BYTES, upfront_bytes: int = UPFRONT_BYTES
) -> Topology:
    """Open the topology of ``dataset``; its graph can be sampled from when this returns.

    A small topology is read and verified here. Of a larger one, only indptr is, and the edges are mapped. The thread
    ``gloader-topology`` verifies them in file order and, with ``in_memory``, reads them into memory; `Topology.graph`
    is then there. Every batch is the same before and after.

    Parameters
    ----------
    dataset : whose topology it is
    in_memory : hold the topology, or leave it to the page cache
    eager_bytes : size up to which a topology is read and verified here
    upfront_bytes : size of indptr up to which it is verified here

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError, FormatError, StoreReadError
        A file is missing, cannot be read, or is not as long as the commit record says.
    ChecksumError
        The bytes that were verified here are not those that were written.
    """
    if dataset.topology_bytes <= eager_bytes:
        return Topology(dataset.load_graph(in_memory=in_memory))
    files = _open_files(dataset)
    try:
        upfront = ["indptr"] if dataset.arrays["indptr"].num_bytes <= upfront_bytes else []
        move = _Move(files, in_memory=in_memory, upfront=upfront)
    except BaseException:
        for file in files.values():
            file.close()
        raise
    return Topology(move)


class Topology:
    """A graph that may move from a mapped file into memory: a `GraphSource`. Made by `open_topology`. Thread-safe.

    Until `is_verified`, damage on the disk shows as a `GraphError` of the sampler, or not at all; `check`, called
    with every batch, raises the error that the verification found. Owns the thread until `close`; a context manager.
    """

    def __init__(self, place: CscGraph | _Move) -> None:
        # Nothing here but the move refers to its graph, so that the mapping goes when the graph moves.
        self._place = place
        move = place if isinstance(place, _Move) else None
        self._move = move
        self._thread: threading.Thread | None = None
        if move is not None:
            # The thread knows the move, not this object, so that a topology that was forgotten ends its thread.
            weakref.finalize(self, move.cancelled.set)
            self._start(move)

    def _start(self, move: _Move) -> None:
        thread = threading.Thread(target=move.run, name="gloader-topology", daemon=True)
        try:
            with thread_errors(), uninterrupted():
                thread.start()
                self._thread = thread
        except BaseException:
            if self._thread is None:  # else it closes what it reads, when this object is gone
                move.close()
            raise

    @property
    def graph(self) -> CscGraph:
        """The graph, mapped or in memory; hold it for a batch, not longer, so that the mapping can go."""
        return self._place.graph if isinstance(self._place, _Move) else self._place

    @property
    def is_verified(self) -> bool:
        """Whether every byte was compared with its checksum."""
        return self._move is None or self._move.is_complete

    def check(self) -> None:
        """Do nothing, or raise what the verification found.

        Raises
        ------
        ChecksumError, StoreReadError, TruncatedStoreError
            The bytes on disk are not those that were written, or cannot be read; batches may be wrong.
        """
        if self._move is not None and self._move.error is not None:
            raise self._move.error

    def wait(self) -> None:
        """Wait until the topology is verified and where it will stay.

        Raises
        ------
        ChecksumError, StoreReadError, TruncatedStoreError
            As `check`.
        """
        if self._move is not None:
            self._move.wait()
        self.check()

    def close(self) -> None:
        """End the verification and join its thread; the graph stays usable. Idempotent."""
        # A join that a signal cuts short would take a running thread for ended.
        with uninterrupted():
            if self._move is not None:
                self._move.cancelled.set()
            if self._thread is not None:
                self._thread.join()
                self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Move:
    """The work of a topology's thread: verify and move. Owns the files until `run` ends, or `close`."""

    def __init__(self, files: dict[str, ArrayFile], *, in_memory: bool, upfront: Collection[str]) -> None:
        self._files = files
        self._in_memory = in_memory
        self._done: dict[str, NDArray[Any]] = {}
        self.cancelled = threading.Event()
        self.error: BaseException | None = None
        self.is_complete = False
        self._is_over = False
        self._changed = SignalSafeCondition()
        self._mapped = {name: file.map() for name, file in files.items()}
        for name in upfront:
            self._take(name)
        self.graph = _graph(self._mapped | self._done)

    def run(self) -> None:
        """Verify every array and move the graph; an error is kept for `Topology.check`."""
        _yield_to_others()
        try:
            if all(name in self._done or self._take(name) for name in self._files):
                if self._in_memory:
                    # One assignment: a sampler sees the mapped graph or the one in memory, never a mixture.
                    self.graph = _graph(self._done)
                self.is_complete = True
        except BaseException as error:  # noqa: BLE001 - it must reach the consumer, whatever its type
            self.error = error
        finally:
            self._mapped, self._done = {}, {}  # the graph alone decides which of them stay
            self.close()
            with self._changed.lock:
                self._is_over = True
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until `run` has ended."""
        self._changed.when(lambda: self._is_over, lambda: None)

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in self._files.values():
            file.close()

    def _take(self, name: str) -> bool:
        """Verify array ``name`` and keep the copy that stays; return False if the move was cancelled."""
        file, is_cancelled = self._files[name], self.cancelled.is_set
        if self._in_memory:
            array = file.load(is_cancelled=is_cancelled)
        else:
            array = self._mapped[name] if file.verify(is_cancelled=is_cancelled) else None
        if array is None:
            return False
        self._done[name] = array
        return True


def _graph(arrays: Mapping[str, NDArray[Any]]) -> CscGraph:
    return CscGraph(
        indptr=arrays["indptr"],
        indices=arrays["indices"],
        edge_weight=arrays.get("edge_weight"),
        validate=False,
    )


def _open_files(dataset: Dataset) -> dict[str, ArrayFile]:
    """Open the files of the topology in the order in which they are verified."""
    files: dict[str, ArrayFile] = {}
    try:
        for name in ("indptr", "indices", "edge_weight"):
            if name in dataset.arrays:
                files[name] = ArrayFile(dataset.root, dataset.arrays[name], os_io=dataset.os_io)
    except BaseException:
        for file in files.values():
            file.close()
        raise
    return files


def _yield_to_others() -> None:
    """Give this thread a low priority; nothing happens outside Linux, where a priority is the process's."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
