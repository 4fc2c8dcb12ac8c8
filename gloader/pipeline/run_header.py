"""What a loader is recorded on: the header of its timeline, by which `gloader.replay` replays the run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from gloader.pipeline.pace import BATCHES_AHEAD
from gloader.pipeline.run import WAITING
from gloader.pipeline.superbatch_flow import PLANNED_AT_ONCE
from gloader.replay.recording import RecordedTable, RunHeader
from gloader.replay.work import PipelineShape

if TYPE_CHECKING:
    from gloader.config import LoaderSettings
    from gloader.core.loader_state import LoaderState
    from gloader.dataset import Dataset
    from gloader.pipeline.tiers import FeatureTier


def run_header(
    tier: FeatureTier, settings: LoaderSettings, state: LoaderState, dataset: Dataset, *, num_ranks: int
) -> RunHeader:
    """Return the header of the timeline of a loader.

    Parameters
    ----------
    tier : the parts behind it
    settings : what it was opened with
    state : of the first batch that was recorded
    dataset : what it samples
    num_ranks : whose batches it loads
    """
    plan, facts = tier.plan, tier.facts
    return RunHeader(
        cores=len(os.sched_getaffinity(0)),
        torch_threads=torch.get_num_threads(),
        device=str(settings.device.device),
        shape=_shape_of(tier, num_ranks),
        superbatch=plan.superbatch.num_batches,
        superbatch_unit=1 if tier.exchange is None else num_ranks,
        sweep_batches=0 if tier.sweeps is None else tier.sweeps.num_batches,
        num_hops=len(settings.sampling.fanouts),
        policy=facts.policy,
        budget_bytes=plan.budget_bytes,
        spill_bytes=tier.spill_bytes,
        staging_bytes=sum(table.retrieval.staging_bytes for table in tier.ssd or ()),
        tables=_tables_of(tier),
        rates=facts.rates,
        state=state.to_json(),
        sample_s=tier.load.demand.work.sample_s,
        num_batches=tier.order.num_batches,
        # Whoever replays it may stand in another folder.
        dataset=str(dataset.root.absolute()) if dataset.mirrored is None else dataset.location,
        fingerprint=dataset.fingerprint,
        # How long a run is is no flag, and decides which superbatches are tried.
        settings=settings.recorded() | {"epochs": settings.stages.epochs},
    )


def _tables_of(tier: FeatureTier) -> tuple[RecordedTable, ...]:
    read = tier.ssd or (None,) * len(tier.facts.tables)
    return tuple(
        RecordedTable(
            name=table.name,
            num_rows=table.num_nodes,
            row_bytes=table.row_bytes,
            cache_rows=cache_rows,
            device_rows=0 if held.cache is None else len(held.cache.plan.rows),
            # A profile of the device says these, and learns from every run.
            gap_bytes=None if ssd is None else ssd.store.stored_rows.gap_bytes,
            sweep_gap_bytes=None if ssd is None else ssd.retrieval.rows.sweep_gap_bytes,
        )
        for table, cache_rows, held, ssd in zip(
            tier.facts.tables, tier.plan.cache_rows, tier.device_tiers, read, strict=True
        )
    )


def _shape_of(tier: FeatureTier, num_ranks: int) -> PipelineShape:
    """Return the threads of the runs of ``tier``, and the bounds between them; see `PipelineRun`."""
    return PipelineShape(
        features=tier.plan.features,
        sampler_threads=tier.sampler_threads,
        ahead=tier.batches_in_flight,
        num_buffers=tier.ring.num_buffers,
        planned_at_once=PLANNED_AT_ONCE,
        waiting=WAITING,
        unit=1 if tier.exchange is None else num_ranks,
        num_ranks=num_ranks,
        is_sending=tier.device.is_asynchronous,
        sent_ahead=BATCHES_AHEAD,
    )
