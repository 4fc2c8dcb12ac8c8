"""Training: one or more runs over a dataset, from settings to a result, on one rank or several.

A run trains one network; several runs differ only in their seed. A rank is one process of a launch, such as one per
GPU. `fit` is the entry point, for `gloader train` and for Python. It checks the settings, opens the folder and the
reporters, and then trains one `_TrainingRun` after the other. A run opens its loader (`RunLoader`), makes a `Trainer`,
resumes from a checkpoint if asked to, trains, and collects its result. Methods marked as collective exchange values
between ranks: every rank must call them in the same order.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import torch

from gloader.config import (
    CORRECT_AND_SMOOTH,
    HOP_MODELS,
    LINK_TASKS,
    MLP_MODELS,
    SamplingSettings,
    TaskName,
)
from gloader.core.flag_values import require_choice
from gloader.core.object_traffic import ObjectTraffic
from gloader.core.signals import uninterrupted
from gloader.core.version import __version__
from gloader.errors import ConfigError
from gloader.models import takes_edge_features
from gloader.observe.explain import FITS_IN_MEMORY
from gloader.observe.peak_memory import PeakMemory, first_bytes, peak_rss_bytes
from gloader.training.dataset_checks import (
    RANK_METRIC,
    TASK_OF_KIND,
    kind_of_task,
    metric_of_task,
    require_no_compile,
)
from gloader.training.embeddings import RunEmbeddings, embedded_types, open_embeddings, saved_of
from gloader.training.group import RankGroup
from gloader.training.knowledge_task import KnowledgeTask
from gloader.training.link_prediction import LinkPrediction
from gloader.training.model_spec import codes_text
from gloader.training.node_task import NodeTask
from gloader.training.process import own_cores, private_randomness, require_own_gpu, resolve_device
from gloader.training.replica import check_step
from gloader.training.reporter import Reporter, RunStart, SilentReporter, TeeReporter, TensorBoardReporter
from gloader.training.result import RunResult, name_strategy, summarize
from gloader.training.run_folder import RunFolder, decisive_settings
from gloader.training.run_inference import MachineRows, features_of, inference_of, launch_machine_rows
from gloader.training.run_loader import RunLoader
from gloader.training.task import ACCURACY
from gloader.training.train_step import TrainRecipe, check_optim
from gloader.training.trainer import Trainer
from gloader.types import ENTITY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gloader.config import LoaderSettings, TrainSettings
    from gloader.dataset import Dataset
    from gloader.ssd_store import FeatureStore
    from gloader.training.checkpoint.save import Checkpoint, SavedEmbeddings
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.training.run_budget import RunBudget
    from gloader.training.run_loader import LoaderFactory
    from gloader.training.task import AnyLoader, Task
    from gloader.training.trainer import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """A run's files, and the choice to resume or overwrite them."""

    # The folder for config.yaml, metrics.jsonl, result.json and the checkpoint. None means no files.
    out: Path | None = None
    resume: bool = False  # continue from the checkpoints in ``out``, if any
    # Replace a run in ``out``. Without ``overwrite`` or ``resume``, a run in ``out`` is an error.
    overwrite: bool = False
    # True if all ranks see the same folder ``out``. Otherwise each rank has its own, with the same initial content.
    is_shared: bool = True
    # Called on every rank with each complete checkpoint.
    on_checkpoint: Callable[[Checkpoint], None] | None = None
    tensorboard: bool = False  # write event files below ``out``
    trace: Path | None = None  # file for the pipeline's events of the first run, for Perfetto


_NO_FILES = RunFiles()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """All runs, and ``summary``, the content of ``result.json``."""

    runs: tuple[RunResult, ...]
    summary: dict[str, Any]  # means, deviations and sums over all runs, see `summarize`


