"""The passes over the edges of one run: the thread that makes them, and what batches are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.observe.instruments import note_where
from gloader.pipeline.sweep import SweepEdges
from gloader.pipeline.swept_batches import PassFeed, SweptBatches
from gloader.pipeline.threads import stage_thread
from gloader.pipeline.wavefront import batches_swept
from gloader.samplers.arguments import split_seeds
from gloader.types import BatchSeeds, seed_nodes

if TYPE_CHECKING:
    from gloader.observe.instruments import Instruments, Work
    from gloader.pipeline.feedback import RunFeedback
    from gloader.pipeline.positions import BatchStream
    from gloader.pipeline.sweep_tier import SweepTier
    from gloader.pipeline.threads import Failures, StageThread
    from gloader.types import AnyBatch, AnySeeds, IdArray


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
