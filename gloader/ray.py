"""Training on the workers of a Ray cluster, with the same result as a launch by torchrun.

`train` is the entry point for users. It checks the settings and starts Ray Train. Each worker is one rank and calls
`run_worker`: it prepares the dataset, compiles kernels and trains. `figures_of` makes the figures for Ray's reports.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gloader.config import LINK_TASKS, ObjectSettings
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import ensure_dataset, with_absolute_path
from gloader.convert.registry import is_source
from gloader.core.flag_values import require_choice
from gloader.core.near_names import near_options
from gloader.core.paths import is_url
from gloader.errors import ConfigError, MissingDependencyError
from gloader.ssd_store.spill.claim import scratch_folder
from gloader.training.dataset_checks import require_dataset
from gloader.training.first_run import compile_first
from gloader.training.rendezvous import group_timeout
from gloader.training.run_settings import setting_homes, train_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ray.train import Result

    from gloader.config import TrainSettings
    from gloader.dataset import Dataset
    from gloader.training.checkpoint.save import Checkpoint


_LOG = logging.getLogger("gloader")
_PREFIX = "gloader-ray-"  # begins the names of the workers' temporary folders


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRun:
    """The arguments that every worker receives."""

    dataset: str  # absolute path or URL of a prepared folder, or a source that each machine prepares
    settings: TrainSettings
    objects: ObjectSettings  # settings of the mirror, the local copy of a dataset at a URL
    device: str  # "cpu" or "cuda"


def run_worker(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train as one rank of the process group that Ray Train made, and return the content of ``result.json``.

    The run folder belongs to this worker and is removed with it. Ray receives the first worker's folder at every
    checkpoint, and once more with the result. Every worker begins with Ray's last checkpoint, if there is one.

    Parameters
    ----------
    config : ``{"run": WorkerRun}``: Ray passes a dictionary
    """
    import ray.train

    from gloader.training.train import RunFiles, fit

    run: WorkerRun = config["run"]
    parent = run.settings.loader.memory.spill_dir
    with scratch_folder(parent, prefix=_PREFIX) as claimed, closing(_open(run)) as dataset:
        folder = claimed / "run"
        if (checkpoint := ray.train.get_checkpoint()) is not None:
            checkpoint.to_directory(folder)
        summary = fit(
            dataset,
            run.settings,
            device=run.device,
            files=RunFiles(
                out=folder,
                resume=True,
                is_shared=False,
                on_checkpoint=lambda checkpoint: _report(folder, figures_of(checkpoint)),
            ),
        ).summary
        _report(folder, _plain(summary))
    return summary


def figures_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the figures that Ray receives with ``checkpoint``. Pure.

    At the end of an epoch, they are the epoch's figures in ``metrics.jsonl``. In the middle of an epoch, they are the
    epoch's number and the number of its finished batches.
    """
    # Written by `Trainer`: "partial" has the sums of an unfinished epoch, or None, and "epochs" the finished epochs.
    progress = checkpoint.progress["progress"]
    epoch, batch = checkpoint.position
    if progress["partial"] is not None:
        return {"epoch": epoch, "batch": batch}
    ended = _plain(progress["epochs"][-1])
    # The record names the validation figure "valid_acc" for any metric. Ray gets the metric's own name.
    valid = f"valid_{ended.pop('metric')}"
    return {valid if name == "valid_acc" else name: value for name, value in ended.items()}


def _open(run: WorkerRun) -> Dataset:
    """Open the dataset. From a source, each machine prepares its own copy. Collective: all ranks call it."""
    from gloader.dataset import Dataset
    from gloader.training.group import RankGroup

    group = RankGroup.current()
    path = group.run_on_machines(lambda: _prepared(run))
    dataset = Dataset.open(path, **run.objects.keywords())
    require_dataset(run.settings, dataset)
    group.run_on_machines(lambda: _compile(dataset, run.settings))
    return dataset


def _compile(dataset: Dataset, settings: TrainSettings) -> None:
    """Compile kernels that are new on this machine, in another process. Its end frees the compilation's memory."""
    links = settings.links if settings.task in LINK_TASKS else None
    table = None if settings.table is None else f"{settings.table}.train"
    compile_first(dataset, settings.loader, says=_LOG.info, links=links, table=table)


