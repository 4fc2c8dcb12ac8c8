"""Opening of a run's loader within its part of the memory budget, on one rank or several.

A budget is one machine's memory for a run. It is divided between the loader, the model, and the running step or
evaluation; `run_budget.share_budget` returns several possible divisions. `RunLoader.open`, called by
`gloader.training.train`, tries them, the best first: it opens a loader, and checks that an evaluation fits. If none
suffices, it searches for the least sufficient budget, which the error then names.

A loader is shared by all ranks of a machine, or private to one rank. The ranks decide together: methods marked as
collective exchange values between ranks, so every rank must call them in the same order.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import torch

from gloader.device import dry_step, open_device
from gloader.errors import BudgetError, RankError
from gloader.models import encoder_of
from gloader.observe.peak_memory import first_bytes
from gloader.plan.available import default_budget_bytes
from gloader.plan.too_small import advice, rounded_up
from gloader.training.inference.layer_plan import Extent
from gloader.training.inference.placement import device_bytes_needed
from gloader.training.model_spec import KnowledgeSpec, LinkSpec
from gloader.training.replica import logits_and_loss
from gloader.training.run_budget import ProcessKind, RunBudget, share_budget
from gloader.training.run_inference import require_inference
from gloader.training.step_memory import (
    largest,
    learned_row_bytes,
    parameter_bytes,
    probe,
    step_bytes,
    with_blank_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.config import LoaderSettings, TrainSettings
    from gloader.dataset import Dataset
    from gloader.device import Device
    from gloader.loader.node_embedding import NodeEmbedding
    from gloader.observe.peak_memory import PeakMemory
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.training.group import RankGroup
    from gloader.training.task import AnyLoader, Task
    from gloader.types import ReadyBatch

# Divisor of a GPU's free memory: an evaluation gets at most a quarter. With less memory, an evaluation only makes more
# passes. The rest holds cached rows, which speed up every batch.
_DEVICE_DIVISOR: Final = 4

# The search for a sufficient budget tries at most 12 budgets. If an error does not give the missing bytes, the search
# assumes that 1/32 of the budget is missing.
_MAX_ATTEMPTS: Final = 12
_STEP_DIVISOR: Final = 32
_MAX_BUDGET_BYTES: Final = 1 << 48  # end of the search, larger than any machine's memory


class LoaderFactory(Protocol):
    """Opens a run's loader, like ``from_settings`` of `Loader` and `HeteroLoader`."""

    def __call__(
        self, dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None, **given: Any
    ) -> AnyLoader:
        """Return a loader over the training data.

        Parameters
        ----------
        dataset, settings : the run's dataset, and the settings with this loader's part of the budget
        device_dry_run : a step of the model, which the loader runs to measure its device memory; None measures nothing
        given : ``embeddings``, trained rows by type for the batches, if the run has some
        """
        ...


