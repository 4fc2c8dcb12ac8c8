"""What brings edges from the SSD for a loader, pass by pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gloader.dataset.edge_passes import EdgePasses
    from gloader.samplers.sweeping import SweptSampler
    from gloader.types import AnyBatch, IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTier:
    """The parts that bring edges from the SSD, pass by pass."""

    passes: EdgePasses
    sampler: SweptSampler
    num_batches: int  # S_t
    probed: list[AnyBatch]  # the first of epoch 0, until a run took them
    type_starts: IdArray  # (T + 1,) by which seeds are numbered through
