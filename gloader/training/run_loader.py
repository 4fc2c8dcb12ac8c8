"""A run's loader, opened within its part of the memory budget, for one rank or several."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, Protocol

import torch

from gloader.device import dry_step, open_device
from gloader.errors import BudgetError, RankError
from gloader.models import encoder_of
from gloader.observe.peak_memory import first_bytes
from gloader.plan.available import default_budget_bytes
from gloader.plan.too_small import advice, rounded_up
from gloader.training.inference.layer_plan import Extent
from gloader.training.inference.placement import device_bytes_needed
from gloader.training.model_spec import LinkSpec
from gloader.training.replica import logits_and_loss
from gloader.training.run_budget import ProcessKind, RunBudget, share_budget
from gloader.training.run_inference import require_inference
from gloader.training.step_memory import largest, parameter_bytes, probe, step_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.config import LoaderSettings, TrainSettings
    from gloader.dataset import Dataset
    from gloader.device import Device
    from gloader.observe.peak_memory import PeakMemory
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.training.group import RankGroup
    from gloader.training.task import AnyLoader, Task
    from gloader.types import ReadyBatch

# Evaluations get at most a quarter of a device's free memory: cached rows help every batch, and narrower slabs only
# cost an evaluation more passes.
_MOST_OF_DEVICE: Final = 4

# The most tries to find a sufficient budget. If an error does not name the lack, a fixed part of the budget is assumed.
_MOST_ATTEMPTS: Final = 12
_LEAST_STEP: Final = 32
_MOST_BYTES: Final = 1 << 48


class LoaderFactory(Protocol):
    """Opens a run's loader, like ``from_settings`` of `Loader` and `HeteroLoader`."""

    def __call__(
        self, dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None
    ) -> AnyLoader:
        """Return a loader over the training data."""
        ...


