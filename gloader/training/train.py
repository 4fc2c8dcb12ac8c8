"""Training: one or more runs over a dataset, from settings to a result, on one rank or on several."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

import gloader
from gloader.device import dry_step
from gloader.errors import BudgetError, ConfigError, RankError
from gloader.loader import Loader
from gloader.memory.available import default_budget_bytes
from gloader.observe.explain import explain_run
from gloader.training.checkpoint.save import ModelSpec
from gloader.training.group import RankGroup
from gloader.training.inference.layerwise_inference import LayerwiseInference
from gloader.training.optimizer import check_optim
from gloader.training.process import own_cores, private_randomness
from gloader.training.replica import logits_and_loss
from gloader.training.reporter import Reporter, RunStart, SilentReporter, TeeReporter
from gloader.training.result import RunResult, name_strategy, peak_rss_bytes, summarize
from gloader.training.run_budget import RunBudget, share_budget
from gloader.training.run_folder import RunFolder
from gloader.training.step_config import StepConfig, check_step
from gloader.training.step_memory import largest, parameter_bytes, probe_batches, step_bytes
from gloader.training.tensorboard import TensorBoardReporter
from gloader.training.trainer import Trainer, TrainRecipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gloader.config import LoaderConfig, ModelConfig, OptimConfig
    from gloader.dataset import Dataset
    from gloader.training.step_config import LoaderSharing
    from gloader.types import ReadyBatch


_STEP = StepConfig()


class LoaderFactory(Protocol):
    """Builds the loader of a run; ``overrides`` are keyword arguments of `gloader.loader.Loader`."""

    def __call__(self, dataset: Dataset, config: LoaderConfig, **overrides: Any) -> Loader:
        """Return a loader over the training nodes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """Every run, and ``summary``, the content of ``result.json``."""

    runs: tuple[RunResult, ...]
    summary: dict[str, Any]


def fit(
    dataset: Dataset,
    model: ModelConfig,
    optim: OptimConfig,
    loader: LoaderConfig,
    *,
    step: StepConfig = _STEP,
    sharing: LoaderSharing = "auto",
    runs: int = 1,
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    tensorboard: bool = False,
    trace: Path | None = None,
    reporter: Reporter | None = None,
    loader_factory: LoaderFactory = Loader.from_config,
) -> FitResult:
    """Train ``runs`` networks, which differ in their seed alone, and test each at its best epoch.

    The best epoch is the one with the highest accuracy on the validation nodes, the earliest where several
    are; the last epoch where there are no validation nodes. The test nodes are looked at once, with those
    weights.

    Under an initialised process group all its ranks train together: every rank calls this with the same settings,
    the gradients are averaged, and ``loader.batch_size`` is that of one rank. The memory and spill budgets are for all
    ranks of a machine. Only the first rank reports, writes and evaluates; checkpoints are written by all.

    Parameters
    ----------
    dataset : a prepared dataset
    model, optim, loader : the settings; run k uses seed ``loader.seed + k``
    step : precision, compilation, and what ranks send
    sharing : whether the ranks of a machine have one loader, see `gloader.loader.Loader`
    runs : number of networks
    out : folder for config.yaml, metrics.jsonl, result.json and the checkpoint; ``run-k`` below it for each
        of several runs; nothing is written where None
    resume : go on from the checkpoints in ``out`` where there are any
    device : "auto" (the GPU of this rank, or the CPU), or a torch device
    tensorboard : write event files below ``out``
    trace : the file that receives the pipeline's events of the first run, for Perfetto

    Raises
    ------
    ConfigError, BudgetError
        A setting is not allowed, or memory does not suffice; raised before training.
    CheckpointError, StateError
        A checkpoint to resume from is malformed or belongs to another dataset or other settings.
    MissingDependencyError
        TensorBoard is not installed.
    RankError
        Another rank failed or is gone.
    """
    group = RankGroup.current()
    loader = _without_neighbors(loader) if model.name == "mlp" else loader
    settings = _settings(dataset, model, optim, step, loader, sharing, runs)
    _agree_on(group, settings, out=out, resume=resume)
    _check(optim, runs=runs, out=out, resume=resume, tensorboard=tensorboard)
    check_step(step, world_size=group.world_size)
    target = resolve_device(device, group)
    folder = None if out is None else RunFolder(out)
    if folder is not None and group.is_first:
        folder.write_config(settings)
    with ExitStack() as stack:
        listener: Reporter = (reporter if group.is_first else None) or SilentReporter()
        if tensorboard and out is not None and group.is_first:
            board = TensorBoardReporter(out / "tensorboard")
            stack.callback(board.close)
            listener = TeeReporter(listener, board)
        stack.enter_context(own_cores(group, target))
        results = []
        for run in range(runs):
            job = _Job(
                dataset=dataset,
                model=model,
                optim=optim,
                step=step,
                sharing=sharing,
                group=group,
                loader=replace(loader, seed=loader.seed + run),
                folder=None if folder is None else folder.of_run(run, num_runs=runs),
                device=target,
                resume=resume,
                trace=trace if run == 0 and group.is_first else None,
                reporter=listener,
                loader_factory=loader_factory,
            )
            with group.lost_rank_errors():
                results.append(job.run(run, num_runs=runs))
    summary = summarize(results)
    if folder is not None and group.is_first:
        folder.write_result(summary)
    return FitResult(runs=tuple(results), summary=summary)


