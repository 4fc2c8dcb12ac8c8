"""Stalls of a run, in the terms of DS-Analyzer and Stash: what an epoch takes longer because of something. Pure.

J. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021, measures them by runs with synthetic
batches, with everything cached, and as it is; A. Sharma et al., "Stash", ICDCS 2023, adds ranks and machines. Here each
of these runs is a replay.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gloader.replay.replay import replay
from gloader.replay.work import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.replay.replay import Replayed
    from gloader.replay.work import BatchWork, Machine, PipelineShape, SuperbatchWork, Work

STALLS: Final = ("preparation", "fetch", "transfer", "interconnect", "network")


def find_stalls(
    work: Work, machine: Machine, shape: PipelineShape, *, seconds_of: Callable[[Replayed], float]
) -> dict[str, float]:
    """Return what each kind of stall adds to an epoch, in seconds. Pure.

    Preparation is sampling and gathering where everything is in memory; fetch is what the disk adds to that. Transfer,
    interconnect and network are what an epoch would take less without copies to the device, without other ranks, and
    without other machines.

    Parameters
    ----------
    work, machine, shape : the run
    seconds_of : returns the seconds of an epoch of a replay
    """

    def seconds(changed: Work, of: Machine = machine, within: PipelineShape = shape) -> float:
        return seconds_of(replay(changed, of, within))

    def without(resource: str) -> float:
        return seconds(work, replace(machine, speed={**machine.speed, resource: math.inf}))

    cold = seconds(work)
    warm = seconds(_changed(work, _in_memory, _planned_for_nothing))
    computed = seconds(_changed(work, _synthetic, _planned_for_nothing))
    found = {"preparation": warm - computed, "fetch": cold - warm, "transfer": cold - without("link")}
    if shape.num_ranks > 1:
        found["interconnect"] = cold - seconds(work, within=replace(shape, is_synchronous=False))
    found["network"] = cold - without("network")
    return {name: max(found.get(name, 0.0), 0.0) for name in STALLS}


def _changed(
    work: Work,
    of_batch: Callable[[BatchWork], BatchWork],
    of_superbatch: Callable[[SuperbatchWork], SuperbatchWork],
) -> Work:
    return replace(
        work,
        batches=tuple(map(of_batch, work.batches)),
        superbatches=tuple(map(of_superbatch, work.superbatches)),
        passes=(),
    )


def _in_memory(batch: BatchWork) -> BatchWork:
    return replace(batch, trace=NOTHING, read=NOTHING)


def _synthetic(batch: BatchWork) -> BatchWork:
    return replace(batch, trace=NOTHING, sample=NOTHING, read=NOTHING, gather=NOTHING, transfer=NOTHING)


def _planned_for_nothing(superbatch: SuperbatchWork) -> SuperbatchWork:
    return replace(superbatch, inspect=NOTHING, stage=NOTHING)