def _prepared(run: WorkerRun) -> str:
    """Return the path or URL of the prepared dataset. Prepares a source on this machine if necessary."""
    if is_url(run.dataset):
        return run.dataset
    budget = run.settings.loader.memory.memory_budget
    source, options = SourceOptions(memory_budget_bytes=budget), PrepareOptions(memory_budget_bytes=budget)
    return str(ensure_dataset(run.dataset, source, options))


def _report(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Report figures to Ray, and on the first worker a copy of its run folder. Collective: Ray waits for all."""
    import ray.train

    is_first = ray.train.get_context().get_world_rank() == 0
    checkpoint = ray.train.Checkpoint.from_directory(folder) if is_first else None
    ray.train.report(dict(metrics), checkpoint=checkpoint)


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of ``record`` whose value is one number, one text or None. Pure."""
    return {name: value for name, value in record.items() if isinstance(value, int | float | str | None)}


__all__ = ["train"]

_OBJECTS = tuple(field.name for field in fields(ObjectSettings))  # keywords of `train` for the mirror
_PLACEMENTS = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")
# Size of the object store if this process starts Ray. Ray's default is 30% of the memory, and a run stores no objects.
_OBJECT_STORE_BYTES: Final = 100_000_000
_STATISTICS: Final = "RAY_USAGE_STATS_ENABLED"  # environment variable; "0" turns Ray's usage statistics off


@near_options("train", (*_OBJECTS, *setting_homes()))
def train(
    *,
    dataset: str | os.PathLike[str],
    num_workers: int,
    use_gpu: bool = False,
    resources_per_worker: Mapping[str, float] | None = None,
    placement_strategy: str = "SPREAD",
    storage_path: str | os.PathLike[str] | None = None,
    name: str | None = None,
    max_failures: int = 0,
    **settings: Any,
) -> Result:
    """Train on the workers of a Ray cluster, and return Ray Train's result of the run.

    Each worker is a rank, like a rank of `torchrun ... -m gloader train`: the batches, losses and checkpoints are the
    same. After every epoch, Ray receives the epoch's figures and the run folder as a checkpoint. With
    ``checkpoint_every``, Ray also receives them in the middle of an epoch. If a worker is lost, Ray starts all workers
    again, and they continue from the last reported checkpoint. A call with the ``storage_path`` and ``name`` of an
    earlier call continues in the same way.

    ``result.checkpoint`` is the run folder: ``config.yaml``, ``metrics.jsonl``, ``result.json`` and the weights, for
    ``gloader infer --checkpoint``. ``result.return_value`` is the content of ``result.json``.

    If this process is connected to Ray, that cluster is used. Otherwise the cluster of ``RAY_ADDRESS`` or of this
    machine is used. If there is none, Ray is started on this machine for the run, with a small object store and without
    usage statistics.

    Parameters
    ----------
    dataset : a prepared folder with the same path on every machine, its URL, or a source that each machine prepares
    num_workers : number of ranks
    use_gpu : whether each worker has a GPU; otherwise all train on CPUs
    resources_per_worker : reserved for each worker, such as ``{"CPU": 4}``; defaults to one CPU, and with ``use_gpu``
        also one GPU
    placement_strategy : "SPREAD" over the machines, "PACK" onto few of them, or either with ``STRICT_`` before it
    storage_path : a folder that all machines see, or a URL to which pyarrow writes (``s3://``, ``gs://``); defaults to
        ~/ray_results, which suffices for a single machine
    name : the run's name, a folder in ``storage_path``; defaults to a name with the time
    max_failures : number of times that lost workers are replaced; -1 means always
    **settings : the flags of `gloader train` with underscores, such as ``model="graphsage"``, ``epochs=10``,
        ``batch_size=1024`` (per rank), ``memory_budget="8GB"`` (per machine). ``--fanout`` is called ``fanouts``

    Raises
    ------
    TypeError
        There is no such setting.
    ConfigError
        A setting is not allowed; raised before anything is started.
    MissingDependencyError
        Ray Train is not installed.
    ray.train.TrainingFailedError
        The run failed on a worker more often than ``max_failures`` allows; holds each worker's error.
    """
    object_keywords = {name: settings.pop(name) for name in _OBJECTS if name in settings}
    checked = _checked(train_settings(settings), num_workers=num_workers)
    objects = ObjectSettings.of(**object_keywords)
    require_choice("placement_strategy", placement_strategy, _PLACEMENTS)
    if max_failures < -1:
        raise ConfigError(f"max_failures is {max_failures}; allowed: -1 (start again always), 0 or more")
    run = WorkerRun(
        dataset=_for_workers(dataset),
        settings=checked,
        objects=replace(objects, mirror_dir=_absolute_path(objects.mirror_dir)),
        device="cuda" if use_gpu else "cpu",
    )
    _require_ray()
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    with _connected():
        return TorchTrainer(
            run_worker,
            train_loop_config={"run": run},
            # NCCL sends tensors between GPUs. gloo sends data on the CPU: settings and figures.
            torch_config=TorchConfig(
                backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo",
                timeout_s=int(group_timeout(checked.loader.stages.stall_timeout_s).total_seconds()),
            ),
            scaling_config=ScalingConfig(
                num_workers=num_workers,
                use_gpu=use_gpu,
                resources_per_worker=None if resources_per_worker is None else dict(resources_per_worker),
                placement_strategy=placement_strategy,
            ),
            run_config=RunConfig(
                name=name,
                storage_path=None if storage_path is None else _absolute(storage_path),
                failure_config=FailureConfig(max_failures=max_failures),
                # A run folder is continued only from its last checkpoint.
                checkpoint_config=CheckpointConfig(num_to_keep=1),
            ),
        ).fit()


def _require_ray() -> None:
    try:
        import ray.train.torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError.of_extra(f"gloader.ray needs Ray Train ({error})", "ray") from error


@contextmanager
def _connected() -> Iterator[None]:
    """Connect to a Ray cluster inside the block: the connected one, else a running one, else a new one.

    A connection that is made here is closed at the end. An existing connection stays.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address="auto")
    except ConnectionError:
        _start_ray()
    try:
        yield
    finally:
        ray.shutdown()


def _start_ray() -> None:
    """Start Ray on this machine, without usage statistics unless the user's environment allows them."""
    import ray

    user_setting = os.environ.get(_STATISTICS)
    # The started processes read the variable.
    os.environ.setdefault(_STATISTICS, "0")
    try:
        ray.init(address="local", object_store_memory=_OBJECT_STORE_BYTES, include_dashboard=False)
    finally:
        if user_setting is None:
            del os.environ[_STATISTICS]


def _checked(settings: TrainSettings, *, num_workers: object) -> TrainSettings:
    """Return checked ``settings`` with absolute paths, because workers have another working folder.

    Raises ConfigError for an invalid setting.
    """
    from gloader.training.replica import check_step
    from gloader.training.train_step import check_optim

    # Ray also accepts a range of workers, but another number of ranks changes the batches.
    if not isinstance(num_workers, int) or isinstance(num_workers, bool) or num_workers < 1:
        raise ConfigError(f"num_workers is {num_workers!r}; allowed: 1 or more")
    settings.loader.check()
    check_optim(settings.optim)
    check_step(settings.step, world_size=num_workers)
    spill_dir = _absolute_path(settings.loader.memory.spill_dir)
    return replace(settings, loader=settings.loader.changed(spill_dir=spill_dir))


def _for_workers(dataset: str | os.PathLike[str]) -> str:
    """Return ``dataset`` with an absolute path, because workers have another working folder."""
    spec = os.fspath(dataset)
    return with_absolute_path(spec) if is_source(spec) else _absolute(spec)


def _absolute(place: str | os.PathLike[str]) -> str:
    """Return a URL unchanged, and any other path as an absolute path."""
    text = os.fspath(place)
    return text if "://" in text else str(_absolute_path(Path(text)))


def _absolute_path(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().absolute()
