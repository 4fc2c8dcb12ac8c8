"""`gloader autotune`: faster settings for a run, searched on a replay and then measured.

A recording holds the events of a few batches, and a replay predicts their time with other settings. The command opens
a run that was recorded before (`recorded_run`), or records one (`calibration_run`). Then it searches settings on the
replay, trains a few batches with the best ones, and writes a recipe: a YAML file for `gloader train --config`.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from rich.table import Table

from gloader.cli.ranks import RankLaunch
from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, cell, numbers
from gloader.cli.train import open_or_prepare
from gloader.config import (
    LINK_TASKS,
    LinkConfig,
    LoaderSettings,
    ModelConfig,
    ObjectSettings,
    OptimConfig,
    StepConfig,
    TaskName,
    TrainSettings,
)
from gloader.core.flag_values import Count
from gloader.core.units import format_bytes, format_exact_seconds
from gloader.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from gloader.dataset import Dataset
    from gloader.lab.analyze.predict import Predictor
    from gloader.lab.analyze.trial import Autotuned, RunExtent, Trial


_SCRATCH_PREFIX = "gloader-autotune-"  # name of the temporary folder for a recording
# Limit for a recording, in seconds. At this limit, the last epoch ends early.
_MOST_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedRun:
    """A recording, and all that is needed to train its batches again."""

    name: str  # name of the run on the screen
    predictor: "Predictor"
    dataset: "Dataset"
    spec: str  # the dataset, in a recipe's form
    settings: TrainSettings  # the run's settings, with its memory budget
    device: "torch.device"
    extent: "RunExtent"  # numbers of epochs and batches that each measurement trains

    @property
    def unit(self) -> str:
        """The batches that predicted and measured seconds are about, as text."""
        taken, whole = self.extent.num_batches, self.predictor.recording.header.num_batches
        return "an epoch" if taken == whole else f"the first {taken:,} of {whole:,} batches"


@contextmanager
def recorded_run(run: Path, screen: Screen) -> Iterator[TunedRun]:
    """Open a recorded run, and train a step or two, so that the process's one-time work precedes measurements.

    Parameters
    ----------
    run : the run's folder
    screen : shows the progress

    Raises
    ------
    ConfigError
        There is no run folder with settings, or the run had several ranks.
    ReplayError
        There is no recording, or its dataset has changed.
    """
    from gloader.lab.analyze.machines import RunMemory
    from gloader.lab.analyze.predict import open_run
    from gloader.lab.analyze.recorded_run import open_recorded_dataset, read_config
    from gloader.lab.analyze.trial import RunExtent, warm_up
    from gloader.training.process import resolve_device
    from gloader.training.run_settings import read_train_settings

    if run.exists() and not run.is_dir():
        raise ConfigError(
            f"autotune trains the run again and needs its folder, and {run} is no folder; give the run's folder"
        )
    with open_run(run) as predictor:
        header = predictor.recording.header
        if header.shape.num_ranks > 1:
            raise ConfigError(
                f"the run had {header.shape.num_ranks} ranks, and only runs of one rank can be tuned; record one "
                "without torchrun"
            )
        predictor.require_trust()  # a replay that is unlike the recorded run cannot predict
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
                extent=RunExtent.of_recording(predictor.measured, predictor.base.work),
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
    """Record a run for the search, in a temporary folder that is removed after the block.

    Parameters
    ----------
    spec : the dataset, see `open_or_prepare`
    given : the run's settings
    screen : shows the progress
    device : "auto", or a torch device
    num_batches : approximate number of recorded batches
    objects : settings for the mirror of a dataset at a URL

    Raises
    ------
    ConfigError, BudgetError
        A setting is not allowed, or memory does not suffice.
    """
    budget = given.loader.memory.memory_budget
    with open_or_prepare(spec, screen, memory_budget=budget, objects=objects) as dataset:
        from gloader.training.first_run import compile_first

        of_links = given.links if given.task in LINK_TASKS else None
        compile_first(dataset, given.loader, says=screen.say, links=of_links)

        from gloader.lab.analyze.predict import open_run
        from gloader.ssd_store.spill.claim import scratch_folder
        from gloader.training.process import resolve_device

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
) -> "tuple[TrainSettings, RunExtent]":
    """Record a few batches in ``folder``.

    Returns the settings with the run's memory budget, and the number of epochs and batches in the recording.
    """
    from gloader.lab.analyze.predict import TRACE
    from gloader.lab.analyze.trial import RunExtent, run_short, warm_up
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
        extent=RunExtent.of_about(num_batches, epoch_batches=warm.epoch_batches),
        most_s=_MOST_S,
        trace=folder / TRACE,
    )
    # The recorded loader planned no work beyond its last epoch. The stored settings have the same last epoch, so that
    # a replay with a new plan does the same.
    short = replace(settings, optim=replace(settings.optim, epochs=taken.extent.num_epochs))
    RunFolder(folder).write_config(run_config(short, dataset))
    return settings, taken.extent


_MODEL, _OPTIM, _STEP, _LOADER = ModelConfig(), OptimConfig(), StepConfig(), LoaderSettings()
_LINKS, _OBJECTS = LinkConfig(), ObjectSettings()


@Parameter(name="*", group=Group("Tuning", sort_key=0))
@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFlags:
    """Flags for the search, its duration, and the recipe."""

    dataset: str | None = None
    """Instead of RUN: a prepared folder, the URL of one, or a source of `gloader prepare`; a few batches are recorded
    first, with the settings below."""
    config: Path | None = None
    """A YAML recipe with these flags as keys. Flags on the command line take precedence."""
    task: TaskName = "node"
    """With --dataset: prediction of node classes (node) or of edges (link)."""
    device: str = "auto"
    """With --dataset: auto, cpu or cuda:0."""
    out: Path = Path("recipe.yaml")
    """The new recipe, for `gloader train --config`."""
    batches: Annotated[Count, Parameter(metavar="N")] = 64
    """With --dataset: approximate number of recorded and measured batches; shorter epochs are run whole."""
    rounds: Annotated[Count, Parameter(metavar="N")] = 3
    """Measurements of the best settings and of the first ones, in turns."""


_FLAGS = TuneFlags()


def autotune(  # noqa: PLR0913 - a run, or all that makes one
    run: Path | None = None,
    /,
    *,
    tuning: TuneFlags = _FLAGS,
    model: ModelConfig = _MODEL,
    optim: OptimConfig = _OPTIM,
    step: StepConfig = _STEP,
    loader: LoaderSettings = _LOADER,
    links: LinkConfig = _LINKS,
    objects: ObjectSettings = _OBJECTS,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Search faster settings on the replay of a run, measure them against the run's own, and write a recipe.

    The search varies threads, superbatches, the cache's part of the memory, and the way of reading. The memory budget
    and the batches stay the same. `gloader train --config recipe.yaml` trains with the new settings.

    Parameters
    ----------
    run
        The folder of a run of `gloader train --trace`; or give --dataset, and flags of `gloader train`.
    tuning
        The run or dataset to tune, the number of measurements, and the file of the recipe.
    model, optim, step, loader, links
        With --dataset: the settings of the run to tune.
    objects
        Settings for the mirror of a dataset at a URL.
    output
        Output flags.
    """
    given = TrainSettings(model=model, optim=optim, step=step, loader=loader, task=tuning.task, links=links)
    screen = Screen.open(is_json=output.json)
    _require_one_process()
    _require_one_source(run, tuning, given)

    from gloader.cli.recipe import recipe_of
    from gloader.replay.floor import require_solver
    from gloader.ssd_store.write.atomic_file import require_file_target, write_atomically

    require_solver()
    require_file_target(tuning.out)
    opened = (
        recorded_run(run, screen)
        if run is not None
        else calibration_run(
            str(tuning.dataset),
            given,
            screen,
            device=tuning.device,
            num_batches=tuning.batches,
            objects=objects,
        )
    )
    with opened as tuned:
        result, search_s = _tuned(tuned, screen, rounds=tuning.rounds)
        recipe = recipe_of(
            result.kept.settings, tuned.dataset, spec=tuned.spec, remarks=_remarks(tuned, result)
        )
    write_atomically(tuning.out, recipe.encode())
    if not screen.is_json:
        _show(screen, tuned, result, search_s=search_s)
    screen.say(f"\nrecipe in {tuning.out}: gloader train --config {tuning.out}")
    screen.result(
        {
            **result.to_json(),
            "search_s": search_s,
            "memory_budget_bytes": tuned.settings.loader.memory.memory_budget,
            "recipe": str(tuning.out),
        }
    )


