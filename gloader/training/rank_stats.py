"""One epoch's statistics, of all ranks."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from gloader.observe.epoch_stats import STAGES, EpochStats

if TYPE_CHECKING:
    from collections.abc import Sequence

_OF_EACH = ("epoch", "batches")  # the same on every rank
_OF_THE_SLOWEST = ("seconds", "retrieval_s")


def merge_stats(parts: Sequence[EpochStats]) -> EpochStats:
    """Return what all ranks moved together, and the times of whichever was slowest. Pure.

    The rank that loads for its machine counts the rows of all of them; with private loaders each counts its own. A
    step counts as one batch.
    """
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(EpochStats) if field.name != "stage_seconds"]
    values = {name: [getattr(part, name) for part in parts] for name in names}
    merged = {
        name: max(column) if name in _OF_EACH + _OF_THE_SLOWEST else sum(column)
        for name, column in values.items()
    }
    stages: dict[str, float] = {stage: max(part.stage_seconds[stage] for part in parts) for stage in STAGES}
    return EpochStats(stage_seconds=stages, **merged)
