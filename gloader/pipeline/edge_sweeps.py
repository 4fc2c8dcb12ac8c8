"""Sweeps: passes over the edges on the SSD; each draws hops of many batches.

If the edges do not fit in memory, this step precedes the sample step. It draws every batch's edges; the sample step
then makes the batches from them (`ReplayBatch` and `ReplayTrace` in `gloader.pipeline.sample`). A batch is addressed
by its position in the run's stream of batches.

- A pass goes through the edge file once, in file order, and draws one hop for each of its batches.
- A topology superbatch is up to S_t consecutive batches that go through the passes together. Each pass begins one
  superbatch, and completes the superbatch that began L - 1 passes before: a batch takes part in L passes, one per hop.
- A frontier is one hop of one batch: the nodes that draw neighbours. An owner number is a frontier's index in its pass.
- Swept hops are a pass's results: the drawn edges of each frontier, in the spill folder.
- A batch is ready after its last hop is drawn, and made after the sampler has built its blocks.
- A feature superbatch is S consecutive batches whose feature rows are planned together, independent of S_t.

`edge_passes` plans the passes, and `SweepEdges` makes them. `SweptBatches` keeps the swept hops until their batch is
made. `EdgeSweeps` joins these parts for one run.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gloader.core.signals import Cancellation, SignalSafeCondition
from gloader.errors import ChannelClosedError
from gloader.observe.instruments import note_where
from gloader.pipeline.threads import stage_thread
from gloader.samplers.arguments import split_seeds
from gloader.ssd_store.cost.strategy import ramp
from gloader.types import BatchSeeds, seed_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.dataset.edge_passes import EdgePasses, SweptHops
    from gloader.observe.instruments import Instruments, Work
    from gloader.pipeline.seeds import BatchStream
    from gloader.pipeline.superbatch import RunFeedback
    from gloader.pipeline.threads import Failures, StageThread
    from gloader.samplers.sweeping import HopRule, SweptSampler
    from gloader.types import AnyBatch, AnySeeds, BatchId, IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePass:
    """One pass over the edges, and the stream positions of its batches."""

    number: int  # counted from the start of the pipeline
    # (L,) one range per hop: ``served[0]`` are the batches at hop L - 1, ``served[-1]`` the batches at hop 0
    served: tuple[range, ...]

    @property
    def completed(self) -> range:
        """The batches that receive their last hop; empty in the first L - 1 passes."""
        return self.served[0]

    @property
    def begun(self) -> range:
        """The batches that receive hop 0; empty after the end of the stream."""
        return self.served[-1]

    @property
    def positions(self) -> range:
        """All batches of the pass."""
        return range(self.completed.start, self.begun.stop)


def edge_passes(stream: BatchStream, size: int, *, num_hops: int, start: int = 0) -> Iterator[EdgePass]:
    """Yield every pass that the stream needs, each with at least one batch. Pure.

    Batches form topology superbatches. The first superbatches, one for each hop, have 1, 2, 4, ... batches, so that
    the first batch does not wait for a large pass; the others have ``size``. Pass t serves the last hop of superbatch
    t - L + 1, the hop before it of superbatch t - L + 2, ... and hop 0 of superbatch t.

    Parameters
    ----------
    stream : the batches
    size : S_t, batches per superbatch
    num_hops : L
    start : the first position to sweep

    Raises
    ------
    ConfigError
        ``size`` is not positive.
    """
    return _edge_passes(stream, chain(islice(ramp(size), num_hops), repeat(size)), num_hops, start)


def batches_swept(size: int, planned: int) -> int:
    """Return the maximum number of batches that are drawn and not yet made, including the current pass. Pure.

    The pass that completes a superbatch waits until at most this many batches, with its own, are not yet made. During
    that pass the batches of the previous superbatch are executed, and traces are taken up to ``planned`` batches ahead.

    This cannot deadlock. Assume that a pass waits. It would complete at most ``size`` batches. With them, more than
    2 S_t + 2 S batches would be drawn and not made. So more than 2 S are in this state already. The next batch to be
    made belongs to a feature superbatch j, the S batches of plan j. Plans j and j + 1 end at most 2 S batches after it.
    So their traces (the rows of each batch) can be taken. Plan j needs nothing else (`SuperbatchCollector`), and
    the batches before j free its memory as they are executed. So this batch is made, and then further batches, until
    there is room for the pass.

    Parameters
    ----------
    size : S_t, the batches in a topology superbatch
    planned : S, batches whose features are planned together; 1 for features in memory
    """
    return 2 * (size + planned)


def _edge_passes(stream: BatchStream, sizes: Iterator[int], num_hops: int, start: int) -> Iterator[EdgePass]:
    """Yield the passes of `edge_passes`; ``sizes`` are the sizes of the superbatches, without end."""
    # The wave holds the positions of the last L superbatches, the oldest first. Each pass adds the next superbatch, and
    # the oldest drops out: it was completed by the previous pass. After the stream's end, empty ranges are added.
    wave = deque([range(start, start)] * num_hops, maxlen=num_hops)
    number = 0
    while True:
        begin = stop = wave[-1].stop
        limit = begin + next(sizes)
        while stop < limit and stream.has(stop):
            stop += 1
        wave.append(range(begin, stop))
        if wave[0].start == stop:  # all ranges are empty: every batch of the stream has all of its hops
            return
        yield EdgePass(number=number, served=tuple(wave))
        number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptPass:
    """A finished pass and its results. The receiver owns ``hops``."""

    edges: EdgePass  # the pass and its batches
    hops: SweptHops  # the drawn edges of each batch, by owner number


class SweptBatches:
    """The swept hops of each stream position, until its batch is made. Thread-safe.

    The sweeping thread puts hops in, and the sampler threads read and release them. Positions before `num_ready` have
    all of their hops. A sampler thread must not wait here for one position: the next pass may itself wait until this
    thread has made other batches. After a failed pass, the next position counts as ready too, and reading it raises the
    error. Owns the swept hops until `release_all`.

    Parameters
    ----------
    most : maximum number of ready and unreleased positions, including positions that the current pass completes
    start : the first swept position; earlier positions are ready, and are neither read nor released
    """

    def __init__(self, most: int, *, start: int = 0) -> None:
        self.changed = SignalSafeCondition()  # shared with the sampler threads, so that both use one lock
        self._most = most
        self._hops: dict[int, list[tuple[SweptHops, int]]] = {}  # hops and owner number, by position
        self._num_swept = start  # positions with all hops, from position 0 on
        self._num_released = start  # positions whose batches are made
        self._error: BaseException | None = None  # ended the passes
        self._is_closed = False  # see `cancel`

    @property
    def num_ready(self) -> int:
        """Number of ready positions, from position 0 on. Hold the ``changed`` lock to read it."""
        return self._num_swept + (self._error is not None)

    def wait_for_room(self, edges: EdgePass) -> None:
        """Wait until enough batches are made for ``edges`` to be swept.

        Raises
        ------
        ChannelClosedError
            The object was cancelled.
        """
        # A pass that completes no batch is small, and it may come before any batch can be made.
        is_free = not edges.completed
        self.changed.when(
            lambda: is_free or self._is_closed or edges.completed.stop - self._num_released <= self._most,
            self._require_open,  # called after the wait, under the lock
        )

    def put(self, swept: SweptPass) -> None:
        """Store a pass's hops; the batches that it completed can then be made."""
        with self.changed.lock:
            for owner, position in enumerate(swept.edges.positions):
                self._hops.setdefault(position, []).append((swept.hops, owner))
            self._num_swept = max(self._num_swept, swept.edges.completed.stop)
            self.changed.notify_all()

    def close(self, error: BaseException | None = None) -> None:
        """Note that there are no further passes: the stream is over, or ended with ``error``."""
        with self.changed.lock:
            self._error = error
            self.changed.notify_all()

    def read(self, position: int) -> list[Any]:
        """Return the drawn edges of each hop for the batch at ``position``, which is ready; see `HopRule`.

        Raises
        ------
        ChecksumError, SpillError
            See `SweptHops.read`.
        BaseException
            The error that ended the passes before this batch.
        """
        with self.changed.lock:
            if position >= self._num_swept and self._error is not None:
                raise self._error
            self._require_open()
            hops = self._hops[position]
        return [swept.read(owner) for swept, owner in hops]

    def release(self, position: int) -> None:
        """Release the hops of ``position`` after its batch is made."""
        with self.changed.lock:
            hops = self._hops.pop(position, [])
        for swept, owner in hops:  # before the count is raised: the next pass may need the room
            swept.release(owner)
        with self.changed.lock:
            self._num_released += 1
            self.changed.notify_all()

    def cancel(self) -> None:
        """End all waits. Idempotent."""
        with self.changed.lock:
            self._is_closed = True
            self.changed.notify_all()

    def release_all(self) -> None:
        """Release everything after all threads have ended. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed.
        """
        with self.changed.lock:
            left, self._hops = self._hops, {}
        with ExitStack() as stack:  # closes all hops even if one fails
            for swept in {id(swept): swept for hops in left.values() for swept, _ in hops}.values():
                stack.callback(swept.close)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ChannelClosedError("the passes over the edges were cancelled")