def _tuned(tuned: TunedRun, screen: Screen, *, rounds: int) -> "tuple[Autotuned, float]":
    """Search and measure; return the result and the seconds of the search."""
    from gloader.lab.analyze.autotune import tune
    from gloader.lab.analyze.trial import measure_best

    began = time.perf_counter()
    with screen.console.status("replaying with other settings"):
        searched = tune(tuned.predictor)
    search_s = time.perf_counter() - began
    with screen.console.status("measuring") as status:
        result = measure_best(
            searched,
            tuned.dataset,
            tuned.settings,
            device=tuned.device,
            extent=tuned.extent,
            rounds=rounds,
            says=status.update,
        )
    return result, search_s


def _require_one_process() -> None:
    """Raise ConfigError if torchrun started several processes."""
    if RankLaunch.from_environ().world_size > 1:
        raise ConfigError("gloader autotune trains in one process; start it without torchrun")


def _require_one_source(run: Path | None, tuning: TuneFlags, given: TrainSettings) -> None:
    """Raise ConfigError unless exactly one run or dataset is given."""
    if run is None:
        if tuning.dataset is None:
            raise ConfigError("nothing is given to tune: give the folder of a recorded run, or --dataset")
        return
    dataset_flags = (tuning.dataset, tuning.config, tuning.device, tuning.batches)
    if given != TrainSettings() or dataset_flags != (None, None, _FLAGS.device, _FLAGS.batches):
        raise ConfigError(
            f"with a recorded run, only --out and --rounds are allowed, the rest is as in {run}; leave other flags "
            f"out, or give --dataset instead of {run}"
        )


