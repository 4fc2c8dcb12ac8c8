"""What a worker of Ray Train does: the run that torchrun starts, in a folder of its own whose copies Ray keeps."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import ensure_dataset
from gloader.core.urls import is_url
from gloader.ssd_store.spill.claim import scratch_folder
from gloader.training.dataset_checks import require_dataset
from gloader.training.first_run import compile_first

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gloader.config import ObjectSettings, TrainSettings
    from gloader.dataset import Dataset
    from gloader.training.checkpoint.save import Checkpoint

_LOG = logging.getLogger("gloader")
_PREFIX = "gloader-ray-"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRun:
    """What every worker is told."""

    dataset: str  # a prepared folder with its whole path, the URL of one, or a source
    settings: TrainSettings
    objects: ObjectSettings  # how a dataset at a URL is mirrored
    device: str


def run_worker(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train as one rank of the process group that Ray Train made, and return the content of ``result.json``.

    The run folder is this worker's own and goes with it. Ray is given that of the first worker at every checkpoint,
    and once more with the result; and every worker begins with the last one that Ray was given, where there is one.

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
    """Return what Ray is told with ``checkpoint``. Pure.

    The figures of the epoch that it ends, as they are in ``metrics.jsonl``; in the middle of an epoch that and the
    number of its batches that are behind it.
    """
    progress = checkpoint.progress["progress"]
    epoch, batch = checkpoint.position
    if progress["partial"] is not None:
        return {"epoch": epoch, "batch": batch}
    ended = _plain(progress["epochs"][-1])
    valid = f"valid_{ended.pop('metric')}"
    return {valid if name == "valid_acc" else name: value for name, value in ended.items()}


def _open(run: WorkerRun) -> Dataset:
    """Return the dataset; of a source each machine prepares its own; collective."""
    from gloader.dataset import Dataset
    from gloader.training.group import RankGroup

    group = RankGroup.current()
    path = group.run_on_machines(lambda: _prepared(run))
    dataset = Dataset.open(path, **run.objects.keywords())
    require_dataset(run.settings, dataset)
    group.run_on_machines(lambda: _compile(dataset, run.settings))
    return dataset


def _compile(dataset: Dataset, settings: TrainSettings) -> None:
    """Compile kernels that this machine never had, in a process that gives the memory back that this takes."""
    links = settings.links if settings.task == "link" else None
    compile_first(dataset, settings.loader, says=_LOG.info, links=links)


def _prepared(run: WorkerRun) -> str:
    """Return where the dataset is, once it is there."""
    if is_url(run.dataset):
        return run.dataset
    budget = run.settings.loader.memory.memory_budget
    source, options = SourceOptions(memory_budget_bytes=budget), PrepareOptions(memory_budget_bytes=budget)
    return str(ensure_dataset(run.dataset, source, options))


def _report(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Give Ray the figures, and on the first worker a copy of its folder; collective: Ray waits for every worker."""
    import ray.train

    is_first = ray.train.get_context().get_world_rank() == 0
    checkpoint = ray.train.Checkpoint.from_directory(folder) if is_first else None
    ray.train.report(dict(metrics), checkpoint=checkpoint)


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of ``record`` that are one number or text each. Pure."""
    return {name: value for name, value in record.items() if isinstance(value, int | float | str | None)}
