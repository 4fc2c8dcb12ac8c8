"""Inspect: the cache plans of a superbatch, from its trace and the trace of the one after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.pipeline.superbatch import PlannedSuperbatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.observe.instruments import Instruments
    from gloader.pipeline.superbatch import InspectJob
    from gloader.pipeline.tiers import SsdTable


class Inspect:
    """Plans superbatches one after another: each plan begins with the rows that the one before leaves in the cache.

    Parameters
    ----------
    tables : their planners decide every hit, miss and admission
    instruments : measure it
    """

    name: Final = "inspect"

    def __init__(self, tables: Sequence[SsdTable], instruments: Instruments) -> None:
        self._tables = tables
        self._instruments = instruments

    def process(self, job: InspectJob) -> PlannedSuperbatch:
        """Return the superbatch of ``job`` with its plans."""
        sampled = job.superbatch
        with self._instruments.working("inspect", sampled.first, batches=sampled.num_batches) as work:
            plans = []
            for table, trace, lookahead in zip(self._tables, sampled.traces, job.lookaheads, strict=True):
                plans.append(table.planner.plan(trace, lookahead))
            hits, misses = sum(plan.num_hits for plan in plans), sum(plan.num_misses for plan in plans)
            admitted = sum(int(plan.admissions.sum()) for plan in plans)
            work.note(superbatch=sampled.number, hits=hits, misses=misses, admitted=admitted)
        return PlannedSuperbatch(number=sampled.number, first=sampled.first, plans=tuple(plans))
