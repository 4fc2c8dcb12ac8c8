"""The threads of one epoch: samplers ahead of a gatherer ahead of the consumer."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.channel import Channel, ReorderChannel
from gloader.errors import ChannelClosedError
from gloader.types import BatchId, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.gather import HostBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTasks:
    """What the stages of one epoch do; both are called from stage threads."""

    epoch: int
    first: int  # index of the first batch
    end: int  # index after the last batch
    sample: Callable[[int], SampledBatch]
    gather: Callable[[SampledBatch], HostBatch]


@contextmanager
def _noted(stage: str, batch_id: BatchId) -> Iterator[None]:
    """Note on any exception where it happened."""
    try:
        yield
    except ChannelClosedError:
        raise
    except BaseException as error:
        error.add_note(f"in stage {stage}, epoch {batch_id.epoch}, batch {batch_id.index}")
        raise


class EpochPipeline:
    """Runs the sampling and the gathering of an epoch's batches behind their consumer.

    Sampler threads take batch indices in turn and deliver through a reorder buffer; one thread gathers. An
    exception of any stage, whatever its type, takes the place of its batch: the batches before it are delivered, then
    `get` raises it. Owns its threads until `close`.
    """

    def __init__(
        self,
        tasks: EpochTasks,
        *,
        num_samplers: int,
        window: int,
        prefetch: int,
        on_close: Callable[[], None],
    ) -> None:
        self._tasks = tasks
        self._sampled: ReorderChannel[SampledBatch] = ReorderChannel(window, first=tasks.first, end=tasks.end)
        self._ready: Channel[HostBatch] = Channel(prefetch)
        self._on_close = on_close
        self._next_lock = threading.Lock()
        self._next = tasks.first
        num_samplers = min(num_samplers, tasks.end - tasks.first)
        names = [(f"gloader-sample-{i}", self._sample_loop) for i in range(num_samplers)]
        if names:
            names.append(("gloader-gather", self._gather_loop))
        self._threads = [threading.Thread(target=loop, name=name, daemon=True) for name, loop in names]

    def start(self) -> None:
        """Start the stage threads; none where there is no batch."""
        if not self._threads:
            self._ready.close()
        for thread in self._threads:
            thread.start()

    def get(self) -> HostBatch:
        """Return the next batch in order, waiting for it.

        Raises
        ------
        ChannelClosedError
            The epoch is over.
        BaseException
            Whatever a stage raised, with a note that names stage, epoch and batch.
        """
        return self._ready.get()

    def close(self) -> None:
        """Stop and join every thread. Idempotent."""
        self._sampled.cancel()
        self._ready.cancel()
        self._on_close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _take_index(self) -> int | None:
        with self._next_lock:
            index = self._next
            self._next += 1
        return index if index < self._tasks.end else None

    def _sample_loop(self) -> None:
        while (index := self._take_index()) is not None:
            try:
                with _noted("sample", BatchId(epoch=self._tasks.epoch, index=index)):
                    batch = self._tasks.sample(index)
                self._sampled.put(index, batch)
            except BaseException as error:  # noqa: BLE001 - every failure must reach the consumer, whatever its type
                self._sampled.end_at(index, error)
                return

    def _gather_loop(self) -> None:
        try:
            for index in range(self._tasks.first, self._tasks.end):
                batch = self._sampled.get()
                with _noted("gather", BatchId(epoch=self._tasks.epoch, index=index)):
                    ready = self._tasks.gather(batch)
                self._ready.put(ready)
            self._ready.close()
        except BaseException as error:  # noqa: BLE001 - every failure must reach the consumer, whatever its type
            self._ready.close(error)
