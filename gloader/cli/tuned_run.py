"""What `gloader autotune` tunes: a run that was recorded before, or one that is recorded now."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.cli.train import open_or_prepare
from gloader.cli.views.screen import Screen
from gloader.config import ObjectSettings, TrainSettings
from gloader.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from gloader.dataset import Dataset
    from gloader.lab.analyze.predicts import Predicts
    from gloader.lab.analyze.short_run import Extent

_SCRATCH_PREFIX = "gloader-autotune-"
_MOST_S = 30.0  # that the recording may take; an epoch that is under way then ends where it is


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedRun:
    """A recording, and all that it takes to train the same again."""

    name: str  # for people
    predictor: "Predicts"
    dataset: "Dataset"
    spec: str  # of the dataset, as a recipe has it
    settings: TrainSettings  # with the memory budget that the run had
    device: "torch.device"
    extent: "Extent"  # of what is to be measured

    @property
    def unit(self) -> str:
        """What its seconds are of."""
        taken, whole = self.extent.num_batches, self.predictor.recording.header.num_batches
        return "an epoch" if taken == whole else f"the first {taken:,} of {whole:,} batches"


@contextmanager
def recorded_run(run: Path, screen: Screen) -> Iterator[TunedRun]:
    """Have the run in a folder.

    Raises
    ------
    ConfigError
        There is no folder of a run with its settings, or it had several ranks.
    ReplayError
        There is no recording, or its dataset is another one by now.
    """
    from gloader.lab.analyze.machines import RunMemory
    from gloader.lab.analyze.predict import open_run
    from gloader.lab.analyze.recorded_stream import open_recorded_dataset, read_config
    from gloader.lab.analyze.short_run import Extent, warm_up
    from gloader.training.own_device import resolve_device
    from gloader.training.recorded_settings import read_train_settings

    if run.exists() and not run.is_dir():
        raise ConfigError(
            f"to measure, a run is trained again, and {run} is no folder of one; give the folder"
        )
    with open_run(run) as predictor:
        header = predictor.recording.header
        if header.shape.num_ranks > 1:
            raise ConfigError(
                f"the run had {header.shape.num_ranks} ranks, and only runs of one rank can be tuned; record one "
                "without torchrun"
            )
        predictor.require_trust()
        settings = read_train_settings(run)
        total = RunMemory.of_run(run, header).total_bytes
        settings = replace(settings, loader=settings.loader.changed(memory_budget=total))
        with closing(open_recorded_dataset(header, read_config(run))) as dataset:
            device = resolve_device(header.device)
            with screen.console.status("warming up"):
                warm_up(dataset, settings, device=device)
            yield TunedRun(
                name=str(run),
                predictor=predictor,
                dataset=dataset,
                spec=dataset.location,
                settings=settings,
                device=device,
                extent=Extent.of_recording(predictor.measured, predictor.base.work),
            )


@contextmanager
def calibration_run(
    spec: str,
    given: TrainSettings,
    screen: Screen,
    *,
    device: str,
    num_batches: int,
    objects: ObjectSettings,
) -> Iterator[TunedRun]:
    """Have a run that is recorded first.

    Parameters
    ----------
    spec : of the dataset, as of `open_or_prepare`
    given : settings of the run
    screen : shows what is done
    device : "auto", or a torch device
    num_batches : that are recorded, about
    objects : how a dataset at a URL is mirrored

    Raises
    ------
    ConfigError, BudgetError
        A setting is not allowed, or memory does not suffice.
    """
    budget = given.loader.memory.memory_budget
    with open_or_prepare(spec, screen, memory_budget=budget, objects=objects) as dataset:
        from gloader.training.first_run import compile_first

        of_links = given.links if given.task == "link" else None
        compile_first(dataset, given.loader, says=screen.say, links=of_links)

        from gloader.lab.analyze.predict import open_run
        from gloader.ssd_store.spill.claim import scratch_folder
        from gloader.training.own_device import resolve_device

        target = resolve_device(device)
        with scratch_folder(given.loader.memory.spill_dir, prefix=_SCRATCH_PREFIX) as folder:
            with screen.console.status("recording"):
                settings, extent = _record(dataset, given, folder, target, num_batches=num_batches)
            with open_run(folder) as predictor:
                yield TunedRun(
                    name=dataset.name,
                    predictor=predictor,
                    dataset=dataset,
                    spec=spec,
                    settings=settings,
                    device=target,
                    extent=extent,
                )


def _record(
    dataset: "Dataset", given: TrainSettings, folder: Path, device: "torch.device", *, num_batches: int
) -> "tuple[TrainSettings, Extent]":
    """Record a few batches in ``folder``; return their settings, with the memory that they had, and how many."""
    from gloader.lab.analyze.predict import TRACE
    from gloader.lab.analyze.short_run import Extent, run_short, warm_up
    from gloader.training.run_folder import RunFolder
    from gloader.training.train import resolved_settings, run_config

    settings = resolved_settings(given, dataset)
    warm = warm_up(dataset, settings, device=device)
    total = warm.budget.total_bytes
    settings = replace(settings, loader=settings.loader.changed(memory_budget=total))
    taken = run_short(
        dataset,
        settings,
        device=device,
        extent=Extent.of_about(num_batches, epoch_batches=warm.epoch_batches),
        most_s=_MOST_S,
        trace=folder / TRACE,
    )
    # A loader that knows its last epoch plans nothing behind it, and neither may whoever plans it again.
    short = replace(settings, optim=replace(settings.optim, epochs=taken.extent.num_epochs))
    RunFolder(folder).write_config(run_config(short, dataset))
    return settings, taken.extent
