"""Sweep: one pass over the edges on the SSD, for hops of many batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gloader.errors import ChannelClosedError
from gloader.pipeline.swept_batches import SweptPass

if TYPE_CHECKING:
    from gloader.dataset.edge_passes import EdgePasses, SweptHops
    from gloader.observe.instruments import Instruments, Work
    from gloader.pipeline.feedback import RunFeedback
    from gloader.pipeline.positions import BatchStream
    from gloader.pipeline.wavefront import EdgePass
    from gloader.samplers.sweeping import AnyHopRule
    from gloader.types import BatchId


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