class PassFeed:
    """The passes that a stream needs, in order, each when there is room for its hops. For one thread.

    Parameters
    ----------
    stream : the batches
    swept : counts the batches that are still to be made
    size : S_t, the batches in a topology superbatch
    num_hops : L
    start : the first position to sweep
    """

    def __init__(
        self, stream: BatchStream, swept: SweptBatches, *, size: int, num_hops: int, start: int
    ) -> None:
        self._passes = edge_passes(stream, size, num_hops=num_hops, start=start)
        self._swept = swept

    def get(self) -> EdgePass:
        """Return the next pass; raises ChannelClosedError after the last one."""
        edges = next(self._passes, None)
        if edges is None:
            raise ChannelClosedError("the passes over the edges are over")
        self._swept.wait_for_room(edges)
        return edges


class SweepEdges:
    """Makes the passes over the edges in order, and computes the frontiers of each next pass.

    Parameters
    ----------
    passes : read the edges
    rule : the sampler's hops
    stream : the seeds and the address of each position
    feedback : receives the disk times
    instruments : measure the passes
    """

    name: Final = "sweep"  # the stage's name in errors and in the timeline

    def __init__(
        self,
        passes: EdgePasses,
        rule: HopRule,
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
        self._drawn: dict[int, _Drawn] = {}  # frontiers that the next pass extends, by position
        self._cancellation = Cancellation()

    def process(self, edges: EdgePass) -> SweptPass:
        """Return ``edges`` and their hops; errors as in `EdgePasses` and `HopRule`."""
        first = self._stream.id_of(edges.positions.start)
        with self._instruments.working("sweep", first, batches=len(edges.positions)) as work:
            cancellation = self._cancellation.reporting(work.beat)
            frontiers = [self._frontier(position, cancellation) for position in edges.positions]
            began = time.thread_time()
            with self._feedback.device.using() as use:
                hops = self._passes.sweep(frontiers, label=_label(first, edges), cancellation=cancellation)
            cpu_s = time.thread_time() - began
            report = hops.report
            read, written = report.cost.read.bytes_read, report.cost.bytes_written
            work.add_bytes(read=read, written=written, requests=report.cost.read.requests)
            work.note(
                superbatch=edges.number,
                way=report.way,
                # The run's first position that cannot be sampled yet, and the number of batches completed by this pass.
                completed=edges.completed.stop,
                num_batches=len(edges.completed),
            )
        self._instruments.recorder(first.epoch).add_sweep(bytes_read=read, bytes_written=written)
        self._feedback.add_pass(report, num_batches=len(edges.completed), measured_s=use.seconds, cpu_s=cpu_s)
        # The frontiers are computed at the start of the next pass, so that completed batches can be made now.
        self._drawn = {
            position: _Drawn(frontiers[owner], hops, owner)
            for owner, position in enumerate(edges.positions)
            if position not in edges.completed
        }
        return SweptPass(edges=edges, hops=hops)

    def cancel(self) -> None:
        """End the current pass and all later ones. Idempotent."""
        self._cancellation.set()

    def _frontier(self, position: int, cancellation: Cancellation) -> Any:
        """Return the frontier of ``position`` in the next pass."""
        cancellation.raise_if_set("the pass over the edges")
        drawn = self._drawn.pop(position, None)
        if drawn is None:
            return self._rule.begin(self._stream.id_of(position), self._stream.seeds_at(position))
        return self._rule.extend(drawn.frontier, drawn.hops.read(drawn.owner))


class _Drawn(NamedTuple):
    """A frontier, and the drawn edges that extend it to the next hop."""

    frontier: Any  # of the type that the sampler's `HopRule` uses
    hops: SweptHops  # results of the frontier's pass
    owner: int  # the frontier's index in the pass


def _label(first: BatchId, edges: EdgePass) -> str:
    """Return a label for messages that names the batches of a pass. Pure."""
    return f"the pass for {len(edges.positions)} batches from epoch {first.epoch}, batch {first.index} on"


class EdgeSweeps:
    """Sweeps the edges for ``stream`` from its first position on. Owns the swept hops until `release_all`.

    The loader sampled the first batches of a run to measure their sizes. A run from the beginning reuses these batches,
    so that its first batch waits for no pass.

    Parameters
    ----------
    tier : makes passes, and batches from their hops
    stream : the batches
    planned : S, batches whose features are planned together; 1 for features in memory
    feedback : receives the disk times
    instruments : measure the sweeps
    failures : receives an error immediately
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
        self.num_types = len(tier.type_starts) - 1  # node types
        self.known = _first_known(tier.probed, stream, tier.type_starts)  # the reused batches
        start = len(self.known)
        self.swept = SweptBatches(batches_swept(tier.num_batches, planned), start=start)
        self._feedback = feedback
        rule = tier.sampler.rule
        # Makes the passes, on `thread`.
        self._sweep = SweepEdges(tier.passes, rule, stream, feedback=feedback, instruments=instruments)
        feed = PassFeed(stream, self.swept, size=tier.num_batches, num_hops=rule.num_hops, start=start)
        self.thread: StageThread = stage_thread(self._sweep, feed, self.swept, failures)

    def working(self, position: int) -> Work:
        """Return the work on the batch at ``position``."""
        return self.instruments.working("sample", self.stream.id_of(position))

    def read(self, position: int) -> list[Any]:
        """Return the drawn edges of each hop for the batch at ``position``; errors as in `SweptBatches.read`."""
        with self._feedback.device.using():
            return self.swept.read(position)

    def cancel(self) -> None:
        """End the current pass and all waits. Idempotent."""
        self._sweep.cancel()
        self.swept.cancel()

    def release_all(self) -> None:
        """Release the swept hops after all threads have ended. Idempotent."""
        self.swept.release_all()


def _first_known(probed: list[AnyBatch], stream: BatchStream, type_starts: IdArray) -> dict[int, AnyBatch]:
    """Empty ``probed``, and return its batches at the beginning of ``stream``, by position.

    ``probed`` are the batches that the loader sampled when it opened.
    """
    known: dict[int, AnyBatch] = {}
    candidates = probed[:]
    probed.clear()  # only the loader's first run uses them
    for position, batch in enumerate(candidates):
        if not stream.has(position) or stream.id_of(position) != batch.id:
            break
        try:
            seeds = stream.seeds_at(position)
        except BaseException as error:
            note_where(error, "sample", batch.id)
            raise
        if not _has_seeds(batch, seeds, type_starts):
            break  # the batch is another rank's
        known[position] = batch
    return known


def _has_seeds(batch: AnyBatch, seeds: AnySeeds, type_starts: IdArray) -> bool:
    """Return whether ``batch`` was sampled for ``seeds``. Pure."""
    links = seeds.links if isinstance(seeds, BatchSeeds) else None
    if links is not None and batch.links is not None:  # other table rows may have the same nodes
        return np.array_equal(links.edge_ids, batch.links.edge_ids)
    seeds_by_type = split_seeds(seed_nodes(seeds), type_starts)
    batch_nodes = zip(batch.node_arrays, batch.seed_counts, strict=True)
    return all(
        np.array_equal(expected, nodes[:count])
        for expected, (nodes, count) in zip(seeds_by_type, batch_nodes, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTier:
    """The parts that read edges from the SSD, pass by pass."""

    passes: EdgePasses  # read the edges, and draw hops
    sampler: SweptSampler  # makes batches from swept hops
    num_batches: int  # S_t
    probed: list[AnyBatch]  # the first batches of epoch 0, until a run takes them
    type_starts: IdArray  # (T + 1,) first number of each type's seeds
