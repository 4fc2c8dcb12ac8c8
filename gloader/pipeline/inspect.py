"""Inspect: the cache plan of a superbatch, from its trace and the trace of the one after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.pipeline.superbatch import PlannedSuperbatch

if TYPE_CHECKING:
    from gloader.cache import SuperbatchPlanner
    from gloader.observe.instruments import Instruments
    from gloader.observe.miss_estimate import MissSample
    from gloader.pipeline.superbatch import InspectJob


class Inspect:
    """Plans superbatches one after another: each plan begins with the rows that the one before leaves in the cache.

    Parameters
    ----------
    planner : decides every hit, miss and admission
    miss_sample : learns from each trace what other cache sizes would miss
    instruments : measure it
    """

    name: Final = "inspect"

    def __init__(self, planner: SuperbatchPlanner, miss_sample: MissSample, instruments: Instruments) -> None:
        self._planner = planner
        self._miss_sample = miss_sample
        self._instruments = instruments

    def process(self, job: InspectJob) -> PlannedSuperbatch:
        """Return the superbatch of ``job`` with its plan."""
        sampled = job.superbatch
        batches = len(sampled.trace)
        with self._instruments.working("inspect", sampled.first, batches=batches) as work:
            plan = self._planner.plan(sampled.trace, job.lookahead)
            self._miss_sample.offer(sampled.trace)
            work.note(superbatch=sampled.number, hits=plan.num_hits, misses=plan.num_misses)
        return PlannedSuperbatch(number=sampled.number, first=sampled.first, plan=plan)
