"""Opening the loader of a run within its share of the memory budget, alone or with the other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

import torch

from gloader.device import dry_step, open_device
from gloader.errors import BudgetError, RankError
from gloader.memory.available import default_budget_bytes
from gloader.memory.too_small import advice, rounded_up
from gloader.models import HeteroNetwork, encoder_of
from gloader.observe.peak_memory import first_bytes
from gloader.training.inference.hetero_placement import device_bytes_for_types
from gloader.training.inference.hetero_plan import Extent
from gloader.training.inference.placement import device_bytes_needed
from gloader.training.model_spec import HeteroModelSpec
from gloader.training.replica import logits_and_loss
from gloader.training.run_budget import RunBudget, share_budget
from gloader.training.step_memory import largest, parameter_bytes, step_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.config import LoaderSettings, TrainSettings
    from gloader.dataset import Dataset
    from gloader.device import Device
    from gloader.observe.peak_memory import PeakMemory
    from gloader.pipeline.device_room import DryRun
    from gloader.training.group import RankGroup
    from gloader.training.task import AnyLoader, Task
    from gloader.types import ReadyBatch

# Of a device's free memory, at most a quarter is left to evaluations: every batch gains by the rows that it holds
# otherwise, and narrower slabs only cost an evaluation more passes.
_MOST_OF_DEVICE: Final = 4

# Budgets that are tried to tell one that is enough; each is more by what was lacking, or by a part of it.
_MOST_ATTEMPTS: Final = 24
_LEAST_STEP: Final = 32


class LoaderFactory(Protocol):
    """Opens the loader of a run, as ``from_settings`` of `Loader` and `HeteroLoader` does."""

    def __call__(
        self, dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None
    ) -> AnyLoader:
        """Return a loader over what is trained on."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunLoader:
    """The loader of a run, not yet opened: all that its size follows from."""

    dataset: Dataset
    settings: TrainSettings
    task: Task
    group: RankGroup
    device: torch.device
    is_traced: bool
    factory: LoaderFactory
    peak: PeakMemory | None = None  # keeps this rank below what is planned for it
    # Raises BudgetError where an evaluation would not fit; None: there is none.
    require: Callable[[RunBudget, AnyLoader], None] | None = None

    def open(self) -> tuple[RunBudget, AnyLoader]:
        """Return a loader within the first share of the budget that suffices on every rank, and that share.

        Raises
        ------
        BudgetError
            No share suffices; says which budget does.
        """
        total = self._total_bytes()
        if self.peak is not None:
            self.peak.keep_below(total // self.group.most_local)
        budget, loader, failure = self._attempt(total)
        if self._is_too_small(failure):
            enough = self._enough(total, failure)
            if isinstance(failure, BudgetError) and enough:
                failure = BudgetError(f"{failure}. {advice(enough)}", short_bytes=enough - total)
        try:
            self.group.agree(failure)
        except BaseException as error:
            if loader is not None:
                loader.__exit__(None, None, None)
            if isinstance(error, BudgetError) and budget is not None:
                error.add_note(budget.explain())
            raise
        if budget is None or loader is None:
            raise AssertionError("there is at least one way to share a budget")
        self._keep_below(budget, loader)
        return budget, loader

    def _attempt(self, total: int) -> tuple[RunBudget | None, AnyLoader | None, Exception | None]:
        """Return the first share of ``total`` that suffices, and its loader; or the last one, and why not. Collective.

        A share is tried by building a loader with it: only that samples batches and knows what they need. A rank that
        fails stays in the loop, since each step of it is collective.
        """
        try:
            budgets = self._budgets(total)
        except BudgetError as error:
            return None, None, error
        for budget in budgets:
            loader: AnyLoader | None = None
            failure: Exception | None = None
            try:
                loader = self._make_loader(budget)
                if self.require is not None:
                    self.require(budget, loader)
            except Exception as error:  # noqa: BLE001 - raised by `open`, when the others know of it
                failure = error
            if budget is budgets[-1] or not self._is_too_small(failure):
                break
            if loader is not None:
                loader.__exit__(None, None, None)
        return budget, loader, failure

    def _enough(self, total: int, failure: Exception | None) -> int:
        """Return a budget, little more than the least, with which a loader was built; 0: none was found. Collective."""
        for _ in range(_MOST_ATTEMPTS):
            short = max(self.group.gather(getattr(failure, "short_bytes", 0)))
            total = rounded_up(total + max(short, total // _LEAST_STEP))
            _, loader, found = self._attempt(total)
            if loader is not None:
                loader.__exit__(None, None, None)
            if not any(self.group.gather(found is not None)):
                return total
            if not self._is_too_small(found):
                return 0
            failure = found or failure
        return 0

    def _keep_below(self, budget: RunBudget, loader: AnyLoader) -> None:
        """Bound the memory of this rank by what was planned for it."""
        if self.peak is None:
            return
        ranks = self.group.most_local
        borrowed = loader.borrowed_bytes
        of_loader = budget.loader_bytes // (ranks if self._is_private else 1)
        bound = budget.rank_bytes(ranks, of_loader=borrowed or of_loader)
        self.peak.keep_below(bound, budget_bytes=budget.total_bytes)

    def _total_bytes(self) -> int:
        """Return the budget of a machine."""
        total = self.settings.loader.memory.memory_budget
        if total is None:
            # The same everywhere.
            total = min(self.group.gather(default_budget_bytes() // self.group.machines_here))
        return total

    def _budgets(self, total: int) -> tuple[RunBudget, ...]:
        """Return the ways to share a machine's budget, the best first; collective."""
        parameters, step = self._step
        return share_budget(
            total_bytes=total,
            parameter_bytes=parameters,
            step_bytes=step,
            num_ranks=self.group.most_local,
            first_bytes=max(self.group.gather(first_bytes())),
            is_typed=isinstance(self.task.spec.encoder, HeteroModelSpec),
        )

    @cached_property
    def _step(self) -> tuple[int, int]:
        """The bytes of the weights and of a step, of one rank."""
        # On a GPU, they take none of the host's memory.
        if self.device.type != "cpu":
            return 0, 0
        spec = self.task.spec
        batch = largest(self.task.probe(self.settings.loader))
        if batch is None:
            return parameter_bytes(spec), 0
        autocast, objective = self.settings.step.autocast, self.task.objective
        return parameter_bytes(spec), step_bytes(spec, batch, autocast=autocast, objective=objective)

    def _is_too_small(self, failure: Exception | None) -> bool:
        """Return whether a budget was too small for a rank, and nothing else went wrong; collective."""
        kind = "fits" if failure is None else "other"
        if isinstance(failure, BudgetError | RankError):
            # A rank that was told of another one's error knows nothing of its own share.
            kind = "small" if isinstance(failure, BudgetError) else "told"
        kinds = self.group.gather(kind)
        return "small" in kinds and "other" not in kinds

    def _make_loader(self, budget: RunBudget) -> AnyLoader:
        loader = self.settings.loader.changed(
            memory_budget=budget.loader_bytes,
            device=str(self.device),
            epochs=self.settings.optim.epochs,
            trace=self.is_traced,
        )
        # The budget is the machine's: one shared loader takes its part whole, private ones divide it.
        if self._is_private:
            loader = self._part_of_machine(loader)
        return self.factory(self.dataset, loader, device_dry_run=self._dry_run())

    def _dry_run(self) -> DryRun | None:
        """Return a step of the network on a GPU, by which its free memory is measured; None without a GPU."""
        if self.device.type == "cpu" or self.settings.loader.device.device_cache != "auto":
            return None
        model = self.task.spec.build().to(self.device)
        autocast, objective = self.settings.step.autocast, self.task.objective
        step = dry_step(model, lambda batch: logits_and_loss(model, batch, autocast, objective)[1])
        encoder = encoder_of(model)
        # The first rank evaluates; the rank with the least room counts for all of a machine.
        if not self.group.is_first:
            return step
        needed = (
            device_bytes_for_types(encoder.layers, extent_of(self.dataset, encoder.schema.targets))
            if isinstance(encoder, HeteroNetwork)
            else device_bytes_needed(encoder.layers, num_nodes=self.dataset.num_nodes)
        )
        return with_evaluation(step, needed, open_device(self.device))

    @property
    def _is_private(self) -> bool:
        return self.settings.loader.ranks.sharing == "private" and not self.group.is_alone

    def _part_of_machine(self, loader: LoaderSettings) -> LoaderSettings:
        """Return the settings of one of several loaders of a machine, which share what one loader would have."""
        ranks, memory = self.group.most_local, loader.memory
        sizes = (memory.memory_budget, memory.cache_bytes(self.dataset.feature_bytes), memory.spill_budget)
        budget, cache, spill = (None if size is None else size // ranks for size in sizes)
        return loader.changed(
            memory_budget=budget, cache=cache, spill_budget=spill, threads=self.sampler_threads
        )

    @property
    def sampler_threads(self) -> int:
        """Sampling threads of one loader."""
        loaders = self.group.most_local if self._is_private else 1
        return max(1, self.settings.loader.stages.sampler_threads // loaders)


def extent_of(dataset: Dataset, targets: Sequence[str]) -> Extent:
    """Return what an evaluation of several types computes from, and that it computes all nodes of ``targets``."""
    tables = dataset.edge_tables.items()
    return Extent(
        num_nodes={name: table.num_nodes for name, table in dataset.node_tables.items()},
        relations=tuple(relation for relation, table in tables if table.num_edges),
        outputs={name: dataset.node_tables[name].num_nodes for name in targets},
    )


def with_evaluation(step: DryRun, num_bytes: int, device: Device) -> DryRun:
    """Return a dry run that takes what an evaluation will, after what a step takes: never both at once.

    Parameters
    ----------
    step : one step of the model
    num_bytes : of the device, that an evaluation wants; a quarter of what is free is enough
    device : which is measured meanwhile
    """

    def run(batch: ReadyBatch) -> None:
        step(batch)
        # Asking also gives back what torch keeps of the step, whose memory would count beside the evaluation's.
        num_left = min(num_bytes, device.free_bytes() // _MOST_OF_DEVICE)
        with device.sending():
            device.empty((num_left,), torch.uint8)

    return run
