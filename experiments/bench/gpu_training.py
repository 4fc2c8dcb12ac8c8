"""Whole runs on the device beside one on the CPU: all end, are as accurate, and wait neither for evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpu_findings import GpuFinding, bounded, reported
from gpu_place import devices_opened_as, rehearsing

from gloader import Dataset
from gloader.config import LoaderSettings, ModelConfig, OptimConfig, StepConfig, TrainSettings
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.training.train import fit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes

POINTS: Final = 0.5  # of accuracy between the device and the CPU
# Name of the run, network, and how it steps.
RUNS: Final[tuple[tuple[str, Any, dict[str, Any]], ...]] = (
    ("graphsage", "graphsage", {}),
    ("gcn", "gcn", {}),
    ("gat, bf16", "gat", {"autocast": "bf16"}),
    ("graphsage, compiled", "graphsage", {"compile": True}),
)


def check_training(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Train two epochs on a graph with communities, which features alone do not tell apart."""
    nodes, edges = (100_000, 2_000_000) if sizes.is_gpu else (2000, 20_000)
    path = sizes.workdir / "community"
    source = f"synthetic:community,nodes={nodes},edges={edges},dim=64,classes=16,seed=5"
    prepare(open_source(source, SourceOptions()), path, PrepareOptions())
    dataset = Dataset.open(path)
    accuracy = None
    for run in clock.each(RUNS if sizes.is_gpu else RUNS[:-1], lambda run: run[0]):
        name, model, step = run
        found = _train(dataset, sizes, model, step, on_cpu=False)
        note = f"evaluation {max(found['evaluate_seconds']):.2f} s"
        yield reported(f"training {name}: an epoch", min(found["epoch_seconds"]), "s", note=note)
        if accuracy is None:
            accuracy = _train(dataset, sizes, model, step, on_cpu=True)["test_acc"]
            apart = 100 * abs(found["test_acc"] - accuracy)
            note = f"{100 * found['test_acc']:.1f} % and {100 * accuracy:.1f} %"
            title = f"training {name}: accuracy beside the CPU's"
            yield bounded(title, apart, "points", most=POINTS, is_right=False, note=note, predicted="so")
        seconds = min(found["evaluate_seconds"]) / min(found["epoch_seconds"])
        yield bounded(f"training {name}: an evaluation", seconds, "epochs", most=1, predicted="less than 1")


def _train(
    dataset: Dataset, sizes: Sizes, model: Any, step: dict[str, Any], *, on_cpu: bool
) -> dict[str, Any]:
    settings = TrainSettings(
        model=ModelConfig(name=model, hidden=sizes.hidden // 2),
        optim=OptimConfig(epochs=2),
        step=StepConfig(**step),
        loader=LoaderSettings.of(fanouts=(10, 10), batch_size=sizes.batch_size, memory_budget="2GB"),
    )
    is_rehearsed = not (on_cpu or sizes.is_gpu)
    with devices_opened_as(rehearsing() if is_rehearsed else None):
        return fit(dataset, settings, device="cpu" if on_cpu else str(sizes.place)).summary
