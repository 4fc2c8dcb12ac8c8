"""Sweeps: passes over the edges on the SSD, each for hops of many batches.

A wave moves through the batches, one hop with each pass: `edge_passes` plans it, `SweepEdges` makes a pass, and
`SweptBatches` keeps the edges until all hops of a batch are known. `ReplayTrace` and `ReplayBatch` then make the batch.
`EdgeSweeps` joins these parts for one run.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gloader.core.signals import SignalSafeCondition
from gloader.errors import ChannelClosedError
from gloader.observe.instruments import note_where
from gloader.pipeline.sample import CodedRows, trace_entry
from gloader.pipeline.threads import stage_thread
from gloader.samplers.arguments import split_seeds
from gloader.samplers.sweeping import swept_nodes
from gloader.ssd_store.cost.strategy import ramp
from gloader.types import BatchSeeds, seed_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gloader.dataset.edge_passes import EdgePasses, SweptHops
    from gloader.observe.instruments import Instruments, Work
    from gloader.pipeline.sample import TraceEntry
    from gloader.pipeline.seeds import BatchStream
    from gloader.pipeline.superbatch import RunFeedback
    from gloader.pipeline.threads import Failures, StageThread
    from gloader.samplers.sweeping import AnyHopRule, SweptSampler
    from gloader.types import AnyBatch, AnySeeds, BatchId, IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePass:
    """One pass over the edges, and the positions of the stream whose batches it serves."""

    number: int  # counts from the start of the pipeline
    served: tuple[
        range, ...
    ]  # (L,) one behind the other: hop L - 1 is of ``served[0]``, hop 0 of ``served[-1]``

    @property
    def completed(self) -> range:
        """The batches that it brings the last hop of: none while the wave fills."""
        return self.served[0]

    @property
    def begun(self) -> range:
        """The batches that it brings hop 0 of: none behind the end of the stream."""
        return self.served[-1]

    @property
    def positions(self) -> range:
        """All batches that it serves."""
        return range(self.completed.start, self.begun.stop)


def edge_passes(
    size: int, *, num_hops: int, has: Callable[[int], bool], start: int = 0
) -> Iterator[EdgePass]:
    """Yield every pass that the stream needs, and none for batches that nobody takes. Pure but for ``has``.

    Batches form topology superbatches: of 1, 2, 4, ... batches, as many as there are hops, so that the first batch does
    not wait for passes over all of the file, then of ``size``. Pass t serves the last hop of superbatch t - L + 1, the
    hop before it of the next one, ... and hop 0 of superbatch t.

    Parameters
    ----------
    size : S_t, batches of a superbatch
    num_hops : L
    has : whether the stream has a batch at a position; true for all those before one that it is true for
    start : the first position that is to be swept

    Raises
    ------
    ConfigError
        ``size`` is not positive.
    """
    return _edge_passes(chain(islice(ramp(size), num_hops), repeat(size)), num_hops, has, start)


def batches_swept(size: int, planned: int) -> int:
    """Return how many batches may be drawn to their end and not be made yet, those of the pass under way included.

    The pass that completes a superbatch waits until so few are left with it. While it is under way, the batches of the
    superbatch before it are executed, behind up to ``planned`` whose traces were taken ahead of them. Pure.

    No two ever wait for one another. Say that a pass waits: with the ``size`` batches or fewer that it would complete
    there were more than 2 S_t + 2 S, so more than 2 S are complete and not made. The next batch to be made is of a
    superbatch j of features. Plans j and j + 1 end at most 2 S batches behind that batch: their traces can be taken,
    which is all that plan j needs (`SuperbatchCollector`), and room for it, which the batches before j make as they are
    executed. So that batch is made, and the next, until there is room for the pass.

    Parameters
    ----------
    size : S_t
    planned : S, batches whose features are planned together; 1 where they are in memory
    """
    return 2 * (size + planned)


def _edge_passes(
    sizes: Iterator[int], num_hops: int, has: Callable[[int], bool], start: int
) -> Iterator[EdgePass]:
    wave = deque([range(start, start)] * num_hops, maxlen=num_hops)
    number = 0
    while True:
        begin = stop = wave[-1].stop
        most = begin + next(sizes)
        while stop < most and has(stop):
            stop += 1
        wave.append(range(begin, stop))
        if (
            wave[0].start == stop
        ):  # all of them are empty: the stream ended, and so did its last batches' hops
            return
        yield EdgePass(number=number, served=tuple(wave))
        number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptPass:
    """A pass that was made. Whoever has it owns ``hops``."""

    edges: EdgePass
    hops: SweptHops


class SweptBatches:
    """What was swept for each position of the stream, hop by hop, until its batch is made. Thread-safe.

    The positions before `num_ready` have all of their hops, and nobody waits here for one that has not: sampler threads
    that did would keep others from making batches, which is what the next pass waits for. Where a pass failed, the
    position behind them is ready too: it has the error. Owns what passes brought until `release_all`.

    Parameters
    ----------
    most : positions that may be ready and not released, those that the pass under way completes included
    start : the first position that is swept; those before it are ready, and are neither read nor released
    """

    def __init__(self, most: int, *, start: int = 0) -> None:
        self.changed = SignalSafeCondition()  # of whoever samples, too: one lock says what may be done
        self._most = most
        self._hops: dict[int, list[tuple[SweptHops, int]]] = {}  # of each position, and whose they are there
        self._num_swept = start
        self._num_released = start
        self._error: BaseException | None = None
        self._is_closed = False

    @property
    def num_ready(self) -> int:
        """Positions that may be asked for: all before it. To be read with the lock of ``changed`` held."""
        return self._num_swept + (self._error is not None)

    def wait_for_room(self, edges: EdgePass) -> None:
        """Wait until so many batches are made that ``edges`` may be swept.

        Raises
        ------
        ChannelClosedError
            Everything was cancelled.
        """
        # A pass that completes nothing is small, and there is nothing yet that could be made.
        is_free = not edges.completed
        self.changed.when(
            lambda: is_free or self._is_closed or edges.completed.stop - self._num_released <= self._most,
            self._require_open,
        )

    def put(self, swept: SweptPass) -> None:
        """Take care of what a pass brought, and let the batches that it completed be made."""
        with self.changed.lock:
            for owner, position in enumerate(swept.edges.positions):
                self._hops.setdefault(position, []).append((swept.hops, owner))
            self._num_swept = max(self._num_swept, swept.edges.completed.stop)
            self.changed.notify_all()

    def close(self, error: BaseException | None = None) -> None:
        """Say that there are no more passes: the stream is over, or ended with ``error``."""
        with self.changed.lock:
            self._error = error
            self.changed.notify_all()

    def read(self, position: int) -> list[Any]:
        """Return what was drawn in each hop of the batch at ``position``, one that is ready; see `HopRule`.

        Raises
        ------
        ChecksumError, SpillError
            As of `SweptHops.read`.
        BaseException
            Whatever ended the passes before this batch.
        """
        with self.changed.lock:
            if position >= self._num_swept and self._error is not None:
                raise self._error
            self._require_open()
            hops = self._hops[position]
        return [swept.read(owner) for swept, owner in hops]

    def release(self, position: int) -> None:
        """Give back what was swept for ``position``: its batch is made."""
        with self.changed.lock:
            hops = self._hops.pop(position, [])
        for swept, owner in hops:  # before the count: the next pass may need the room
            swept.release(owner)
        with self.changed.lock:
            self._num_released += 1
            self.changed.notify_all()

    def cancel(self) -> None:
        """End every wait. Idempotent."""
        with self.changed.lock:
            self._is_closed = True
            self.changed.notify_all()

    def release_all(self) -> None:
        """Give everything back, once every thread has ended. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed.
        """
        with self.changed.lock:
            left, self._hops = self._hops, {}
        with ExitStack() as stack:  # the others are closed, too, if one of them cannot be
            for swept in {id(swept): swept for hops in left.values() for swept, _ in hops}.values():
                stack.callback(swept.close)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ChannelClosedError("the passes over the edges were cancelled")


class PassFeed:
    """The passes that a stream needs, one after another, each when there is room for what it brings. For one thread.

    Parameters
    ----------
    stream : whose batches
    swept : knows how many are left to be made
    size : S_t
    num_hops : L
    start : the first position that is to be swept
    """

    def __init__(
        self, stream: BatchStream, swept: SweptBatches, *, size: int, num_hops: int, start: int
    ) -> None:
        self._passes = edge_passes(size, num_hops=num_hops, has=stream.has, start=start)
        self._swept = swept

    def get(self) -> EdgePass:
        """Return the next pass; raises ChannelClosedError behind the last one."""
        edges = next(self._passes, None)
        if edges is None:
            raise ChannelClosedError("the passes over the edges are over")
        self._swept.wait_for_room(edges)
        return edges


class SweepEdges:
    """Makes one pass over the edges after another, and works out who draws in the next one.

    Parameters
    ----------
    passes : reads the edges
    rule : the hops of the sampler
    stream : gives seeds and address of each position
    feedback : told how long the disk was used
    instruments : measure it
    """

    name: Final = "sweep"

    def __init__(
        self,
        passes: EdgePasses,
        rule: AnyHopRule,
        stream: BatchStream,
        *,
        feedback: RunFeedback,
        instruments: Instruments,
    ) -> None:
        self._passes = passes
        self._rule = rule
        self._stream = stream
        self._feedback = feedback
        self._instruments = instruments
        self._drawn: dict[int, _Drawn] = {}  # of the positions that the next pass goes on with
        self._is_cancelled = False

    def process(self, edges: EdgePass) -> SweptPass:
        """Return ``edges`` and what they brought; errors as of `EdgePasses` and `HopRule`."""
        first = self._stream.id_of(edges.positions.start)
        with self._instruments.working("sweep", first, batches=len(edges.positions)) as work:
            frontiers = [self._frontier(position, work) for position in edges.positions]
            began = time.thread_time()
            with self._feedback.device.using() as use:
                hops = self._passes.sweep(
                    frontiers, label=_label(first, edges), is_cancelled=lambda: self._has_to_end(work)
                )
            cpu_s = time.thread_time() - began
            report = hops.report
            read, written = report.cost.read.bytes_read, report.cost.bytes_written
            work.add_bytes(read=read, written=written, requests=report.cost.read.requests)
            work.note(
                superbatch=edges.number,
                way=report.way,
                # The first position of the run that cannot be sampled yet, and how many this pass made ready.
                completed=edges.completed.stop,
                num_batches=len(edges.completed),
            )
        self._instruments.recorder(first.epoch).add_sweep(bytes_read=read, bytes_written=written)
        self._feedback.add_pass(report, num_batches=len(edges.completed), measured_s=use.seconds, cpu_s=cpu_s)
        # Who draws next is worked out with the next pass, so that the batches that this one completes go on at once.
        self._drawn = {
            position: _Drawn(frontiers[owner], hops, owner)
            for owner, position in enumerate(edges.positions)
            if position not in edges.completed
        }
        return SweptPass(edges=edges, hops=hops)

    def cancel(self) -> None:
        """End the pass that is under way, and every later one. Idempotent."""
        self._is_cancelled = True

    def _frontier(self, position: int, work: Work) -> Any:
        """Return who draws for ``position`` in the next pass."""
        if self._has_to_end(work):
            raise ChannelClosedError("the pass over the edges was cancelled")
        drawn = self._drawn.pop(position, None)
        if drawn is None:
            return self._rule.begin(self._stream.id_of(position), self._stream.seeds_at(position))
        return self._rule.extend(drawn.frontier, drawn.hops.read(drawn.owner))

    def _has_to_end(self, work: Work) -> bool:
        """Return whether a pass has to end; that it asks shows that it makes progress."""
        work.beat()
        return self._is_cancelled


class _Drawn(NamedTuple):
    """A frontier, and where that lies which a pass brought for it."""

    frontier: Any  # as of the rule
    hops: SweptHops
    owner: int


def _label(first: BatchId, edges: EdgePass) -> str:
    """Return whose pass it is, for messages. Pure."""
    return f"the pass for {len(edges.positions)} batches from epoch {first.epoch}, batch {first.index} on"


class EdgeSweeps:
    """Sweeps the edges for ``stream`` from its begin on. Owns what was swept until `release_all`.

    The batches that the loader was sized by are the first of a run from its begin: they are ready, and the wave fills
    behind them, so that the first batch waits for no pass.

    Parameters
    ----------
    tier : makes passes, and batches of what they brought
    stream : which batches
    planned : S, batches whose features are planned together; 1 where they are in memory
    feedback : told how long the disk was used
    instruments : measure it
    failures : told of an error when it happens
    """

    def __init__(
        self,
        tier: SweepTier,
        stream: BatchStream,
        *,
        planned: int,
        feedback: RunFeedback,
        instruments: Instruments,
        failures: Failures,
    ) -> None:
        self.sampler = tier.sampler
        self.stream = stream
        self.instruments = instruments
        self.num_types = len(tier.type_starts) - 1
        self.known = _first_known(tier.probed, stream, tier.type_starts)
        start = len(self.known)
        self.swept = SweptBatches(batches_swept(tier.num_batches, planned), start=start)
        self._feedback = feedback
        rule = tier.sampler.rule
        self._sweep = SweepEdges(tier.passes, rule, stream, feedback=feedback, instruments=instruments)
        feed = PassFeed(stream, self.swept, size=tier.num_batches, num_hops=rule.num_hops, start=start)
        self.thread: StageThread = stage_thread(self._sweep, feed, self.swept, failures)

    def working(self, position: int) -> Work:
        """Return the work on the batch at ``position``."""
        return self.instruments.working("sample", self.stream.id_of(position))

    def read(self, position: int) -> list[Any]:
        """Return what was drawn in each hop of the batch at ``position``; errors as `SweptBatches.read`."""
        with self._feedback.device.using():
            return self.swept.read(position)

    def cancel(self) -> None:
        """End the pass that is under way, and every wait. Idempotent."""
        self._sweep.cancel()
        self.swept.cancel()

    def release_all(self) -> None:
        """Give back what was swept, once every thread has ended. Idempotent."""
        self.swept.release_all()


def _first_known(probed: list[AnyBatch], stream: BatchStream, type_starts: IdArray) -> dict[int, AnyBatch]:
    """Take ``probed``, and return those that ``stream`` begins with, by their positions."""
    known: dict[int, AnyBatch] = {}
    taken = probed[:]
    probed.clear()  # for one run alone: they are not kept for another that may never come
    for position, batch in enumerate(taken):
        if not stream.has(position) or stream.id_of(position) != batch.id:
            break
        try:
            own = stream.seeds_at(position)
        except BaseException as error:
            note_where(error, "sample", batch.id)
            raise
        if not _is_of(batch, own, type_starts):
            break  # of another rank
        known[position] = batch
    return known


def _is_of(batch: AnyBatch, seeds: AnySeeds, type_starts: IdArray) -> bool:
    """Return whether ``batch`` was sampled for ``seeds`` of its address. Pure."""
    links = seeds.links if isinstance(seeds, BatchSeeds) else None
    if links is not None and batch.links is not None:  # other rows may have the same ends
        return np.array_equal(links.edge_ids, batch.links.edge_ids)
    own = split_seeds(seed_nodes(seeds), type_starts)
    found = zip(batch.node_arrays, batch.seed_counts, strict=True)
    return all(
        np.array_equal(nodes_of_type, nodes[:count])
        for nodes_of_type, (nodes, count) in zip(own, found, strict=True)
    )


class ReplayTrace:
    """Works out the nodes of a batch from what passes brought: sets of them, and blocks for edges alone. Thread-safe.

    Parameters
    ----------
    sweeps : brought it
    types : the number of each table, see `table_rows`
    """

    name: Final = "sample"

    def __init__(self, sweeps: EdgeSweeps, types: Sequence[int] = (0,)) -> None:
        self._sweeps = sweeps
        self._types = types
        self._has_edges = max(types, default=0) >= sweeps.num_types

    def process(self, position: int) -> TraceEntry:
        """Return the nodes of the batch at ``position`` of the stream."""
        sweeps = self._sweeps
        with sweeps.working(position) as work:
            work.note(ahead=True)
            if (known := sweeps.known.get(position)) is not None:
                work.note(known=True)
                return trace_entry(known, self._types)
            seeds, drawn = sweeps.stream.seeds_at(position), sweeps.read(position)
            if self._has_edges:
                return trace_entry(sweeps.sampler.replay(work.batch, seeds, drawn), self._types)
            nodes = swept_nodes(sweeps.sampler.rule, work.batch, seeds, drawn)
            return tuple(CodedRows.of(nodes[number]) for number in self._types)


class ReplayBatch:
    """Makes the batch at a position of what passes brought, and gives that back; a `BatchSource`. Thread-safe."""

    def __init__(self, sweeps: EdgeSweeps) -> None:
        self._sweeps = sweeps

    def working(self, position: int) -> Work:
        """Return the work on the batch at ``position``."""
        return self._sweeps.working(position)

    def make(self, position: int, work: Work) -> AnyBatch:
        """Return the batch at ``position`` of the stream."""
        sweeps = self._sweeps
        if (known := sweeps.known.pop(position, None)) is not None:
            work.note(known=True)
            return known
        seeds = sweeps.stream.seeds_at(position)
        batch = sweeps.sampler.replay(work.batch, seeds, sweeps.read(position))
        sweeps.swept.release(position)
        return batch


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTier:
    """The parts that bring edges from the SSD, pass by pass."""

    passes: EdgePasses
    sampler: SweptSampler
    num_batches: int  # S_t
    probed: list[AnyBatch]  # the first of epoch 0, until a run took them
    type_starts: IdArray  # (T + 1,) by which seeds are numbered through