@dataclass(frozen=True, slots=True)
class _Needs:
    """Lower bounds of two parts of a budget, learned from failed tries. A budget with a smaller part fails again."""

    loader_bytes: int = 1  # for all loaders of a machine together
    phase_bytes: int = 0  # for the running step or evaluation, all ranks of a machine together

    def are_met_by(self, budget: RunBudget) -> bool:
        """Return True if both parts of ``budget`` are large enough."""
        return budget.loader_bytes >= self.loader_bytes and budget.phase_bytes >= self.phase_bytes


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The result of one try: a loader opened within a budget, or a failure."""

    # Equal on all ranks. "too small" means that a larger budget may help; "failed" is any other error.
    outcome: Literal["enough", "too small", "failed"]
    needs: _Needs  # equal on all ranks
    budget: RunBudget | None = None  # the tried division; None if the total cannot be divided
    loader: AnyLoader | None = None  # this rank's loader; None if it could not be opened
    failure: Exception | None = None  # this rank's error; None if this rank succeeded

    def close(self) -> None:
        """Close the loader."""
        if self.loader is not None:
            self.loader.__exit__(None, None, None)


@dataclass(frozen=True, kw_only=True)
class RunLoader:
    """Opens a run's loader. Holds everything that determines the loader's size."""

    dataset: Dataset
    settings: TrainSettings
    task: Task
    group: RankGroup  # the ranks that train together
    device: torch.device  # the network's device
    is_traced: bool  # whether the loader records its pipeline's timeline
    factory: LoaderFactory  # opens the loader
    # Watches this rank's memory and keeps it below the planned bytes. None means no watch.
    peak: PeakMemory | None = None
    evaluates: bool = False  # whether the first rank's evaluations must fit too
    embeddings: Mapping[str, NodeEmbedding] = field(default_factory=dict)  # trained rows by type

    def open(self, total: int | None = None) -> tuple[RunBudget, AnyLoader]:
        """Open the loader within the first division of the budget that suffices on every rank. Collective.

        Parameters
        ----------
        total : a machine's budget in bytes; defaults to the settings' budget

        Returns
        -------
        The division, and this rank's open loader, which the caller closes.

        Raises
        ------
        BudgetError
            No division suffices. The error names a sufficient budget, if the search found one.
        RankError
            Another rank failed.
        """
        total = self._total_bytes() if total is None else total
        if self.peak is not None:
            self.peak.keep_below(total // self.group.most_local)
        tried = self._attempt(total, _Needs())
        budget, loader, failure = tried.budget, tried.loader, tried.failure
        if tried.outcome == "too small":
            tried.close()
            larger = self._search_sufficient(tried.needs, more_than=total)
            larger.close()  # opened only to verify that this budget suffices
            if isinstance(failure, BudgetError):
                # The error's own advice is for one division. The new advice is the sufficient budget, if one was found.
                failure = BudgetError(failure.cause)
                if larger.outcome == "enough" and larger.budget is not None:
                    enough = larger.budget.total_bytes
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
        """Return the division of a budget slightly above the least sufficient one. Collective.

        To verify the budget, a loader is opened and closed.

        Raises
        ------
        BudgetError
            No sufficient budget was found.
        """
        least = self._search_sufficient(_Needs())
        least.close()
        if least.budget is None or least.outcome != "enough":
            raise least.failure or AssertionError("there is at least one way to share a budget")
        return least.budget

    def _attempt(self, total: int, needs: _Needs) -> _Attempt:
        """Try the divisions of ``total`` that meet ``needs``, until one suffices. Return the last try. Collective.

        A try opens a loader, because only a loader samples batches and measures their memory. A rank that fails still
        takes part in the next tries, because each try is collective.
        """
        try:
            budgets = self._shares(total)
        except BudgetError as error:
            return _Attempt(self._outcome(error), needs, failure=error)
        tried = None
        for budget in budgets:
            # The last division is always tried: it has the most memory for the loader, and its error is the most exact.
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
        """Open a loader within ``budget``. Return the outcome and the known needs of all ranks. Collective."""
        loader: AnyLoader | None = None
        failure: Exception | None = None
        try:
            loader = self._make_loader(budget)
            if self.evaluates and self.group.is_first:
                require_inference(self.task, self.dataset, budget, loader)
        except Exception as error:  # noqa: BLE001 - raised by `open`, after the exchange
            failure = error
        rank_needs = needs
        if isinstance(failure, BudgetError):
            short = failure.short_bytes or budget.total_bytes // _STEP_DIVISOR
            # Without a loader, its opening failed; otherwise the evaluation does not fit.
            if loader is None:
                # The error is about one loader. Each of a machine's private loaders needs as much more.
                short *= self.group.most_local if self._is_private else 1
                rank_needs = replace(needs, loader_bytes=max(needs.loader_bytes, budget.loader_bytes + short))
            else:
                # A smaller part may fail for another reason, so an earlier, larger need stays.
                rank_needs = replace(needs, phase_bytes=max(needs.phase_bytes, budget.phase_bytes + short))
        known = self.group.gather((rank_needs.loader_bytes, rank_needs.phase_bytes))
        loader_bytes, phase_bytes = map(max, zip(*known, strict=True))  # the largest need of any rank
        known_needs = _Needs(loader_bytes, phase_bytes)
        return _Attempt(self._outcome(failure), known_needs, budget, loader, failure)

    def _search_sufficient(self, needs: _Needs, *, more_than: int = 0) -> _Attempt:
        """Search for a budget slightly above the least sufficient one. Return the last try. Collective.

        Each failed try raises ``needs``, and the next try takes the smallest total with these needs. The result does
        not depend on the budget that was too small before: the loader and the evaluation always need the same memory,
        and the other parts follow from the total.

        Parameters
        ----------
        needs : lower bounds of the parts
        more_than : bytes that are known not to suffice
        """
        total = more_than
        for _ in range(_MAX_ATTEMPTS):
            total = rounded_up(max(self._least_total(needs), total + 1))
            tried = self._attempt(total, needs)
            if tried.outcome != "too small":
                break
            tried.close()
            needs = tried.needs
        return tried

    def _least_total(self, needs: _Needs) -> int:
        """Return the smallest total that has a division with ``needs``."""

        def suffices(total: int) -> bool:
            try:
                return any(map(needs.are_met_by, self._shares(total)))
            except BudgetError:  # the total cannot be divided
                return False

        # `suffices` is False up to the wanted total and True from there on, so a binary search finds it.
        return bisect_left(range(_MAX_BUDGET_BYTES), True, key=suffices)

    def _keep_below(self, budget: RunBudget, loader: AnyLoader) -> None:
        """Give the memory watch ``peak`` this rank's planned bytes as its bound."""
        if self.peak is None:
            return
        ranks = self.group.most_local
        borrowed = loader.borrowed_bytes
        of_loader = budget.loader_bytes // (ranks if self._is_private else 1)
        # A rank with a shared loader may map features that another rank loaded, its "borrowed" bytes. They count as
        # this rank's memory, in place of a loader's part.
        bound = budget.rank_bytes(ranks, of_loader=borrowed or of_loader)
        self.peak.keep_below(bound, budget_bytes=budget.total_bytes)

    def _total_bytes(self) -> int:
        """Return a machine's budget in bytes: the setting, or a default, whose computation is collective."""
        total = self.settings.loader.memory.memory_budget
        if total is None:
            total = self._default_bytes()
        return total

    def _default_bytes(self) -> int:
        """Return half of a machine's free memory in bytes, equal on all ranks. Collective."""
        return min(self.group.gather(default_budget_bytes() // self.group.machines_here))

    @cached_property
    def _shares(self) -> Callable[[int], tuple[RunBudget, ...]]:
        """The function from a machine's budget in bytes to its divisions, the best first.

        The first access measures a training step. This access is collective.
        """
        # On a GPU, the weights and the step take no host memory.
        spec = self.task.spec
        parameters, learned = 0, 0
        if self.device.type == "cpu":
            parameters, learned = parameter_bytes(spec), learned_row_bytes(spec)
        # The measurement runs a network with gradients. It is skipped if weights and gradients exceed the memory.
        step = self._step_bytes() if 0 < 2 * parameters <= self._default_bytes() else 0
        first = max(self.group.gather(first_bytes()))
        process = ProcessKind(
            num_ranks=self.group.most_local,
            is_joined=not self.group.is_alone,
            has_types=self.task.spec.has_types,
            has_links=isinstance(self.task.spec, LinkSpec | KnowledgeSpec),
        )
        return lambda total: share_budget(
            total_bytes=total,
            parameter_bytes=parameters,
            step_bytes=step,
            first_bytes=first,
            learned_bytes=learned,
            process=process,
        )

    def _step_bytes(self) -> int:
        """Return the peak bytes of a rank's training step on the largest of the first batches; 0 without batches."""
        loader = self.settings.loader.changed(epochs=self.settings.optim.epochs)
        batch = largest(probe(self.dataset, self.task.seeds(loader.sampling), loader))
        if batch is None:
            return 0
        autocast, objective = self.settings.step.autocast, self.task.objective
        return step_bytes(self.task.spec, batch, autocast=autocast, objective=objective)

    def _outcome(self, failure: Exception | None) -> Literal["enough", "too small", "failed"]:
        """Combine the ranks' failures into one outcome: "too small" only if no rank has another error. Collective."""
        kind = "enough" if failure is None else "failed"
        if isinstance(failure, BudgetError | RankError):
            # A RankError only reports another rank's failure, and the other rank's own kind decides.
            kind = "too small" if isinstance(failure, BudgetError) else "received"
        kinds = set(self.group.gather(kind))
        if kinds == {"enough"}:
            return "enough"
        return "too small" if "too small" in kinds and "failed" not in kinds else "failed"

    def _make_loader(self, budget: RunBudget) -> AnyLoader:
        """Return this rank's loader, opened within its part of ``budget``."""
        loader = self.settings.loader.changed(
            memory_budget=budget.loader_bytes,
            device=str(self.device),
            epochs=self.settings.optim.epochs,
            trace=self.is_traced,
        )
        # The budget is for the machine: a shared loader gets all of ``loader_bytes``, private loaders divide it.
        if self._is_private:
            loader = self._part_of_machine(loader)
        given = {"embeddings": self.embeddings} if self.embeddings else {}
        return self.factory(self.dataset, loader, device_dry_run=self._dry_run(), **given)

    def _dry_run(self) -> DryRun | None:
        """Return a step to run and measure on the GPU; None on the CPU or with a fixed device cache."""
        if self.device.type == "cpu" or self.settings.loader.device.device_cache != "auto":
            return None
        if isinstance(self.task.spec, KnowledgeSpec):  # triples have no features that the GPU could hold
            return None
        model = self.task.spec.build().to(self.device)
        autocast, objective = self.settings.step.autocast, self.task.objective
        schema = self.task.spec.encoder.schema
        step = dry_step(
            model,
            lambda batch: logits_and_loss(model, with_blank_rows(batch, schema), autocast, objective)[1],
        )
        encoder = encoder_of(model)
        # Only the first rank evaluates, so only its dry run includes an evaluation's memory. The rank with the least
        # room for cached rows decides for its machine.
        if not self.group.is_first:
            return step
        needed = device_bytes_needed(encoder.layers, extent_of(self.dataset, encoder.targets))
        return with_evaluation(step, needed, open_device(self.device))

    @property
    def _is_private(self) -> bool:
        """True if each rank opens a loader for itself. Otherwise the ranks of a machine share one."""
        return self.settings.loader.ranks.sharing == "private" and not self.group.is_alone

    def _part_of_machine(self, loader: LoaderSettings) -> LoaderSettings:
        """Return the settings of one private loader: its equal part of the memory, the spill space and the threads.

        The spill space is the disk space for a loader's temporary files.
        """
        ranks, memory = self.group.most_local, loader.memory
        sizes = (memory.memory_budget, memory.cache_bytes(self.dataset.feature_bytes), memory.spill_budget)
        budget, cache, spill = (None if size is None else size // ranks for size in sizes)
        return loader.changed(
            memory_budget=budget, cache=cache, spill_budget=spill, threads=self.sampler_threads
        )

    @property
    def sampler_threads(self) -> int:
        """Number of sampling threads per loader."""
        loaders = self.group.most_local if self._is_private else 1
        return max(1, self.settings.loader.stages.sampler_threads // loaders)


def extent_of(dataset: Dataset, targets: Sequence[str]) -> Extent:
    """Return the graph's sizes, with outputs for all nodes of the types ``targets``."""
    tables = dataset.edge_tables.items()
    return Extent(
        num_nodes={name: table.num_nodes for name, table in dataset.node_tables.items()},
        relations=tuple(relation for relation, table in tables if table.num_edges),
        outputs={name: dataset.node_tables[name].num_nodes for name in targets},
    )


def with_evaluation(step: DryRun, num_bytes: int, device: Device) -> DryRun:
    """Return a dry run that runs the step, frees its memory, and then allocates an evaluation's memory.

    The loader measures the dry run's peak and fills the rest of the device memory with cached rows.

    Parameters
    ----------
    step : one step of the model
    num_bytes : an evaluation's device memory; at most a quarter of the free memory is allocated
    device : the measured device
    """

    def run(batch: ReadyBatch) -> None:
        step(batch)
        # `free_bytes` also frees torch's cached memory from the step. Otherwise both would count together.
        num_left = min(num_bytes, device.free_bytes() // _DEVICE_DIVISOR)
        with device.sending():  # on the device's stream for copies
            device.empty((num_left,), torch.uint8)

    return run
