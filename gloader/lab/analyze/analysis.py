"""A recorded run's analysis, for `gloader analyze`: an epoch's parts, its stalls, and the changes that would help.

A recording (``gloader train --trace``) has each batch's work in each pipeline stage. A replay simulates this work, as
recorded or with changes such as a larger cache (a what-if). A stall is time for which the model waits.

`analyse` finds its results by replays. `verify_stalls` checks the replayed stalls by real training, with the
differential runs of DS-Analyzer and Stash (J. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training",
VLDB 2021): an epoch on batches that stay in memory, an epoch with everything in memory, and an unchanged epoch. There,
a stall is the difference between two consecutive runs.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from itertools import cycle, islice, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.cache.curve import belady_curve, next_use_counts
from gloader.device import open_device
from gloader.errors import BudgetError, ConfigError, ReplayError
from gloader.lab.analyze.findings import CurvePoint, measured_findings, what_if_of
from gloader.lab.analyze.recorded_run import open_recorded_dataset, read_config
from gloader.lab.analyze.trial import open_alone
from gloader.plan.available import available_memory_bytes
from gloader.replay.changes import parse_changes
from gloader.replay.floor import find_floor
from gloader.replay.stalls import find_stalls, mean_parts
from gloader.training.group import RankGroup
from gloader.training.metrics import RunningMetrics
from gloader.training.process import private_randomness, resolve_device
from gloader.training.run_settings import read_train_settings
from gloader.training.train import task_of
from gloader.training.train_step import new_step
from gloader.types import HeteroReadyBatch, LinkBatch, ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import torch

    from gloader.config import LoaderSettings, TrainSettings
    from gloader.dataset import Dataset
    from gloader.lab.analyze.findings import Findings
    from gloader.lab.analyze.predict import Prediction, Predictor
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.replay.changes import Changes
    from gloader.replay.recording import RunHeader
    from gloader.training.task import AnyLoader
    from gloader.types import AnyReadyBatch, Delivered, DeviceBlock


MOST_BATCHES: Final = 200  # largest number of batches in a measurement, which is never longer than one epoch
REPEATS: Final = 3  # measurements per figure, after one that does not count
# The run on batches in memory repeats a few batches, because their sizes differ: at most this number, within this
# memory.
_MOST_KEPT: Final = 4
_KEPT_BYTES: Final = 256 << 20
_OF_FREE_MEMORY: Final = 0.8  # share of free memory for the run with everything in memory


def verify_stalls(run: Path, header: RunHeader) -> dict[str, float]:
    """Train on batches that stay in memory, with everything in memory, and as recorded. Return seconds per epoch.

    Each figure is the median over `REPEATS` measurements with at most `MOST_BATCHES` batches, scaled to an epoch. The
    model is new, and nothing is written.

    Parameters
    ----------
    run : the run's folder
    header : the recording's header

    Returns
    -------
    ``compute_s`` (batches that stay in memory), ``warm_s`` (everything in memory), ``cold_s`` (as recorded), and the
    stalls ``preparation`` (warm less compute) and ``fetch`` (cold less warm). Without ``warm_s`` and stalls if the
    dataset does not fit in memory.

    Raises
    ------
    ConfigError
        There is no run folder with settings, or the run had several ranks or trained embeddings.
    ReplayError
        The dataset is missing or has changed.
    """
    if not run.is_dir():
        raise ConfigError(
            f"to verify, the run is trained again, and {run} is a trace alone; give the folder of the run"
        )
    if header.embeddings:
        raise ConfigError(
            "the run trains embeddings, and only runs without them can be verified; leave --verify out"
        )
    settings = read_train_settings(run)
    # If each rank has its own loader, the recording is one rank's, and only the global batch size shows the others.
    parts = header.state["global_batch_size"] // settings.loader.sampling.batch_size
    ranks = max(header.shape.num_ranks, parts)
    if ranks > 1:
        raise ConfigError(
            f"the run had {ranks} ranks, and only runs of one rank can be verified; leave --verify out"
        )
    device = resolve_device(header.device)
    with closing(open_recorded_dataset(header, read_config(run))) as dataset, private_randomness(device):
        return _StallRuns(dataset, settings, header, device).measure()


class _StallRuns:
    """The three runs of `verify_stalls`, with one network."""

    def __init__(
        self, dataset: Dataset, settings: TrainSettings, header: RunHeader, device: torch.device
    ) -> None:
        self._dataset = dataset
        self._settings = settings
        self._header = header
        self._device = device
        self._task = task_of(settings, dataset)
        self._num_batches = min(header.num_batches, MOST_BATCHES)
        self._step = new_step(self._task, settings, device, RankGroup.alone(), num_steps=header.num_batches)
        self._metrics = RunningMetrics(device, objective=self._task.objective)

    def measure(self) -> dict[str, float]:
        """Return each run's seconds per epoch, and the stalls."""
        as_recorded = self._settings.loader
        budget = self._header.budget_bytes
        # Rows in device memory would leave no room for kept batches.
        with self._open(as_recorded.changed(device_cache=0), loader_bytes=budget) as loader:
            kept = keep_batches(loader)
        figures = {"compute_s": self._timed(cycle(kept))}
        del kept
        try:
            in_memory = as_recorded.changed(
                features="ram",
                topology="ram",
                cache=None,
                superbatch=None,
                memory_budget=int(_OF_FREE_MEMORY * available_memory_bytes()),
            )
            with self._open(in_memory) as loader:
                figures["warm_s"] = self._timed(_stream(loader))
        except BudgetError:
            pass  # the dataset is larger than the memory, so there is no such time
        with self._open(as_recorded, loader_bytes=budget) as loader:
            figures["cold_s"] = self._timed(_stream(loader))
        if "warm_s" in figures:
            figures["preparation"] = figures["warm_s"] - figures["compute_s"]
            figures["fetch"] = figures["cold_s"] - figures["warm_s"]
        return figures

    def _open(self, loader: LoaderSettings, *, loader_bytes: int | None = None) -> AnyLoader:
        """Return a loader with these settings, within ``loader_bytes`` or the rest of the settings' budget."""
        # One more epoch than is measured, so that the stages work ahead until the last measured batch.
        epochs = -(-(1 + REPEATS) * self._num_batches // self._header.num_batches) + 1
        of_epochs = replace(self._settings, loader=loader, optim=replace(self._settings.optim, epochs=epochs))

        def within_bytes(
            dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None, **_: Any
        ) -> AnyLoader:
            """Return the task's loader, with ``loader_bytes`` as its memory budget if given."""
            if loader_bytes is not None:
                settings = settings.changed(memory_budget=loader_bytes)
            return self._task.open_loader(dataset, settings, device_dry_run=device_dry_run)

        return open_alone(self._dataset, of_epochs, self._task, self._device, factory=within_bytes)[1]

    def _timed(self, batches: Iterator[Delivered]) -> float:
        """Return the median seconds per epoch on ``batches``. Each batch is one step; the first round only warms up."""
        device = open_device(self._device)
        seconds = []
        for _ in range(1 + REPEATS):
            began = time.perf_counter()
            for batch in islice(batches, self._num_batches):
                outputs, loss = self._step.take(batch, is_last=False)
                self._metrics.add(batch, outputs, loss)
            device.mark_computing().wait()
            seconds.append(time.perf_counter() - began)
        return median(seconds[1:]) * self._header.num_batches / self._num_batches


def keep_batches(batches: Iterable[Delivered]) -> list[Delivered]:
    """Return the first few ``batches`` with copies of their features, because the loader reuses its memory."""
    kept: list[Delivered] = []
    num_bytes = 0
    for batch in batches:
        copied = _with_own_features(batch)
        kept.append(copied)
        num_bytes += sum(x.numel() * x.element_size() for x in _features(copied))
        if len(kept) == _MOST_KEPT or num_bytes >= _KEPT_BYTES:
            break
    return kept


def _stream(loader: AnyLoader) -> Iterator[Delivered]:
    """Yield the batches in consecutive epochs."""
    while True:
        yield from loader


def _features(batch: Delivered) -> list[torch.Tensor]:
    """Return the node features of a batch, one tensor (U, F) for each node type."""
    inner = batch.batch if isinstance(batch, LinkBatch) else batch
    return [inner.x] if isinstance(inner, ReadyBatch) else list(inner.x.values())


def _with_own_features(batch: Delivered) -> Delivered:
    """Return ``batch`` with copies of its node and edge features; see `keep_batches`."""
    if isinstance(batch, LinkBatch):
        return replace(batch, batch=_own(batch.batch))
    return _own(batch)


def _own(batch: AnyReadyBatch) -> AnyReadyBatch:
    """Return a batch without links, with copies of its features."""
    if isinstance(batch, HeteroReadyBatch):
        blocks = tuple(
            {relation: _own_block(block) for relation, block in hop.items()} for hop in batch.blocks
        )
        return replace(batch, x={name: x.clone() for name, x in batch.x.items()}, blocks=blocks)
    return replace(batch, x=batch.x.clone(), blocks=tuple(map(_own_block, batch.blocks)))


def _own_block(block: DeviceBlock) -> DeviceBlock:
    return block if block.edge_x is None else replace(block, edge_x=block.edge_x.clone())


# The default what-ifs that suit any run: machines to buy, and settings to try.
_DEFAULT_CHANGES: Final = (
    "cache=2x",
    "memory=2x",
    "superbatch=2x",
    "superbatch=16x",
    "superbatch=0.5x",
    "disk=2x",
    "dtype=float16",
)
# Largest number of batches for the miss curve, misses against cache size: twice the largest usual superbatch. (A
# superbatch is the batches for which the host cache is planned together.)
_CURVE_BATCHES: Final = 512
_NUM_POINTS: Final = 24  # points of the curve, besides the first and the present size
# Beyond the curve's knee, another byte of cache saves less than this share of a first byte's savings.
_KNEE: Final = 0.1


def analyse(predictor: Predictor, run: Path, *, what_if: Sequence[Changes] = ()) -> Findings:
    """Return the findings about a recorded run.

    Parameters
    ----------
    predictor : the run's predictor
    run : the run's folder, or the trace
    what_if : requested changes; empty means the default changes

    Raises
    ------
    ConfigError, BudgetError
        The run cannot have a requested change.
    ReplayError
        The run cannot have a requested change, or its batches cannot be sampled again.
    """
    found = measured_findings(predictor, str(run))
    was_asked = bool(what_if)
    if found.refused:
        return replace(found, was_asked=was_asked)
    base, counted = predictor.base, predictor.measured.counted
    floor = find_floor(base.work, base.machine, base.shape, epochs=counted)
    predictions = [predictor.predict(changes) for changes in what_if] if what_if else _useful(predictor)
    predictions.sort(key=lambda one: one.replayed_s)
    curve = _curve(predictor)
    return replace(
        found,
        parts=mean_parts(base.replayed, counted),
        stalls=find_stalls(base.work, base.machine, base.shape, epochs=counted),
        floor_s=floor.seconds,
        floor_of=floor.resource,
        was_asked=was_asked,
        what_if=tuple(what_if_of(one, predictor) for one in predictions),
        curve=curve,
        knee_bytes=_knee(curve),
    )


def _useful(predictor: Predictor) -> list[Prediction]:
    """Return the predictions for the default what-ifs that are possible for the run."""
    header = predictor.recording.header
    threads = header.shape.sampler_threads
    texts = [
        *_DEFAULT_CHANGES,
        *([] if header.device == "cpu" else ["gpu=4x"]),
        f"cores={2 * header.cores}",
        f"threads={threads + 1}",
        *([f"threads={threads - 1}"] if threads > 1 else []),
    ]
    found = []
    for text in texts:
        try:
            found.append(predictor.predict(parse_changes(text)))
        except (BudgetError, ConfigError, ReplayError):
            # For example, a run in memory has no cache, and a run on this machine may lack twice its memory.
            continue
    return found


def _curve(predictor: Predictor) -> tuple[CurvePoint, ...]:
    """Return a host cache's miss rate against its size, with Belady's policy.

    Empty if the features are in memory, if there are several tables, or if the batches cannot be sampled again.
    """
    header = predictor.recording.header
    if header.shape.features != "ssd" or len(header.tables) != 1:
        return ()
    try:
        traces = predictor.replanner.traces(num_batches=_CURVE_BATCHES)[0]
    except ReplayError:
        return ()
    table = header.tables[0]
    counts = next_use_counts(traces, table.num_rows)
    accesses = sum(len(trace) for trace in traces)
    curve = belady_curve(counts, accesses)
    most = int(curve.capacities[-1])
    rows = sorted({most * number // _NUM_POINTS for number in range(_NUM_POINTS + 1)} | {table.cache_rows})
    return tuple(
        CurvePoint(
            cache_bytes=count * table.row_bytes,
            miss_rate=float(curve.misses_at(np.array([count]))[0]) / max(accesses, 1),
        )
        for count in rows
    )


def _knee(curve: Sequence[CurvePoint]) -> int | None:
    """Return the cache bytes beyond which a byte saves less than a tenth of a first byte's savings. Pure.

    None for a curve with fewer than three points.
    """
    if len(curve) < 3:
        return None
    first = (curve[0].miss_rate - curve[1].miss_rate) / max(curve[1].cache_bytes - curve[0].cache_bytes, 1)
    for before, after in pairwise(curve):
        slope = (before.miss_rate - after.miss_rate) / max(after.cache_bytes - before.cache_bytes, 1)
        if slope < _KNEE * first:
            return before.cache_bytes
    return curve[-1].cache_bytes