def fit(
    dataset: Dataset,
    settings: TrainSettings,
    *,
    device: str = "auto",
    files: RunFiles = _NO_FILES,
    reporter: Reporter | None = None,
    loader_factory: LoaderFactory | None = None,
) -> FitResult:
    """Train ``settings.runs`` networks that differ only in their seed, and test each at its best epoch.

    The best epoch has the best metric on the validation data, such as the highest accuracy. Of equal epochs, the
    earliest is taken. Without validation data the last epoch is taken. Test data is evaluated once, with the weights of
    this epoch.

    All ranks of an initialised process group train together. Every rank calls this function with the same settings,
    and the gradients are averaged. The batch size is for each rank. The memory budget, and the spill budget (disk space
    for temporary files), are for all ranks of a machine. Only the first rank reports, writes and evaluates; all ranks
    write checkpoints.

    Parameters
    ----------
    dataset : a prepared dataset
    settings : network, optimisation, precision and loader; run k uses the loader's seed + k
    device : "auto" (this rank's GPU, or the CPU), or a torch device
    files : the files to write; defaults to none. Each of several runs has its own subfolder ``run-k``
    reporter : receives every epoch on the first rank; defaults to none
    loader_factory : opens a run's loader; defaults to `Loader`, or `HeteroLoader` for a model over several types

    Raises
    ------
    ConfigError, BudgetError
        A setting is not allowed, or memory does not suffice; raised before training.
    CheckpointError, StateError
        The checkpoint to resume from is damaged or malformed, or belongs to another run, dataset or other settings.
    StoreLockedError, StoreExistsError, StoreWriteError
        Another run is active in the folder, the folder has an older run or foreign files, or it cannot be written.
    MissingDependencyError
        TensorBoard is not installed.
    RankError
        Another rank failed or is lost.
    """
    group = RankGroup.current()
    settings = resolved_settings(settings, dataset)
    recorded = run_config(settings, dataset)
    task = task_of(settings, dataset, world_size=group.world_size)
    task.warn()
    if loader_factory is not None and settings.optim.balance != "none":
        raise ConfigError(
            "a loader_factory opens loaders without the draws of --balance classes; leave one of them out"
        )
    # The ranks compare their settings before any file is written. Ranks with different settings would make different
    # collective calls and wait for each other for ever.
    _agree_on(group, recorded, files)
    _check(settings, files)
    check_step(settings.step, world_size=group.world_size)
    require_no_compile(settings)
    target = resolve_device(device, local_rank=group.local_rank)
    require_own_gpu(group, target, asked=device)
    folder = (
        None
        if files.out is None
        else RunFolder(files.out, is_shared=files.is_shared, on_checkpoint=files.on_checkpoint)
    )
    with ExitStack() as stack:
        run_id = ""
        if folder is not None:
            stack.callback(folder.release)
            run_id = group.run_on_first(lambda: folder.enter(resume=files.resume, overwrite=files.overwrite))
        listener: Reporter = (reporter if group.is_first else None) or SilentReporter()
        if files.tensorboard and files.out is not None and group.is_first:
            board = TensorBoardReporter(files.out / "tensorboard")
            stack.callback(board.close)
            listener = TeeReporter(listener, board)
        stack.enter_context(own_cores(group, target))
        first_bytes()  # cached at the first call, which has to precede this run's allocations
        # A signal between the start of the memory watch's thread and its entry in the stack would leave the thread.
        with uninterrupted():
            peak = stack.enter_context(PeakMemory())
        results = []
        for number in range(settings.runs):
            seed = settings.loader.sampling.seed + number
            training = _TrainingRun(
                dataset=dataset,
                settings=replace(settings, loader=settings.loader.changed(seed=seed)),
                group=group,
                run_id=run_id,
                folder=None if folder is None else folder.of_run(number, num_runs=settings.runs),
                # Only the first of several runs begins the common folder.
                begin=None
                if folder is None or number
                else partial(folder.begin, {"run": {"id": run_id}, **recorded}, is_fresh=not files.resume),
                device=target,
                resume=files.resume,
                trace=files.trace if number == 0 and group.is_first else None,
                reporter=listener,
                loader_factory=loader_factory or task.open_loader,
                task=task,
                peak=peak,
            )
            with group.watching(timeout_s=settings.loader.stages.stall_timeout_s):
                results.append(training.run(number))
    summary = summarize(results)
    if folder is not None and group.is_first:
        folder.write_result(summary)
    return FitResult(runs=tuple(results), summary=summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainingRun:
    """The training of one network, from its first batch to its test. Its ``settings`` contain this network's seed.

    The other fields are those of `fit`, `RunFiles` and `Trainer`; ``folder`` is this network's folder.
    """

    dataset: Dataset
    settings: TrainSettings
    group: RankGroup
    run_id: str
    folder: RunFolder | None
    # Called once on the first rank, before the first step: it writes config.yaml and removes an older run's files. Its
    # argument ``keeps`` is the folder of this run's embeddings, which are there already.
    begin: Callable[..., None] | None
    device: torch.device
    resume: bool
    trace: Path | None
    reporter: Reporter
    loader_factory: LoaderFactory
    task: Task
    peak: PeakMemory

    def run(self, number: int) -> RunResult:
        """Train and test the network. Collective.

        Parameters
        ----------
        number : number of this run, from 0
        """
        started = time.perf_counter()
        if self.folder is not None:
            self.group.run_on_first(self.folder.remove_residue)
        opening = RunLoader(
            dataset=self.dataset,
            settings=self.settings,
            task=self.task,
            group=self.group,
            device=self.device,
            is_traced=self.trace is not None,
            factory=self.loader_factory,
            peak=self.peak,
            evaluates=True,
        )
        with self._open_embeddings() as embeddings:
            return self._run(number, replace(opening, embeddings=embeddings.by_type), embeddings, started)

    def _run(self, number: int, opening: RunLoader, embeddings: RunEmbeddings, started: float) -> RunResult:
        """Train and test the network with its ``embeddings``. Collective. The clock showed ``started`` at the start."""
        budget, opened = opening.open()
        # `log_failures` is innermost: it reports an error before this rank waits for the end of its loader's threads.
        with opened as loader, private_randomness(self.device), self.group.log_failures():
            trainer = self._trainer(loader, budget, embeddings)
            self._resume(trainer)
            # All checks have passed. Before this line, a refused run leaves an older run's files unchanged.
            if self.begin is not None:
                self.group.run_on_first(partial(self.begin, keeps=embeddings.folder))
            # Every rank takes part, even without a reporter, because `gather` is a collective.
            explanations = self.group.gather(loader.explain())
            self.reporter.on_start(
                RunStart(
                    run=number,
                    num_runs=self.settings.runs,
                    first_epoch=trainer.next_epoch,
                    num_epochs=self.settings.optim.epochs,
                    num_batches=len(loader),
                    num_parameters=trainer.num_parameters,
                    device=str(self.device),
                    num_ranks=self.group.world_size,
                    metric=self.task.metric,
                    summary="\n".join(
                        filter(
                            None,
                            (budget.explain(), self._explain_storage(loader), codes_text(self.task.spec)),
                        )
                    ),
                    explanation=_by_rank(explanations),
                )
            )
            try:
                outcome = trainer.train()
            finally:
                # The timeline is also useful if a signal or an error ended the run.
                if self.trace is not None:
                    loader.write_trace(self.trace)
            result = self._result(
                outcome,
                loader,
                budget,
                seconds=time.perf_counter() - started,
                num_parameters=trainer.num_parameters,
                sampler_threads=opening.sampler_threads,
            )
        # Each of several runs writes its result at once: a later run may be interrupted.
        if self.folder is not None and self.settings.runs > 1 and self.group.is_first:
            self.folder.write_result(summarize([result]))
        self.reporter.on_finish(result)
        return result

    def _result(
        self,
        outcome: Outcome,
        loader: AnyLoader,
        budget: RunBudget,
        *,
        seconds: float,
        num_parameters: int,
        sampler_threads: int,
    ) -> RunResult:
        """Return the training's result and resources. Collective.

        Parameters
        ----------
        outcome : the trainer's scores and epochs
        loader : the run's loader, still open
        budget : the division of the memory
        seconds : wall-clock seconds of the run
        num_parameters : number of trained weights
        sampler_threads : number of sampling threads per loader
        """
        is_on_ssd = loader.memory_plan.features == "ssd"
        # Ranks may map features that another rank loaded. The memory counts only for the rank that loaded them.
        peaks = self.group.gather(max(self.peak.peak_bytes - loader.borrowed_bytes, 0))
        return RunResult(
            seed=self.settings.loader.sampling.seed,
            best_epoch=outcome.best_epoch,
            valid_acc=outcome.valid_acc,
            test_acc=outcome.test_acc,
            base=outcome.base,
            epochs=outcome.epochs,
            task=self.task.name,
            metric=self.task.metric,
            is_error=self.task.is_error,
            seconds=seconds,
            num_parameters=num_parameters,
            features=loader.memory_plan.features,
            policy=self.settings.loader.memory.policy if is_on_ssd else "none",
            io_strategy=self._io_strategy(loader) if is_on_ssd else "none",
            sampler_threads=sampler_threads,
            explanation=_by_rank(self.group.gather(loader.explain_run())),
            memory_budget_bytes=budget.total_bytes,
            peak_anonymous_bytes=sum(peaks[rank] for rank in self.group.first_machine),
            rank_peak_rss_bytes=tuple(self.group.gather(peak_rss_bytes())),
            objects=self._objects(),
            device=_device_name(self.device),
        )

    def _objects(self) -> dict[str, Any] | None:
        """Return all ranks' traffic with the object store of a dataset that is read from a URL. Collective.

        Returns None if this rank's dataset is a folder.
        """
        mirrored = self.dataset.mirrored
        parts = self.group.gather({} if mirrored is None else asdict(mirrored.traffic()))
        total = ObjectTraffic()
        for part in filter(None, parts):
            total = total.plus(ObjectTraffic(**part))
        return None if mirrored is None else mirrored.figures(total)

    def _open_embeddings(self) -> AbstractContextManager[RunEmbeddings]:
        """Return the run's embeddings, at the records of the checkpoint if the run resumes."""

        def find_saved() -> SavedEmbeddings | None:
            # The checkpoint is read again by `_resume`, after the loader has taken its memory.
            checkpoint = self.folder.load_checkpoint() if self.resume and self.folder is not None else None
            return saved_of(checkpoint, self.task.spec, self._decisive)

        return open_embeddings(
            embedded_types(self.task.spec, self.dataset),
            self.dataset,
            self.settings.embed,
            self.group,
            seed=self.settings.loader.sampling.seed,
            root=None if self.folder is None else self.folder.root,
            run_id=self.run_id,
            find_saved=find_saved,
            scratch=self.settings.loader.memory.spill_dir,
        )

    @property
    def _decisive(self) -> dict[str, Any]:
        """The settings that change the result."""
        return decisive_settings(self.settings, world_size=self.group.world_size)

    def _trainer(self, loader: AnyLoader, budget: RunBudget, embeddings: RunEmbeddings) -> Trainer:
        """Return the trainer of a new network. Collective.

        If each machine stores a part of the feature rows, the machines are connected for evaluations (``rows``).
        """
        reading = self.settings.loader.reading
        launch = launch_machine_rows(
            self.dataset,
            self.group,
            timeout_s=self.settings.loader.stages.stall_timeout_s,
            verify=reading.verify != "off",
        )
        rows = None
        if launch is not None:
            stores = cast("Mapping[str, FeatureStore]", features_of(self.task, self.dataset, loader))
            rows = MachineRows(launch, stores)
        return Trainer(
            recipe=TrainRecipe(
                task=self.task,
                optim=self.settings.optim,
                step=self.settings.step,
                seed=self.settings.loader.sampling.seed,
                run_id=self.run_id,
                settings=self._decisive,
            ),
            dataset=self.dataset,
            group=self.group,
            loader=loader,
            inference=self._inference(loader, budget, rows) if self.group.is_first else None,
            device=self.device,
            folder=self.folder,
            reporter=self.reporter,
            rows=rows,
            peak=self.peak,
            embeddings=embeddings,
        )

    def _inference(self, loader: AnyLoader, budget: RunBudget, rows: MachineRows | None) -> HeteroInference:
        """Return the inference for the evaluations, within the budget's part for them."""
        return inference_of(
            self.task,
            self.dataset,
            loader,
            memory_bytes=budget.phase_bytes,
            rows=rows,
            scratch=None if self.folder is None else self.folder.root,
        )

    def _resume(self, trainer: Trainer) -> None:
        """Continue from the checkpoint if requested and present, on all ranks or on none."""
        failure: Exception | None = None
        if self.resume and self.folder is not None:
            try:
                checkpoint = self.folder.load_checkpoint()
                if checkpoint is not None:
                    trainer.resume_from(checkpoint)
            except Exception as error:  # noqa: BLE001 - raised below, after the other ranks received it
                failure = error
        self.group.agree(failure)
        next_epochs = self.group.gather(trainer.next_epoch)
        if len(set(next_epochs)) > 1:
            raise ConfigError(
                f"the ranks found checkpoints of different epochs, {next_epochs}; --out has to be one folder that "
                "all machines share"
            )

    def _explain_storage(self, loader: AnyLoader) -> str:
        """Return lines that report where features and edges are: in memory or on the SSD."""
        sweeps = loader.memory_plan.sweeps
        lines = [self._explain_features(loader)]
        if sweeps is not None:
            lines.append(f"edges on the SSD, in sweeps for up to {sweeps.num_batches} batches")
        sampling = self.settings.loader.sampling
        if self.settings.table is not None and sampling.is_temporal:
            lines.append(
                f"a row of table {self.settings.table!r} sees edges with a time {sampling.bound} its own "
                f"(--time-strategy {sampling.time_strategy} --time-bound '{sampling.bound}')"
            )
        model = self.settings.model.name
        if model in HOP_MODELS:
            lines.append(_explain_windows(self.settings))
        if model == CORRECT_AND_SMOOTH:
            lines.append(
                "correct and smooth follows the last epoch: the validation figures of the epochs are those of the "
                "network alone"
            )
        if _has_edge_features(self.dataset) and not takes_edge_features(model):
            lines.append(
                f"{model} does not use features of edges, and they are not read (gat and gine use them, on graphs of "
                "one type)"
            )
        return "\n".join(lines)

    def _explain_features(self, loader: AnyLoader) -> str:
        """Return the line on features. For features on the SSD: the cached rows of each table, and the cache policy."""
        plan = loader.memory_plan
        tables = self.dataset.feature_rows(edges=self.settings.loader.sampling.edge_features != "none")
        if not tables:
            embedded = embedded_types(self.task.spec, self.dataset)
            rows = ", ".join(f"{dim} columns of {name}" for name, dim in embedded.items())
            return f"no features, trained rows alone: {rows}" if rows else "no features: no node type has any"
        if plan.features == "ram":
            return "features in memory"
        parts = []
        for table, cached in zip(tables, plan.cache_rows, strict=True):
            share = 100 * cached / max(table.num_rows, 1)
            of = "" if len(tables) == 1 and self.dataset.kind == "homogeneous" else f" of {table.name}"
            parts.append(f"{cached:,} rows{of} ({share:.1f}%)")
        text = f"features on the SSD, {', '.join(parts)} cached, policy {self.settings.loader.memory.policy}"
        return f"{text}\n{FITS_IN_MEMORY}" if plan.would_fit else text

    def _io_strategy(self, loader: AnyLoader) -> str:
        """Return the setting for reading rows that the cache misses; for "auto" also the chosen strategies."""
        setting = self.settings.loader.reading.io_strategy
        return name_strategy(setting, [report.choice.strategy for report in loader.reports])


def _explain_windows(settings: TrainSettings) -> str:
    """Return a line on the seeds of a model of hop columns, which samples no neighbours."""
    sampling = settings.loader.sampling
    text = f"{settings.model.name} reads hop columns and samples no neighbours: --fanout has no effect"
    if sampling.seed_window > 1:
        text += f"; rows are read in blocks of {sampling.seed_blocks:,}, shuffled over {sampling.seed_window:,} steps"
    return text


def task_of(settings: TrainSettings, dataset: Dataset, *, world_size: int = 1) -> Task:
    """Return the task for a run with ``settings`` on ``world_size`` ranks.

    Raises
    ------
    ConfigError
        The dataset or the model does not fit.
    """
    require_choice("task", settings.task, get_args(TaskName))
    if settings.task == "link":
        return LinkPrediction.of(settings, dataset)
    if settings.task == "kg":
        return KnowledgeTask.of(settings, dataset)
    return NodeTask.of(settings, dataset, world_size=world_size)


def _agree_on(group: RankGroup, recorded: Mapping[str, Any], files: RunFiles) -> None:
    """Raise ConfigError on every rank if the ranks' settings, ``recorded`` as in config.yaml, differ. Collective."""
    versions = {"gloader": __version__, "torch": torch.__version__}
    has_out = files.out is not None
    # A shared folder must have the same path everywhere. Otherwise it only matters that every rank has a folder.
    paths = {"out": str(files.out) if has_out and files.is_shared else has_out, "resume": files.resume}
    # The dataset's path may differ between machines.
    dataset = {"dataset": recorded["dataset"]["fingerprint"]}
    # All other entries of config.yaml, with names such as "optim.lr". Machines may have their temporary folders
    # ("spill_dir") and their copies of remote files ("objects") in different folders.
    entries = {
        f"{part}.{name}" if isinstance(values, dict) else part: value
        for part, values in recorded.items()
        if part not in ("dataset", "objects")
        for name, value in (values.items() if isinstance(values, dict) else [(part, values)])
        if name != "spill_dir"
    }
    group.require_equal(versions | dataset | entries | paths)


def _by_rank(texts: Sequence[str]) -> str:
    """Return one text from the ranks' texts. What another rank's text has in common with the first is left out."""
    if len(texts) == 1:
        return texts[0]
    # A text that ends with the first rank's whole text keeps only the part before it.
    distinct = [texts[0], *(text.removesuffix(texts[0]).rstrip(":\n") for text in texts[1:])]
    return "\n".join(f"rank {rank}: {text}" for rank, text in enumerate(distinct) if text)


def _device_name(device: torch.device) -> str:
    """Return the GPU's product name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _check(settings: TrainSettings, files: RunFiles) -> None:
    """Raise ConfigError for an invalid number, files without a folder, or a device for the loader alone."""
    check_optim(settings.optim)
    if settings.runs < 1:
        raise ConfigError(f"runs is {settings.runs}; allowed: 1 or more")
    if files.out is None and (files.resume or files.tensorboard):
        raise ConfigError(f"{'resume' if files.resume else 'tensorboard'} needs a run folder; give --out")
    device = settings.loader.device.device
    if device != "cpu":  # "cpu" is also the default
        raise ConfigError(
            "the loader of a training run delivers its batches to the network's device, not to its own "
            f"device={device!r}: give fit(..., device={device!r}) instead"
        )


def resolved_settings(settings: TrainSettings, dataset: Dataset) -> TrainSettings:
    """Return ``settings`` with the host cache in bytes, the task, metric and negatives by name, and no unused data.

    The rows of a task table with times get its time strategy and bound, unless the settings have one. An MLP uses no
    neighbours: its hops sample none. Models of hop columns have one hop without neighbours, and read the seeds' rows in
    windows. Edge features are loaded only for models that use them.
    """
    links = replace(settings.links, negatives=settings.links.negatives_of(settings.task))
    settings = replace(settings, links=links)
    loader = settings.loader
    loader = loader.changed(cache=loader.memory.cache_bytes(dataset.feature_bytes))
    if settings.task == "kg":
        metric = RANK_METRIC if settings.links.metric == "auto" else settings.links.metric
        # No hop takes neighbours. Each entity has a trained row.
        return replace(
            settings,
            loader=loader.changed(sampler="neighbor", layout="layered", fanouts=(0,)),
            links=replace(settings.links, metric=metric),
            embed=replace(settings.embed, dims=settings.embed.dims or {ENTITY: settings.knowledge.dim}),
        )
    if settings.model.name in MLP_MODELS:
        fanouts = (0,) * len(loader.sampling.fanouts)
        loader = loader.changed(sampler="neighbor", layout="layered", fanouts=fanouts)
    if settings.model.name in HOP_MODELS:
        loader = _windowed(loader, settings, dataset)
    if _has_edge_features(dataset) and not takes_edge_features(settings.model.name):
        loader = loader.changed(edge_features="none")
    rule: Any = {}
    if settings.table is not None:
        rule = dataset.task_table(f"{settings.table}.train").time_settings
    given, default = loader.sampling, SamplingSettings(**rule)
    if given.is_temporal or default.is_temporal:
        loader = loader.changed(
            time_strategy=given.time_strategy if given.is_temporal else default.time_strategy,
            time_bound=default.bound if given.time_bound is None else given.time_bound,
        )
    settings = replace(settings, loader=loader)
    require_choice("task", settings.task, get_args(TaskName))
    is_of_nodes = settings.table is None
    if settings.task == "link" or (is_of_nodes and not dataset.labelled.split_sizes["train"]):
        return settings
    metric = metric_of_task(settings, dataset).name
    task = TASK_OF_KIND[kind_of_task(settings, dataset)]
    return replace(settings, task=task, links=replace(settings.links, metric=metric))


# Least bytes of the rows that are shuffled together, and blocks in them. So a block has 64 KiB or more, which disks
# read at about their sequential rate. Measured where neighbouring nodes have one class
# (experiments/bench/sign_epoch.py): blocks of 128 KiB and less learn as single rows do, and blocks of 1 MiB, 64 in a
# window, learn clearly more slowly.
_WINDOW_BYTES: Final = 64 << 20
_BLOCKS_IN_WINDOW: Final = 1024


def _windowed(loader: LoaderSettings, settings: TrainSettings, dataset: Dataset) -> LoaderSettings:
    """Return ``loader`` for a model of hop columns: one hop without neighbours, and seeds in windows of blocks.

    The sizes follow from the bytes of a batch, not from the memory, so that batches do not depend on the budget. Given
    seed blocks or windows are kept. The order of links or of balanced classes has none. An epoch takes each row once,
    so that a cache would help little.
    """
    loader = loader.changed(sampler="neighbor", layout="layered", fanouts=(0,))
    if loader.memory.policy == "belady" and loader.memory.cache is None:
        loader = loader.changed(policy="none")
    sampling = loader.sampling
    is_given = (sampling.seed_blocks, sampling.seed_window) != (1, 1)
    if is_given or settings.task == "link" or settings.optim.balance != "none":
        return loader
    batch_bytes = sampling.batch_size * max(dataset.feature_bytes // max(dataset.num_nodes, 1), 1)
    steps = 1 << max(-(-_WINDOW_BYTES // batch_bytes) - 1, 0).bit_length()  # the next power of two
    blocks = max(steps * sampling.batch_size // _BLOCKS_IN_WINDOW, 1)
    return loader.changed(seed_blocks=blocks, seed_window=steps)


def _has_edge_features(dataset: Dataset) -> bool:
    return any(table.has_edge_features for table in dataset.edge_tables.values())


def run_config(settings: TrainSettings, dataset: Dataset) -> dict[str, Any]:
    """Return the content of ``config.yaml``. The command line accepts this file as a recipe, in place of flags."""
    task: dict[str, Any] = {"task": settings.task, "metric": settings.links.metric}
    if settings.task in LINK_TASKS:
        task = {"task": settings.task, "links": asdict(settings.links)}
        if settings.task == "kg":
            task["knowledge"] = asdict(settings.knowledge)
    elif settings.task == "node" and settings.links.metric in ("auto", ACCURACY):
        task = {}  # the defaults, which earlier versions did not record
    if settings.table is not None:
        task["table"] = settings.table
    if settings.embed.dims:
        task["embeddings"] = settings.embed.recorded()
    return {
        "dataset": {"path": dataset.location, "name": dataset.name, "fingerprint": dataset.fingerprint},
        "model": asdict(settings.model),
        "optim": asdict(settings.optim),
        **asdict(settings.step),
        "loader": settings.loader.recorded(),
        **({} if dataset.mirrored is None else {"objects": dataset.mirrored.recorded()}),
        **task,
        "runs": settings.runs,
    }