def resolve_device(device: str, group: RankGroup | None = None) -> torch.device:
    """Return the device that "auto" or a torch device's name stands for; with several ranks, each has its own GPU.

    Raises
    ------
    ConfigError
        The name is unknown, the device is not there, or several ranks would have the same one.
    """
    local_rank, most_local = (group.local_rank, group.most_local) if group is not None else (0, 1)
    if device == "auto":
        device = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    elif device == "cuda":
        device = f"cuda:{local_rank}"
    elif device.startswith("cuda:") and most_local > 1:
        raise ConfigError(
            f"device {device!r} cannot be that of {most_local} ranks; use 'auto' or 'cuda', which give each its own GPU"
        )
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device {device!r} is not known; allowed: auto, cpu, cuda:0, cuda:1, ..."
        ) from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {device!r} is not there: torch sees {torch.cuda.device_count()} GPUs; start as many ranks, or "
            "use the device 'cpu'"
        )
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The settings of one run."""

    dataset: Dataset
    model: ModelConfig
    optim: OptimConfig
    step: StepConfig
    sharing: LoaderSharing
    group: RankGroup
    loader: LoaderConfig
    folder: RunFolder | None
    device: torch.device
    resume: bool
    trace: Path | None
    reporter: Reporter
    loader_factory: LoaderFactory

    def run(self, run: int, *, num_runs: int) -> RunResult:
        """Train and test one network."""
        started = time.perf_counter()
        self.group.run_on_first(self._prepare_folder)
        budget, opened = self._open_loader()
        with opened as loader, private_randomness(self.device), self.group.log_failures():
            trainer = self._trainer(loader, budget)
            self._resume(trainer)
            explanations = self.group.gather(loader.explain())
            self.reporter.on_start(
                RunStart(
                    run=run,
                    num_runs=num_runs,
                    first_epoch=trainer.next_epoch,
                    num_epochs=self.optim.epochs,
                    num_batches=len(loader),
                    num_parameters=trainer.num_parameters,
                    device=str(self.device),
                    num_ranks=self.group.world_size,
                    summary=f"{budget.explain()}\n{self._explain_features(loader)}",
                    explanation=_by_rank(explanations),
                )
            )
            outcome = trainer.train()
            if self.trace is not None:
                loader.write_trace(self.trace)
            is_on_ssd = loader.memory_plan.features == "ssd"
            result = RunResult(
                seed=self.loader.seed,
                best_epoch=outcome.best_epoch,
                valid_acc=outcome.valid_acc,
                test_acc=outcome.test_acc,
                epochs=outcome.epochs,
                seconds=time.perf_counter() - started,
                num_parameters=trainer.num_parameters,
                features=loader.memory_plan.features,
                policy=self.loader.policy if is_on_ssd else "none",
                io_strategy=self._io_strategy(loader) if is_on_ssd else "none",
                sampler_threads=self._sampler_threads(),
                explanation=_by_rank(self.group.gather(_explain_reports(loader))),
                rank_peak_rss_bytes=tuple(self.group.gather(peak_rss_bytes())),
            )
        if self.folder is not None and num_runs > 1 and self.group.is_first:
            self.folder.write_result(summarize([result]))
        self.reporter.on_finish(result)
        return result

    def _prepare_folder(self) -> None:
        if self.folder is not None:
            self.folder.remove_residue()
            if not (self.resume or self.group.is_alone):
                self.folder.discard_checkpoints()

    def _trainer(self, loader: Loader, budget: RunBudget) -> Trainer:
        inference = None
        if self.group.is_first:
            inference = LayerwiseInference(
                graph=loader.graph,
                features=loader.features,
                memory_budget_bytes=budget.phase_bytes,
                scratch=None if self.folder is None else self.folder.root,
            )
        return Trainer(
            recipe=TrainRecipe(spec=self._spec(), optim=self.optim, step=self.step, seed=self.loader.seed),
            dataset=self.dataset,
            group=self.group,
            loader=loader,
            inference=inference,
            device=self.device,
            folder=self.folder,
            reporter=self.reporter,
        )

    def _resume(self, trainer: Trainer) -> None:
        """Continue from the checkpoint, where one is asked for and there; on all ranks or on none."""
        failure: Exception | None = None
        if self.resume and self.folder is not None:
            try:
                checkpoint = self.folder.load_checkpoint()
                if checkpoint is not None:
                    trainer.resume_from(checkpoint)
            except Exception as error:  # noqa: BLE001 - raised below, when the others know of it
                failure = error
        self.group.agree(failure)
        positions = self.group.gather(trainer.next_epoch)
        if len(set(positions)) > 1:
            raise ConfigError(
                f"the checkpoints that the ranks see are of the epochs {positions}; --out has to be one folder that "
                "all machines share"
            )

    def _budgets(self) -> tuple[RunBudget, ...]:
        """Return the ways to share a machine's budget; on a GPU the model and its steps take none of it."""
        total = self.loader.memory_budget_bytes
        if total is None:
            total = min(self.group.gather(default_budget_bytes()))  # the same everywhere
        if self.device.type != "cpu":
            return share_budget(total_bytes=total, parameter_bytes=0, step_bytes=0)
        spec, ranks = self._spec(), self.group.most_local
        batch = largest(probe_batches(self.dataset, self.loader))
        return share_budget(
            total_bytes=total,
            parameter_bytes=ranks * parameter_bytes(spec),
            step_bytes=0 if batch is None else ranks * step_bytes(spec, batch, autocast=self.step.autocast),
        )

    def _open_loader(self) -> tuple[RunBudget, Loader]:
        """Return a loader within the first share of the budget that suffices on every rank, and that share."""
        budgets = self._budgets()
        for budget in budgets:
            loader: Loader | None = None
            failure: Exception | None = None
            try:
                loader = self._make_loader(budget)
            except Exception as error:  # noqa: BLE001 - raised below, when the others know of it
                failure = error
            if budget is not budgets[-1] and self._is_too_small(failure):
                if loader is not None:
                    loader.__exit__(None, None, None)
                continue
            try:
                self.group.agree(failure)
            except BaseException as error:
                if loader is not None:
                    loader.__exit__(None, None, None)
                if isinstance(error, BudgetError):
                    error.add_note(budget.explain())
                raise
            if loader is not None:
                return budget, loader
        raise AssertionError("there is at least one way to share a budget")

    def _is_too_small(self, failure: Exception | None) -> bool:
        """Return whether a budget was too small for a rank, and nothing else went wrong; collective."""
        kind = "fits" if failure is None else "other"
        if isinstance(failure, BudgetError | RankError):
            kind = "small" if isinstance(failure, BudgetError) else "told"
        kinds = self.group.gather(kind)
        return "small" in kinds and "other" not in kinds

    def _make_loader(self, budget: RunBudget) -> Loader:
        config, loader_bytes = self.loader, budget.loader_bytes
        if self._is_private:
            config, loader_bytes = self._part_of_machine(), loader_bytes // self.group.most_local
        return self.loader_factory(
            self.dataset,
            config,
            device=self.device,
            memory_budget=loader_bytes,
            sampler=self.loader.sampler,
            epochs=self.optim.epochs,
            trace=self.trace is not None,
            sharing=self.sharing,
            device_dry_run=self._dry_run(),
        )

    def _dry_run(self) -> Callable[[ReadyBatch], None] | None:
        """Return a step of the network on a GPU, by which its free memory is measured; None without a GPU."""
        if self.device.type == "cpu" or self.loader.device_cache != "auto":
            return None
        model = self._spec().build().to(self.device)
        return dry_step(model, lambda batch: logits_and_loss(model, batch, self.step.autocast)[1])

    @property
    def _is_private(self) -> bool:
        return self.sharing == "private" and not self.group.is_alone

    def _part_of_machine(self) -> LoaderConfig:
        """Return the settings of one of several loaders of a machine, which share what one loader would have."""
        config, ranks = self.loader, self.group.most_local
        return replace(
            config,
            cache_bytes=None if config.cache_bytes is None else config.cache_bytes // ranks,
            spill_budget_bytes=None
            if config.spill_budget_bytes is None
            else config.spill_budget_bytes // ranks,
            threads=self._sampler_threads(),
        )

    def _sampler_threads(self) -> int:
        """Return the sampling threads of one loader."""
        loaders = self.group.most_local if self._is_private else 1
        return max(1, (self.loader.threads or len(os.sched_getaffinity(0))) // loaders)

    def _explain_features(self, loader: Loader) -> str:
        plan = loader.memory_plan
        if plan.features == "ram":
            return "features in memory"
        share = 100 * plan.cache_rows / max(self.dataset.num_nodes, 1)
        return f"features on the SSD, {plan.cache_rows:,} rows ({share:.1f}%) cached, policy {self.loader.policy}"

    def _io_strategy(self, loader: Loader) -> str:
        return name_strategy(self.loader.io_strategy, [report.choice.strategy for report in loader.reports])

    def _spec(self) -> ModelSpec:
        return ModelSpec(
            config=self.model,
            in_dim=self.dataset.feature_dim,
            num_classes=self.dataset.num_classes,
            num_layers=len(self.loader.fanouts),
            add_self_loops=not self.dataset.has_self_loops,
        )


def _agree_on(group: RankGroup, settings: Mapping[str, Any], *, out: Path | None, resume: bool) -> None:
    """Raise ConfigError on every rank where they were given different settings."""
    versions = {"gloader": gloader.__version__, "torch": torch.__version__}
    paths = {"out": None if out is None else str(out), "resume": resume}
    dataset = {"dataset": settings["dataset"]["fingerprint"]}  # its path may differ from machine to machine
    flat = {
        f"{part}.{name}" if isinstance(values, dict) else part: value
        for part, values in settings.items()
        if part != "dataset"
        for name, value in (values.items() if isinstance(values, dict) else [(part, values)])
    }
    group.require_equal(versions | dataset | flat | paths)


def _by_rank(texts: Sequence[str]) -> str:
    """Return one text of what each rank said; a rank that says what the first one does is not repeated."""
    if len(texts) == 1:
        return texts[0]
    said = [texts[0], *(text.removesuffix(texts[0]).rstrip(":\n") for text in texts[1:])]
    return "\n".join(f"rank {rank}: {text}" for rank, text in enumerate(said) if text)


def _explain_reports(loader: Loader) -> str:
    return explain_run(loader.reports) if loader.reports else ""


def _check(optim: OptimConfig, *, runs: int, out: Path | None, resume: bool, tensorboard: bool) -> None:
    check_optim(optim)
    if runs < 1:
        raise ConfigError(f"runs is {runs}; allowed: 1 or more")
    if out is None and (resume or tensorboard):
        raise ConfigError(f"{'resume' if resume else 'tensorboard'} needs a run folder; give --out")


def _without_neighbors(loader: LoaderConfig) -> LoaderConfig:
    """Return settings with the same number of hops and no edges: what an MLP reads."""
    return replace(loader, sampler="neighbor", layout="layered", fanouts=(0,) * len(loader.fanouts))


def _settings(
    dataset: Dataset,
    model: ModelConfig,
    optim: OptimConfig,
    step: StepConfig,
    loader: LoaderConfig,
    sharing: LoaderSharing,
    runs: int,
) -> dict[str, Any]:
    """Return the content of ``config.yaml``, which is a recipe of the command line."""
    return {
        "dataset": {"path": str(dataset.root), "name": dataset.name, "fingerprint": dataset.fingerprint},
        "model": asdict(model),
        "optim": asdict(optim),
        **asdict(step),
        "loader": asdict(loader) | {"loader": sharing},
        "runs": runs,
    }
