"""Machines that a run could be on: what each would make of an epoch, and what that costs."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import MALFORMED
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError, ReplayError
from gloader.replay.changes import NO_CHANGES, parse_changes
from gloader.replay.pareto import non_dominated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.lab.analyze.machine_types import MachineType
    from gloader.lab.analyze.predicts import Predicts
    from gloader.replay.recording import RunHeader

_RESULT: Final = "result.json"
# Of a run's memory, for its evaluations; see `gloader.training.run_budget.share_budget`.
_EVALUATIONS: Final = 4
# Budgets of memory that a machine is tried with, from the least that works to nearly all that it has: the system and
# the cached pages of other files take the rest.
_NUM_BUDGETS: Final = 6
_OF_MEMORY: Final = 0.8
_CLOSE_BUDGETS: Final = 1.1  # the least that works is known to within this factor
_SMALLEST: Final = 1 << 20
_SECONDS_PER_HOUR: Final = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """How the memory of a run divides between its loader and everything else."""

    total_bytes: int  # of the recorded run
    loader_bytes: int  # likewise

    @classmethod
    def of_run(cls, run: Path, header: RunHeader) -> RunMemory:
        """Return that of the run in a folder; of a trace alone, as if a loader had all of it."""
        try:
            total = int(json.loads((run / _RESULT).read_bytes())["memory_budget_bytes"])
        except (OSError, *MALFORMED):
            total = 0
        return cls(total_bytes=max(total, header.budget_bytes), loader_bytes=header.budget_bytes)

    def of_loader(self, total_bytes: int) -> int:
        """Return about what a loader has of ``total_bytes``: evaluations take a share, all else what it took."""
        beside = self.total_bytes - self.loader_bytes
        share = min(beside / self.total_bytes, 1 / _EVALUATIONS)
        return int(total_bytes * (1 - share) - (beside - share * self.total_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A machine with a budget of memory, and what an epoch is there."""

    machine: MachineType
    budget_bytes: int  # of memory, for all of the run
    seconds: float  # of an epoch
    ssd_bytes: int  # of the dataset, and of packs
    dollars: float  # of an epoch

    @property
    def costs(self) -> tuple[float, ...]:
        """What is to be small."""
        return (self.seconds, self.budget_bytes, self.ssd_bytes, self.dollars)

    def to_json(self) -> dict[str, Any]:
        """Return the offer as a JSON object."""
        return {
            "machine": self.machine.name,
            "epoch_s": self.seconds,
            "memory_bytes": self.budget_bytes,
            "ssd_bytes": self.ssd_bytes,
            "dollars_per_epoch": self.dollars,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """What the machines make of a run."""

    best: tuple[Offer, ...]  # those that no other one beats in everything, the fastest first
    num_predicted: int
    left_out: Mapping[str, str]  # why a machine is none that the run could be on, by its name

    def choose(self, *, most_dollars: float | None = None, most_seconds: float | None = None) -> Offer | None:
        """Return the cheapest offer within bounds; the fastest where dollars alone are bounded; None: there is none.

        Parameters
        ----------
        most_dollars, most_seconds : of an epoch; None: any
        """
        within = [
            offer
            for offer in self.best
            if offer.dollars <= (math.inf if most_dollars is None else most_dollars)
            and offer.seconds <= (math.inf if most_seconds is None else most_seconds)
        ]
        if most_seconds is None and most_dollars is not None:
            return min(within, key=lambda offer: (offer.seconds, offer.dollars), default=None)
        return min(within, key=lambda offer: (offer.dollars, offer.seconds), default=None)


def find_offers(
    predictor: Predicts,
    machines: Sequence[MachineType],
    *,
    memory: RunMemory,
    says: Callable[[str], None] = lambda _: None,
) -> Offers:
    """Predict an epoch on each machine, with several budgets of memory, and keep what nothing else beats.

    Parameters
    ----------
    predictor : of the run
    machines : that can be had
    memory : how that of the run divides
    says : told which machine is tried

    Raises
    ------
    ReplayError
        The replay explains too little of the run to predict anything.
    """
    header = predictor.recording.header
    predictor.predict(NO_CHANGES)  # raises for a run that is not to be trusted: of no machine then
    dataset_bytes = stored_bytes(header)
    least = _least_budget(predictor, memory, _most_memory(max(one.memory_bytes for one in machines)))
    offers: list[Offer] = []
    left_out: dict[str, str] = {}
    for machine in machines:
        says(machine.name)
        found: list[Offer] = []
        reason = f"{format_bytes(machine.memory_bytes)} of memory are too little"
        for budget in _budgets(machine, least, memory):
            try:
                found.append(_offer(predictor, machine, budget, memory, dataset_bytes))
            except (BudgetError, ConfigError, ReplayError) as error:
                reason = str(error)
        offers += found
        if not found:
            left_out[machine.name] = reason
    best = (offers[number] for number in non_dominated([one.costs for one in offers]))
    return Offers(
        best=tuple(sorted(best, key=lambda one: one.costs)), num_predicted=len(offers), left_out=left_out
    )


def stored_bytes(header: RunHeader) -> int:
    """Return the bytes of disk that the dataset of a run takes; of one that is not here, those of its feature rows."""
    root = Path(header.dataset)
    if root.is_dir():
        return sum(
            (Path(folder) / name).stat().st_size for folder, _, names in os.walk(root) for name in names
        )
    return sum(table.num_rows * table.row_bytes for table in header.tables)


def _offer(
    predictor: Predicts,
    machine: MachineType,
    budget_bytes: int | None,
    memory: RunMemory,
    dataset_bytes: int,
) -> Offer:
    """Return what an epoch is on ``machine``; BudgetError where its disk is too small."""
    loader_bytes = None if budget_bytes is None else memory.of_loader(budget_bytes)
    prediction = predictor.predict(machine.changes(predictor.recording.header, loader_bytes=loader_bytes))
    ssd_bytes = dataset_bytes + predictor.spill_bytes(prediction)
    if ssd_bytes > machine.ssd_bytes:
        raise BudgetError(
            f"dataset and packs take {format_bytes(ssd_bytes)} of disk, and it has {format_bytes(machine.ssd_bytes)}"
        )
    seconds = prediction.replayed_s
    return Offer(
        machine=machine,
        budget_bytes=memory.total_bytes if budget_bytes is None else budget_bytes,
        seconds=seconds,
        ssd_bytes=ssd_bytes,
        dollars=seconds / _SECONDS_PER_HOUR * machine.dollars_per_hour,
    )


def _least_budget(predictor: Predicts, memory: RunMemory, most: int) -> int | None:
    """Return the least memory that the run works with, about; None where other budgets cannot be planned."""

    def works(budget_bytes: int) -> bool:
        loader_bytes = memory.of_loader(budget_bytes)
        if loader_bytes < _SMALLEST:
            return False
        try:
            predictor.predict(parse_changes(f"memory={loader_bytes}"))
        except BudgetError:
            return False
        return True

    low, high = _SMALLEST, most
    try:
        if not works(high):
            return high + 1
        while high > _CLOSE_BUDGETS * low:
            middle = int(math.sqrt(low * high))
            low, high = (low, middle) if works(middle) else (middle, high)
    except (ConfigError, ReplayError):
        return None
    return high


def _most_memory(memory_bytes: int) -> int:
    return int(_OF_MEMORY * memory_bytes)


def _budgets(machine: MachineType, least: int | None, memory: RunMemory) -> tuple[int | None, ...]:
    """Return the budgets that a machine is tried with, each so many times the last; None: that of the run. Pure."""
    most = _most_memory(machine.memory_bytes)
    if least is None:
        return (None,) if memory.total_bytes <= most else ()
    if least > most:
        return ()
    steps = _NUM_BUDGETS - 1
    return tuple(
        dict.fromkeys(
            most if number == steps else int(least * (most / least) ** (number / steps))
            for number in range(_NUM_BUDGETS)
        )
    )
