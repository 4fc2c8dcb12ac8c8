"""Training: one or more runs over a dataset, from settings to a result."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gloader.errors import ConfigError
from gloader.loader import Loader
from gloader.memory import default_budget_bytes
from gloader.training.checkpoint import ModelSpec
from gloader.training.layerwise import LayerwiseInference
from gloader.training.reporter import Reporter, RunStart, SilentReporter, TeeReporter
from gloader.training.result import RunResult, summarize
from gloader.training.run_folder import RunFolder
from gloader.training.schedule import check_optim
from gloader.training.seeding import private_randomness
from gloader.training.tensorboard import TensorBoardReporter
from gloader.training.trainer import Trainer

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.config import LoaderConfig, ModelConfig, OptimConfig
    from gloader.dataset import Dataset
    from gloader.training.train_loader import TrainLoader


class LoaderFactory(Protocol):
    """Builds the loader of a run; ``overrides`` are keyword arguments of `gloader.loader.Loader`."""

    def __call__(self, dataset: Dataset, config: LoaderConfig, **overrides: Any) -> TrainLoader:
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
    runs: int = 1,
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    tensorboard: bool = False,
    reporter: Reporter | None = None,
    loader_factory: LoaderFactory = Loader.from_config,
) -> FitResult:
    """Train ``runs`` networks, which differ in their seed alone, and test each at its best epoch.

    The best epoch is the one with the highest accuracy on the validation nodes, the earliest where several
    are; the last epoch where there are no validation nodes. The test nodes are looked at once, with those
    weights.

    Parameters
    ----------
    dataset : a prepared dataset
    model, optim, loader : the settings; run k uses seed ``loader.seed + k``
    runs : number of networks
    out : folder for config.yaml, metrics.jsonl, result.json and the checkpoint; ``run-k`` below it for each
        of several runs; nothing is written where None
    resume : go on from the checkpoints in ``out`` where there are any
    device : "auto" (the first GPU, or the CPU), or a torch device
    tensorboard : write event files below ``out``

    Raises
    ------
    ConfigError, BudgetError
        A setting is not allowed, or memory does not suffice; raised before training.
    CheckpointError, StateError
        A checkpoint to resume from is malformed or belongs to another dataset or other settings.
    MissingDependencyError
        TensorBoard is not installed.
    """
    _check(optim, runs=runs, out=out, resume=resume, tensorboard=tensorboard)
    loader = _without_neighbors(loader) if model.name == "mlp" else loader
    target = resolve_device(device)
    folder = None if out is None else RunFolder(out)
    if folder is not None:
        folder.write_config(_settings(dataset, model, optim, loader, runs))
    with ExitStack() as stack:
        listener: Reporter = reporter or SilentReporter()
        if tensorboard and out is not None:
            board = TensorBoardReporter(out / "tensorboard")
            stack.callback(board.close)
            listener = TeeReporter(listener, board)
        results = []
        for run in range(runs):
            job = _Job(
                dataset=dataset,
                model=model,
                optim=optim,
                loader=replace(loader, seed=loader.seed + run),
                folder=None if folder is None else folder.of_run(run, num_runs=runs),
                device=target,
                resume=resume,
                reporter=listener,
                loader_factory=loader_factory,
            )
            results.append(job.run(run, num_runs=runs))
    summary = summarize(results)
    if folder is not None:
        folder.write_result(summary)
    return FitResult(runs=tuple(results), summary=summary)


def resolve_device(device: str) -> torch.device:
    """Return the device that "auto" or a torch device's name stands for.

    Raises
    ------
    ConfigError
        The name is unknown, or the device is not there.
    """
    if device == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device {device!r} is not known; allowed: auto, cpu, cuda:0, cuda:1, ..."
        ) from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {device!r} is not there: torch sees {torch.cuda.device_count()} GPUs")
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The settings of one run."""

    dataset: Dataset
    model: ModelConfig
    optim: OptimConfig
    loader: LoaderConfig
    folder: RunFolder | None
    device: torch.device
    resume: bool
    reporter: Reporter
    loader_factory: LoaderFactory

    def run(self, run: int, *, num_runs: int) -> RunResult:
        """Train and test one network."""
        started = time.perf_counter()
        if self.folder is not None:
            self.folder.remove_residue()
        budget = self.loader.memory_budget_bytes or default_budget_bytes()
        inference_bytes = budget // 4
        model_bytes = self._model_bytes()
        with (
            private_randomness(self.device),
            self.loader_factory(
                self.dataset,
                self.loader,
                device=self.device,
                memory_budget=max(0, budget - inference_bytes - model_bytes),
            ) as loader,
            self.dataset.open_features() as features,
        ):
            trainer = Trainer(
                spec=self._spec(),
                dataset=self.dataset,
                optim=self.optim,
                loader=loader,
                inference=LayerwiseInference(
                    graph=self.dataset.load_graph(in_memory=False),
                    features=features,
                    memory_budget_bytes=inference_bytes,
                    scratch=None if self.folder is None else self.folder.root,
                ),
                seed=self.loader.seed,
                device=self.device,
                folder=self.folder,
                reporter=self.reporter,
            )
            if self.resume and self.folder is not None:
                checkpoint = self.folder.load_checkpoint()
                if checkpoint is not None:
                    trainer.resume_from(checkpoint)
            self.reporter.on_start(
                RunStart(
                    run=run,
                    num_runs=num_runs,
                    first_epoch=trainer.next_epoch,
                    num_epochs=self.optim.epochs,
                    num_batches=len(loader),
                    num_parameters=trainer.num_parameters,
                    device=str(self.device),
                    explanation=loader.explain(),
                )
            )
            outcome = trainer.train()
            result = RunResult(
                seed=self.loader.seed,
                best_epoch=outcome.best_epoch,
                valid_acc=outcome.valid_acc,
                test_acc=outcome.test_acc,
                epochs=outcome.epochs,
                seconds=time.perf_counter() - started,
                num_parameters=trainer.num_parameters,
                features=loader.memory_plan.features,
                policy=self.loader.policy if loader.memory_plan.features == "ssd" else "none",
                io_strategy="direct" if loader.memory_plan.features == "ssd" else "none",
                sampler_threads=self.loader.threads or len(os.sched_getaffinity(0)),
            )
        if self.folder is not None and num_runs > 1:
            self.folder.write_result(summarize([result]))
        self.reporter.on_finish(result)
        return result

    def _model_bytes(self) -> int:
        """Return the host memory of weights, best weights, gradients and both moments."""
        if self.device.type != "cpu":
            return 0
        with torch.device("meta"):
            parameters = self._spec().build().parameters()
        return 5 * sum(parameter.numel() * parameter.element_size() for parameter in parameters)

    def _spec(self) -> ModelSpec:
        return ModelSpec(
            config=self.model,
            in_dim=self.dataset.feature_dim,
            num_classes=self.dataset.num_classes,
            num_layers=len(self.loader.fanouts),
            add_self_loops=not self.dataset.has_self_loops,
        )


def _check(optim: OptimConfig, *, runs: int, out: Path | None, resume: bool, tensorboard: bool) -> None:
    check_optim(optim)
    if runs < 1:
        raise ConfigError(f"runs is {runs}; allowed: 1 or more")
    if out is None and (resume or tensorboard):
        raise ConfigError(f"{'resume' if resume else 'tensorboard'} needs a run folder; give --out")


def _without_neighbors(loader: LoaderConfig) -> LoaderConfig:
    """Return settings with the same number of hops and no edges: what an MLP reads."""
    return replace(loader, fanouts=(0,) * len(loader.fanouts))


def _settings(
    dataset: Dataset, model: ModelConfig, optim: OptimConfig, loader: LoaderConfig, runs: int
) -> dict[str, Any]:
    return {
        "dataset": {"path": str(dataset.root), "name": dataset.name, "fingerprint": dataset.fingerprint},
        "model": asdict(model),
        "optim": asdict(optim),
        "loader": asdict(loader),
        "runs": runs,
    }