@dataclass(frozen=True, slots=True)
class _Needs:
    """A run's needs, for all ranks of a machine."""

    loader_bytes: int = 1
    phase_bytes: int = 0

    def are_met_by(self, budget: RunBudget) -> bool:
        """Return whether the parts of ``budget`` are large enough."""
        return budget.loader_bytes >= self.loader_bytes and budget.phase_bytes >= self.phase_bytes


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The outcome of a tried budget."""

    outcome: Literal["enough", "too small", "failed"]  # result on all ranks
    needs: _Needs  # needs of all ranks, as far as known
    budget: RunBudget | None = None  # None if it cannot be divided
    loader: AnyLoader | None = None  # this rank's loader
    failure: Exception | None = None  # this rank's failure

    def close(self) -> None:
        """Close the loader."""
        if self.loader is not None:
            self.loader.__exit__(None, None, None)


@dataclass(frozen=True, kw_only=True)
class RunLoader:
    """A run's loader before its opening, and all facts that determine its size."""

    dataset: Dataset
    settings: TrainSettings
    task: Task
    group: RankGroup
    device: torch.device
    is_traced: bool
    factory: LoaderFactory
    # Keeps this rank below its planned memory.
    peak: PeakMemory | None = None
    evaluates: bool = False  # whether the first rank's evaluations must fit

    def open(self, total: int | None = None) -> tuple[RunBudget, AnyLoader]:
        """Return the first division of the budget that suffices on every rank, and a loader within it.

        Parameters
        ----------
        total : a machine's budget; defaults to the settings' budget

        Raises
        ------
        BudgetError
            No division suffices. The error names a sufficient budget.
        """
        total = self._total_bytes() if total is None else total
        if self.peak is not None:
            self.peak.keep_below(total // self.group.most_local)
        tried = self._attempt(total, _Needs())
        budget, loader, failure = tried.budget, tried.loader, tried.failure
        if tried.outcome == "too small":
            tried.close()
            found = self._enough(tried.needs, more_than=total)
            found.close()
            if isinstance(failure, BudgetError):
                failure = BudgetError(failure.cause)
                if found.outcome == "enough" and found.budget is not None:
                    enough = found.budget.total_bytes
                    failure = BudgetError(failure.cause, short_bytes=enough - total, advice=advice(enough))
        try:
            self.group.agree(failure)
        except BaseException as error:
            tried.close()
            if isinstance(error, BudgetError) and budget is not None:
                error.add_note(budget.explain())
            raise
        if budget is None or loader is None:
            raise AssertionError("there is at least one way to share a budget")
        self._keep_below(budget, loader)
        return budget, loader

    def least(self) -> RunBudget:
        """Return the division of a budget slightly above the least, verified by opening and closing a loader.

        Raises
        ------
        BudgetError
            No sufficient budget was found.
        """
        found = self._enough(_Needs())
        found.close()
        if found.budget is None or found.outcome != "enough":
            raise found.failure or AssertionError("there is at least one way to share a budget")
        return found.budget

    def _attempt(self, total: int, needs: _Needs) -> _Attempt:
        """Try the divisions of ``total`` that meet ``needs`` until one suffices; else return the last. Collective.

        A try builds a loader, because only a loader samples batches and measures their needs. A failing rank stays in
        the loop, since each step of the loop is collective.
        """
        try:
            budgets = self._shares(total)
        except BudgetError as error:
            return _Attempt(self._outcome(error), needs, failure=error)
        tried = None
        for budget in budgets:
            # The last division is tried in any case: it has most for the loader, and its error names the lack best.
            if budget is not budgets[-1] and not needs.are_met_by(budget):
                continue
            if tried is not None:
                tried.close()
            tried = self._try_share(budget, needs)
            needs = tried.needs
            if tried.outcome != "too small":
                break
        if tried is None:
            raise AssertionError("there is at least one way to share a budget")
        return tried

    def _try_share(self, budget: RunBudget, needs: _Needs) -> _Attempt:
        """Return the outcome of a division, with all ranks' known needs. Collective."""
        loader: AnyLoader | None = None
        failure: Exception | None = None
        try:
            loader = self._make_loader(budget)
            if self.evaluates and self.group.is_first:
                require_inference(self.task, self.dataset, budget, loader)
        except Exception as error:  # noqa: BLE001 - raised by `open`, when the others know of it
            failure = error
        own = needs
        if isinstance(failure, BudgetError):
            short = failure.short_bytes or budget.total_bytes // _LEAST_STEP
            if loader is None:
                # Each of a machine's several loaders lacks as much.
                short *= self.group.most_local if self._is_private else 1
                own = replace(needs, loader_bytes=budget.loader_bytes + short)
            else:
                own = replace(needs, phase_bytes=budget.phase_bytes + short)
        known = self.group.gather((own.loader_bytes, own.phase_bytes))
        known_needs = _Needs(*map(max, zip(*known, strict=True)))
        return _Attempt(self._outcome(failure), known_needs, budget, loader, failure)

    def _enough(self, needs: _Needs, *, more_than: int = 0) -> _Attempt:
        """Return the outcome for a budget slightly above the least, or for the last tried budget. Collective.

        The needs of loader and evaluation do not depend on the insufficient budget, and the other parts follow from the
        budget. So any insufficient budget leads to the same result.
        """
        total = more_than
        for _ in range(_MOST_ATTEMPTS):
            total = rounded_up(max(self._least_total(needs), total + 1))
            tried = self._attempt(total, needs)
            if tried.outcome != "too small":
                break
            tried.close()
            needs = tried.needs
        return tried

    def _least_total(self, needs: _Needs) -> int:
        """Return the least budget with a division that meets ``needs``."""

        def suffices(total: int) -> bool:
            try:
                return any(map(needs.are_met_by, self._shares(total)))
            except BudgetError:
                return False

        return bisect_left(range(_MOST_BYTES), True, key=suffices)

    def _keep_below(self, budget: RunBudget, loader: AnyLoader) -> None:
        """Bound this rank's memory by its plan."""
        if self.peak is None:
            return
        ranks = self.group.most_local
        borrowed = loader.borrowed_bytes
        of_loader = budget.loader_bytes // (ranks if self._is_private else 1)
        bound = budget.rank_bytes(ranks, of_loader=borrowed or of_loader)
        self.peak.keep_below(bound, budget_bytes=budget.total_bytes)

    def _total_bytes(self) -> int:
        """Return a machine's budget."""
        total = self.settings.loader.memory.memory_budget
        if total is None:
            total = self._default_bytes()
        return total

    def _default_bytes(self) -> int:
        """Return half of a machine's free memory, equal on all ranks. Collective."""
        return min(self.group.gather(default_budget_bytes() // self.group.machines_here))

    @cached_property
    def _shares(self) -> Callable[[int], tuple[RunBudget, ...]]:
        """The function that divides a machine's budget, best division first. Its first use is collective."""
        parameters = parameter_bytes(self.task.spec) if self.device.type == "cpu" else 0
        # A step is measured on a network with gradients, but not if this network exceeds the memory.
        step = self._step_bytes() if 0 < 2 * parameters <= self._default_bytes() else 0
        first = max(self.group.gather(first_bytes()))
        process = ProcessKind(
            num_ranks=self.group.most_local,
            is_joined=not self.group.is_alone,
            has_types=self.task.spec.has_types,
            has_links=isinstance(self.task.spec, LinkSpec),
        )
        return lambda total: share_budget(
            total_bytes=total,
            parameter_bytes=parameters,
            step_bytes=step,
            first_bytes=first,
            process=process,
        )

    def _step_bytes(self) -> int:
        """Return the bytes of one rank's step."""
        loader = self.settings.loader.changed(epochs=self.settings.optim.epochs)
        batch = largest(probe(self.dataset, self.task.seeds(loader.sampling), loader))
        if batch is None:
            return 0
        autocast, objective = self.settings.step.autocast, self.task.objective
        return step_bytes(self.task.spec, batch, autocast=autocast, objective=objective)

    def _outcome(self, failure: Exception | None) -> Literal["enough", "too small", "failed"]:
        """Return the outcome on all ranks: "too small" if one rank says so and no other error occurred. Collective."""
        kind = "enough" if failure is None else "failed"
        if isinstance(failure, BudgetError | RankError):
            # A rank that only received another rank's error has no result for its own division.
            kind = "too small" if isinstance(failure, BudgetError) else "told"
        kinds = set(self.group.gather(kind))
        if kinds == {"enough"}:
            return "enough"
        return "too small" if "too small" in kinds and "failed" not in kinds else "failed"

    def _make_loader(self, budget: RunBudget) -> AnyLoader:
        loader = self.settings.loader.changed(
            memory_budget=budget.loader_bytes,
            device=str(self.device),
            epochs=self.settings.optim.epochs,
            trace=self.is_traced,
        )
        # The budget is the machine's: one shared loader takes the full part, and private loaders divide it.
        if self._is_private:
            loader = self._part_of_machine(loader)
        return self.factory(self.dataset, loader, device_dry_run=self._dry_run())

    def _dry_run(self) -> DryRun | None:
        """Return a step of the network on a GPU, which measures its free memory; None without a GPU."""
        if self.device.type == "cpu" or self.settings.loader.device.device_cache != "auto":
            return None
        model = self.task.spec.build().to(self.device)
        autocast, objective = self.settings.step.autocast, self.task.objective
        step = dry_step(model, lambda batch: logits_and_loss(model, batch, autocast, objective)[1])
        encoder = encoder_of(model)
        # Only the first rank evaluates. On a machine, the rank with the least room counts for all.
        if not self.group.is_first:
            return step
        needed = device_bytes_needed(encoder.layers, extent_of(self.dataset, encoder.targets))
        return with_evaluation(step, needed, open_device(self.device))

    @property
    def _is_private(self) -> bool:
        return self.settings.loader.ranks.sharing == "private" and not self.group.is_alone

    def _part_of_machine(self, loader: LoaderSettings) -> LoaderSettings:
        """Return the settings for one of a machine's several loaders, which share one loader's resources."""
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
    """Return the sizes of the graph and an evaluation for all nodes in ``targets``."""
    tables = dataset.edge_tables.items()
    return Extent(
        num_nodes={name: table.num_nodes for name, table in dataset.node_tables.items()},
        relations=tuple(relation for relation, table in tables if table.num_edges),
        outputs={name: dataset.node_tables[name].num_nodes for name in targets},
    )


def with_evaluation(step: DryRun, num_bytes: int, device: Device) -> DryRun:
    """Return a dry run that allocates the step's memory first and then an evaluation's, never both at once.

    Parameters
    ----------
    step : one step of the model
    num_bytes : an evaluation's preferred device memory; a quarter of the free memory is enough
    device : the measured device
    """

    def run(batch: ReadyBatch) -> None:
        step(batch)
        # The query also frees torch's cached memory of the step, which would count on top of the evaluation's memory.
        num_left = min(num_bytes, device.free_bytes() // _MOST_OF_DEVICE)
        with device.sending():
            device.empty((num_left,), torch.uint8)

    return run
