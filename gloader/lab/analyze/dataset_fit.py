"""A prepared dataset's fit on a machine: a run's plans are made without training.

A fit (`Fit`) is the plan of a run for one memory budget: the budget's division among the parts of the run, and the
loader's memory plan. `DatasetQuestion` answers `gloader plan` for a prepared dataset, as
`gloader.lab.analyze.fit.FitQuestion` does for a graph that is only given by its size. It opens a run's loader up to its
memory plan, and stops there; a `PlannedLoader` keeps the plan. `ladder` returns the fits for several budgets.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from gloader.lab.analyze.fit import Fit, FitQuestion
from gloader.observe.peak_memory import first_bytes
from gloader.pipeline.open.load_plan import LoadRequest, plan_load
from gloader.plan.available import available_memory_bytes
from gloader.plan.too_small import rounded_up
from gloader.training.group import RankGroup
from gloader.training.run_loader import RunLoader
from gloader.training.step_memory import learned_row_bytes, parameter_bytes, probe
from gloader.training.train import resolved_settings, task_of

if TYPE_CHECKING:
    from gloader.config import LoaderSettings, TrainSettings
    from gloader.dataset import Dataset
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.open.load_plan import MeasuredLoad
    from gloader.pipeline.seeds import SeedPlan
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.ssd_store import FeatureStore
    from gloader.training.run_budget import RunBudget
    from gloader.training.task import AnyLoader


class DatasetQuestion:
    """Plans `gloader train` on a dataset. Reads edges and a few batches, as a run does.

    Parameters
    ----------
    dataset : a prepared dataset
    settings : a run's settings, on a CPU; their budget is ignored

    Raises
    ------
    ConfigError
        The dataset or the model does not fit the task.
    """

    def __init__(self, dataset: Dataset, settings: TrainSettings) -> None:
        # The first call measures this process's memory, and later calls return the same number. It must come before a
        # batch is made: `RunLoader` counts these bytes as memory from before the run, as in training.
        first_bytes()
        self.dataset = dataset
        self._settings = resolved_settings(settings, dataset)
        self._task = task_of(self._settings, dataset)

    @cached_property
    def _seeds(self) -> SeedPlan:
        return self._task.seeds(self._settings.loader.sampling)

    @property
    def num_batches(self) -> int:
        """Batches per epoch."""
        return self._seeds.order.num_batches

    @property
    def num_seeds(self) -> int:
        """Training nodes or edges per epoch."""
        return self._seeds.order.num_items

    @cached_property
    def batch_rows(self) -> int:
        """Mean nodes per batch, rounded."""
        batches = probe(self.dataset, self._seeds, self._settings.loader)
        return round(sum(sum(map(len, batch.node_arrays)) for batch in batches) / max(len(batches), 1))

    @property
    def most_shown(self) -> int:
        """Largest budget to show, in bytes: the free memory. No run on this machine can have a larger budget."""
        return available_memory_bytes()

    @property
    def learned_share(self) -> float:
        """Share of the weights' bytes, from 0 to 1, in learned node rows (embeddings of types without features)."""
        return learned_row_bytes(self._task.spec) / max(parameter_bytes(self._task.spec), 1)

    def least_share(self) -> RunBudget:
        """Return the least budget that `gloader train` accepts, rounded up to three digits, with its division.

        Raises
        ------
        BudgetError
            No budget is enough.
        """
        return self._opening.least()

    def least_to_train(self) -> int:
        """Return the least budget in bytes, all parts of `least_share` together."""
        return self.least_share().total_bytes

    def train(self, budget_bytes: int) -> Fit:
        """Return a run's division of ``budget_bytes``. Raises BudgetError with the least budget if it is too small."""
        budget, opened = self._opening.open(budget_bytes)
        with cast("PlannedLoader", opened) as planned:
            return Fit(
                budget=budget,
                plan=planned.memory_plan,
                topology=planned.load.home,  # the choice between memory and SSD, not the opened edges
                num_batches=self.num_batches,
            )

    @cached_property
    def _opening(self) -> RunLoader:
        """The search for a budget's division, as in a run, but with plans in place of loaders."""
        return RunLoader(
            dataset=self.dataset,
            settings=self._settings,
            task=self._task,
            group=RankGroup.alone(),
            device=torch.device("cpu"),
            is_traced=False,
            factory=self._plan,
            evaluates=True,  # an evaluation must fit too, as in `gloader train`
        )

    def _plan(
        self,
        dataset: Dataset,
        settings: LoaderSettings,
        *,
        device_dry_run: DryRun | None,
        **_: Any,
    ) -> AnyLoader:
        """Return a loader's plan in place of a loader. ``device_dry_run`` is None, because the device is the CPU."""
        request = LoadRequest(dataset=dataset, seeds=self._seeds, settings=settings, dry_run=device_dry_run)
        stack = ExitStack()
        try:
            # `RunLoader` always sets the loader's budget; 0 is only for the type checker.
            load, plan = plan_load(request, stack, budget_bytes=settings.memory.memory_budget or 0)
        except BaseException:
            stack.close()
            raise
        return cast("AnyLoader", PlannedLoader(load, plan, stack))


def ladder(question: FitQuestion | DatasetQuestion) -> tuple[Fit, ...]:
    """Return the fits for the least budget and its doublings.

    The last one is the first with all features in memory, or the last budget up to ``most_shown``.

    Raises
    ------
    BudgetError
        No budget is enough.
    """
    budget = rounded_up(question.least_to_train())
    fits = [question.train(budget)]
    while not fits[-1].holds_features and 2 * budget <= question.most_shown:
        budget *= 2
        fits.append(question.train(budget))
    return tuple(fits)


@dataclass(frozen=True, slots=True)
class PlannedLoader:
    """A loader's graph, features and plan. Owns the opened files until its context ends.

    `RunLoader` reads ``graph``, ``features`` and ``device_tiers`` when it checks that an evaluation fits.
    """

    load: MeasuredLoad
    memory_plan: MemoryPlan
    stack: ExitStack

    @property
    def graph(self) -> Any:
        """The opened edges, in memory or on the SSD."""
        return self.load.work.topology

    @property
    def features(self) -> dict[str, FeatureStore]:
        """Each table's rows, by the table's name."""
        return dict(zip(self.load.files.names, self.load.files.stores, strict=True))

    @property
    def device_tiers(self) -> dict[str, Any]:
        """Always empty, because there is no device."""
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()