def _show(screen: Screen, tuned: TunedRun, result: "Autotuned", *, search_s: float) -> None:
    """Write the predicted and measured seconds, the floor, and the verdict.

    The floor is the least possible time, and its resource is busy all this time. Misfits are predicted settings that
    could not be measured.
    """
    best, searched = result.best, result.tuned.searched
    table = numbers("predicted", "measured", first=tuned.unit)
    _add_row(table, "as it was", result.start)
    if best is not None:
        _add_row(table, best.change, best)
    screen.console.print(table)
    floor = result.tuned.floor
    from gloader.lab.analyze.findings import resource_words

    others, search = len(searched.tried) - 1, format_exact_seconds(search_s)
    screen.say(f"\n{others} other setting{'' if others == 1 else 's'} replayed in {search}")
    end = "; nothing can be much faster" if searched.is_at_floor else ""
    needed = f"no mixture of what was tried takes {resource_words(floor.resource)} less{end}"
    screen.say(f"floor {format_exact_seconds(floor.seconds)}: {needed}")
    for misfit in result.misfits:
        screen.say(f"not measured, as it does not fit: {misfit}")
    if best is None:
        screen.say("nothing that was tried is predicted to be faster")
    if result.contradiction:
        screen.say(result.contradiction)
    if best is not None and result.kept is not best:
        screen.say("the start was measured to be faster: the recipe has its settings")
    memory = tuned.settings.loader.memory.memory_budget
    if memory is not None:
        screen.say(f"memory budget as it was: {format_bytes(memory)}")


def _add_row(table: Table, name: str, trial: "Trial") -> None:
    """Add a row with a trial's predicted and measured seconds, and with their range if it was measured repeatedly."""
    measured = format_exact_seconds(trial.seconds)
    if len(trial.measured_s) > 1:
        least, most = min(trial.measured_s), max(trial.measured_s)
        measured += f" ({format_exact_seconds(least)} to {format_exact_seconds(most)})"
    table.add_row(cell(name), cell(format_exact_seconds(trial.predicted_s)), cell(measured))


def _remarks(tuned: TunedRun, result: "Autotuned") -> list[str]:
    """Return the comment lines of a recipe."""
    kept, before = result.kept, result.start
    took = (
        f"predicted {format_exact_seconds(kept.predicted_s)}, measured {format_exact_seconds(kept.seconds)}"
    )
    return [
        f"gloader autotune of {tuned.name}: {kept.change or 'its own settings'}",
        f"{took} {tuned.unit}; it took {format_exact_seconds(before.seconds)} before",
    ]
