"""The batches of a recorded stream, sampled again: their traces, coded, and how large they are."""

from __future__ import annotations

import os
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gloader.cache import Trace, decode_ids
from gloader.core.thread_start import run_together
from gloader.pipeline.sample import CodedRows, trace_entry
from gloader.pipeline.table_rows import count_rows
from gloader.plan.available import available_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.pipeline.positions import BatchStream
    from gloader.pipeline.sample import TraceEntry
    from gloader.types import AnySampler, IdArray

MOST_BATCHES: Final = 4000  # that are sampled again: enough to see what a change does
_SHARE_OF_MEMORY: Final = 4  # of what is free, traces take a quarter at most
_PER_THREAD: Final = 16  # batches, between two looks at that


class _Sampled(NamedTuple):
    """What is kept of a batch."""

    entry: TraceEntry
    places: tuple[int, ...]  # rows of each table, repeats included
    edges: int
    seconds: float  # of processor time


class SampledStream:
    """Samples the batches of a stream from its first one on, as far as they are asked for, each once.

    Takes about a byte of memory an access. Not thread-safe; samples in threads of its own.

    Parameters
    ----------
    sampler : draws the neighbours; thread-safe
    stream : names the batches, and has their seeds
    types : the number of each table, see `table_rows`
    """

    def __init__(self, sampler: AnySampler, stream: BatchStream, types: Sequence[int]) -> None:
        self.stream = stream
        self._sampler = sampler
        self._types = tuple(types)
        self._sampled: list[_Sampled] = []
        self._num_bytes = 0
        self._is_full = False

    def sample(self, num_batches: int) -> int:
        """Sample the first batches; return how many there are: fewer where the stream ends, or memory does.

        Raises
        ------
        StoreError
            The edges cannot be read, or are damaged.
        ThreadStartError
            The system allows no more threads.
        """
        threads = len(os.sched_getaffinity(0))
        wanted = min(num_batches, MOST_BATCHES)
        most_bytes = available_memory_bytes() // _SHARE_OF_MEMORY + self._num_bytes
        while len(self._sampled) < wanted and not self._is_full:
            first = len(self._sampled)
            past = min(first + threads * _PER_THREAD, wanted)
            tasks = [
                partial(self._sample, position)
                for position in range(first, past)
                if self.stream.has(position)
            ]
            found = run_together(tasks, threads=threads, name="gloader-replan")
            self._sampled += found
            self._num_bytes += sum(len(rows.code) for one in found for rows in one.entry)
            self._is_full = len(tasks) < past - first or self._num_bytes > most_bytes
        return min(wanted, len(self._sampled))

    def entries(self, num_batches: int, new_ids: IdArray | None = None) -> list[TraceEntry]:
        """Return the traces of the first batches.

        Parameters
        ----------
        num_batches : of those that were sampled
        new_ids : (N,) other numbers of the rows, of the only table; None: as they are
        """
        entries = [one.entry for one in self._sampled[:num_batches]]
        return entries if new_ids is None else [_renumbered(entry, new_ids) for entry in entries]

    def traces(self, num_batches: int) -> tuple[Trace, ...]:
        """Return the traces of the first batches, of each table."""
        traces = tuple(Trace() for _ in self._types)
        for entry in self.entries(num_batches):
            for trace, rows in zip(traces, entry, strict=True):
                trace.append_code(rows.code, rows.count)
        return traces

    def places(self, num_batches: int) -> IdArray:
        """Return (batches,) the rows of all tables that each batch has, repeats included."""
        return np.array([sum(one.places) for one in self._sampled[:num_batches]], np.int64)

    def edges(self, num_batches: int) -> IdArray:
        """Return (batches,) the edges that each batch has."""
        return np.array([one.edges for one in self._sampled[:num_batches]], np.int64)

    @property
    def sample_s(self) -> float:
        """Processor seconds of sampling a batch; the median, as some had to compile or to read."""
        return median([one.seconds for one in self._sampled]) if self._sampled else 0.0

    def _sample(self, position: int) -> _Sampled:
        began = time.thread_time()
        batch = self._sampler.sample(self.stream.id_of(position), self.stream.seeds_at(position))
        seconds = time.thread_time() - began
        return _Sampled(
            entry=trace_entry(batch, self._types),
            places=tuple(count_rows(batch, number) for number in self._types),
            edges=sum(block.num_edges for block in batch.all_blocks),
            seconds=seconds,
        )


def _renumbered(entry: TraceEntry, new_ids: IdArray) -> TraceEntry:
    (rows,) = entry
    return (CodedRows.of(np.sort(new_ids[decode_ids(rows.code, rows.count)])),)
