"""Runs that learn binary labels, several labels or values: from settings to results, predictions and resumed runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from gloader.cli.main import main
from gloader.config import LinkConfig, LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.errors import BudgetError, CheckpointError, ConfigError, DivergedError, StateError
from gloader.lab.analyze.recorded_run import plan_recorded_seeds, recorded_settings, require_same_stream
from gloader.loader import Loader
from gloader.replay.recording import read_recording
from gloader.training import node_task, train
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.predict import predict, predictions
from gloader.training.run_settings import read_train_settings
from gloader.training.scores import METRICS
from gloader.training.train import FitResult, RunFiles

if TYPE_CHECKING:
    from pathlib import Path

MODEL = ModelConfig(name="graphsage", hidden=16, dropout=0.2)
OPTIM = OptimConfig(epochs=4, lr=0.02)
LOADER = LoaderSettings.of(fanouts=(4, 4), batch_size=32, threads=1, memory_budget=400_000_000)
BATCHES = 5  # of 144 training nodes


@pytest.fixture(scope="module")
def of_kind(communities: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """The communities with other labels of their classes: one class against the others, all three, and numbers."""
    held = communities.to_numpy()
    classes, root = held.pop("labels"), tmp_path_factory.mktemp("kinds")
    rng = np.random.default_rng(1)
    bits = np.eye(3, dtype=np.float32)[classes]
    bits[:, 1:][rng.random((len(bits), 2)) < 0.2] = np.nan
    values = np.stack([classes - 0.5, rng.normal(size=len(classes)) + 3 * classes], axis=1)
    labels = {
        "two": (classes == 0).astype(np.int64),
        "binary": (classes == 0)[:, None].astype(np.float32),
        "multilabel": bits,
        "values": values.astype(np.float32),
    }
    return {
        name: Dataset.from_numpy(
            root / name, labels=array, labels_as=None if array.ndim == 1 else "values", **held
        )
        for name, array in labels.items()
    }


def fit(
    dataset: Dataset, *, task: str = "node", metric: str = "auto", optim: OptimConfig = OPTIM,
    loader: LoaderSettings = LOADER, model: ModelConfig = MODEL, **files: Any,
) -> FitResult:  # fmt: skip
    settings = TrainSettings(
        model=model,
        optim=optim,
        loader=loader,
        task=task,
        links=LinkConfig(metric=metric),  # type: ignore[arg-type]
    )
    return train.fit(dataset, settings, files=RunFiles(**files))


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _predicted(dataset: Dataset, folder: Path, **options: Any) -> tuple[tuple[str, ...], np.ndarray]:
    with predictions(dataset, load_checkpoint(folder), **options) as made:
        return made.names, np.concatenate(list(made.chunks))


@pytest.mark.parametrize(
    ("labels", "task", "name", "metric"),
    [
        ("binary", "node", "binary", "auroc"),
        ("two", "binary", "binary", "auroc"),
        ("multilabel", "node", "multilabel", "auroc"),
        ("multilabel", "multilabel", "multilabel", "f1"),
        ("values", "regression", "regression", "rmse"),
        ("values", "node", "regression", "r2"),
    ],
)
def test_a_run_learns_its_labels_and_predicts_them(of_kind, tmp_path, labels, task, name, metric) -> None:
    dataset = of_kind[labels]
    optim = replace(OPTIM, epochs=8)
    fit(dataset, task=task, metric=metric, optim=optim, out=tmp_path)
    lines, result = _lines(tmp_path), json.loads((tmp_path / "result.json").read_text())
    assert (result["task"], result["metric"]) == (name, metric)
    best = min if metric == "rmse" else max
    assert result[f"valid_{metric}"] == best(line[f"valid_{metric}"] for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert [line["train_acc"] is None for line in lines] == [name == "regression"] * 8
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["kind"] == ("binary" if labels == "two" else dataset.label_kind)
    assert scores["metrics"][metric] == pytest.approx(result[f"test_{metric}"], abs=1e-6)
    # The metric of the run is that of the written predictions.
    names, rows = _predicted(dataset, tmp_path)
    known = dataset.labels_of(dataset.test)
    measured = METRICS[metric].compute(rows[dataset.test].reshape(known.shape), known)  # type: ignore[operator]
    assert measured.value == pytest.approx(result[f"test_{metric}"], abs=1e-6)
    assert len(names) == rows.shape[1] == dataset.label_width
    if metric == "auroc":
        assert result["test_auroc"] > 0.75
    with pytest.raises(ConfigError, match=f"the checkpoint is of the task {name}, and predicts no classes"):
        predict(dataset, load_checkpoint(tmp_path))


def test_probabilities_of_classes_have_the_predicted_class_as_their_highest(communities, tmp_path) -> None:
    fit(communities, out=tmp_path)
    names, rows = _predicted(communities, tmp_path, probabilities=True)
    assert names == ("probability_0", "probability_1", "probability_2")
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-5)
    one, classes = _predicted(communities, tmp_path)
    assert (one, classes.dtype) == (("class",), np.int64)
    assert np.array_equal(rows.argmax(axis=1), classes[:, 0])
    assert np.array_equal(classes[:, 0], predict(communities, load_checkpoint(tmp_path)))


def test_the_command_trains_and_writes_what_the_task_predicts(of_kind, tmp_path, capsys) -> None:
    root, run = str(of_kind["multilabel"].root), str(tmp_path / "run")
    words = [
        "--fanout",
        "4,4",
        "--batch-size",
        "32",
        "--hidden",
        "16",
        "--epochs",
        "2",
        "--memory-budget",
        "400MB",
    ]
    assert main(["train", "--dataset", root, "--out", run, *words]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "train valid auroc rows/s" in screen
    assert "test auroc" in screen
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["task"], config["metric"]) == ("multilabel", "auroc")
    # config.yaml is a recipe of the same run.
    again = str(tmp_path / "again")
    assert main(["train", "--config", f"{run}/config.yaml", "--out", again]) == 0
    assert _losses_of(tmp_path / "again") == _losses_of(tmp_path / "run")
    capsys.readouterr()
    out = tmp_path / "predictions.npy"
    assert main(["infer", "--dataset", root, "--checkpoint", run, "--out", str(out)]) == 0
    assert "probabilities of 240 nodes" in " ".join(capsys.readouterr().out.split())
    written = np.load(out)
    assert (written.shape, written.dtype) == ((240, 3), np.float32)
    np.testing.assert_array_equal(written, _predicted(of_kind["multilabel"], tmp_path / "run")[1])


def _losses_of(folder: Path) -> list[float]:
    return [line["loss"] for line in _lines(folder)]


def test_binary_probabilities_are_one_number_per_node(of_kind, tmp_path, capsys) -> None:
    fit(of_kind["binary"], out=tmp_path / "run", optim=replace(OPTIM, epochs=1))
    words = [
        "infer",
        "--dataset",
        str(of_kind["binary"].root),
        "--checkpoint",
        str(tmp_path / "run"),
        "--out",
    ]
    assert main([*words, str(tmp_path / "p.npy"), "--probabilities"]) == 0
    written = np.load(tmp_path / "p.npy")
    assert written.shape == (240,)
    assert ((written > 0) & (written < 1)).all()
    fit(of_kind["values"], out=tmp_path / "values", optim=replace(OPTIM, epochs=1))
    capsys.readouterr()
    words = [
        "infer",
        "--dataset",
        str(of_kind["values"].root),
        "--checkpoint",
        str(tmp_path / "values"),
        "--out",
    ]
    assert main([*words, str(tmp_path / "v.npy"), "--probabilities"]) == 2
    assert (
        "predicts values, which have no probabilities; leave --probabilities out" in capsys.readouterr().err
    )
    assert not (tmp_path / "v.npy").exists()


def test_classes_have_another_metric_too(communities, tmp_path) -> None:
    found = fit(communities, metric="f1-macro", out=tmp_path)
    assert {"valid_f1-macro", "train_acc"} <= set(_lines(tmp_path)[0])
    _, rows = _predicted(communities, tmp_path)
    known = communities.labels_of(communities.test)
    expected = METRICS["f1-macro"].compute(rows[communities.test, 0], known).value
    assert found.summary["test_f1-macro"] == expected
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["metric"] == "f1-macro"
    assert json.loads((tmp_path / "scores.json").read_text())["kind"] == "classes"


def test_patience_follows_an_error_downwards(of_kind) -> None:
    (run,) = fit(of_kind["values"], optim=replace(OPTIM, epochs=60, lr=0.1, patience=2)).runs
    valid = [record.valid_acc for record in run.epochs]
    assert run.best_epoch == int(np.argmin(valid))
    assert len(valid) == run.best_epoch + 3 < 60
    assert (run.metric, run.is_error) == ("rmse", True)


# --- balanced draws ---------------------------------------------------------------------------------------------


class InterruptingLoader(Loader):
    """Fails instead of handing out batch ``fail_at``, counted over all epochs; notes the classes that were drawn."""

    fail_at = 0
    drawn: list[np.ndarray] = []  # noqa: RUF012

    def __iter__(self):
        for batch in super().__iter__():
            if batch.id.epoch * BATCHES + batch.id.index == self.fail_at:
                raise RuntimeError("the power went out")
            self.drawn.append(self.seeds[self.seed_positions(batch.id)])
            yield batch


@pytest.mark.parametrize("labels", ["two", "binary"])
def test_a_balanced_run_sees_every_class_equally_often_and_is_resumed_bit_for_bit(
    of_kind, tmp_path, monkeypatch, labels
) -> None:
    monkeypatch.setattr(node_task, "Loader", InterruptingLoader)
    dataset = of_kind[labels]
    optim = replace(OPTIM, balance="classes", checkpoint_every=2, epochs=3)
    InterruptingLoader.fail_at, InterruptingLoader.drawn = -1, []
    whole = fit(dataset, optim=optim, out=tmp_path / "whole")
    assert len(InterruptingLoader.drawn) == 3 * BATCHES
    for epoch in range(3):
        drawn = np.concatenate(InterruptingLoader.drawn[epoch * BATCHES : (epoch + 1) * BATCHES])
        ones = np.count_nonzero(dataset.labels_of(drawn) == 1)
        assert (ones, len(drawn)) == (72, 144)  # of 144 training nodes, of which a third has label 1
    InterruptingLoader.fail_at = BATCHES + 3
    with pytest.raises(RuntimeError, match="the power went out"):
        fit(dataset, optim=optim, out=tmp_path / "cut")
    InterruptingLoader.fail_at = -1
    with pytest.raises(StateError, match="balance is 'classes' there and 'none' here"):
        fit(dataset, optim=replace(optim, balance="none"), out=tmp_path / "cut", resume=True)
    resumed = fit(dataset, optim=optim, out=tmp_path / "cut", resume=True)
    assert [record.loss for record in resumed.runs[0].epochs] == [
        record.loss for record in whole.runs[0].epochs
    ]
    assert resumed.summary[f"test_{whole.runs[0].metric}"] == whole.summary[f"test_{whole.runs[0].metric}"]


def test_a_node_that_is_drawn_twice_weighs_twice(of_kind) -> None:
    """A batch of all draws has the loss of the draws, and not that of their distinct nodes."""
    dataset = of_kind["two"]
    task = node_task.NodeTask.of(
        TrainSettings(model=MODEL, loader=LOADER, optim=replace(OPTIM, balance="classes")), dataset
    )
    loader = task.open_loader(dataset, LOADER.changed(batch_size=144), device_dry_run=None)
    with loader:
        batch = next(iter(loader))
        drawn, rows = task.drawn(batch, loader)
        seeds = loader.seeds[loader.seed_positions(batch.id)]  # type: ignore[union-attr]
    assert len(drawn.y) == len(rows) == 144 > len(batch.y)
    assert np.array_equal(drawn.y.numpy(), dataset.labels_of(seeds))
    assert np.array_equal(batch.nodes[rows.numpy()], seeds)
    assert int(drawn.y.sum()) == 72


def test_a_recorded_run_samples_its_balanced_batches_again(of_kind, tmp_path) -> None:
    """Its recording says that seeds were drawn from groups, and the groups are the classes."""
    optim = replace(OPTIM, balance="classes", epochs=1)
    fit(of_kind["two"], task="binary", optim=optim, out=tmp_path, trace=tmp_path / "trace.json")
    header = read_recording(tmp_path / "trace.json").header
    settings = recorded_settings(header)
    seeds = plan_recorded_seeds(of_kind["two"], settings, header)
    assert seeds.order.draws is not None
    require_same_stream(of_kind["two"], seeds, settings, header)


def test_a_loader_of_ones_own_has_no_balanced_draws(of_kind) -> None:
    settings = TrainSettings(model=MODEL, loader=LOADER, optim=replace(OPTIM, balance="classes"))
    with pytest.raises(
        ConfigError, match="loader_factory opens loaders without the draws of --balance classes"
    ):
        train.fit(of_kind["two"], settings, loader_factory=Loader.from_settings)


def test_weights_change_what_is_learned_and_are_a_setting_of_the_run(of_kind, tmp_path) -> None:
    plain = fit(of_kind["two"])
    weighted = fit(of_kind["two"], optim=replace(OPTIM, class_weights="balanced"), out=tmp_path)
    assert plain.runs[0].epochs[0].loss != weighted.runs[0].epochs[0].loss
    with pytest.raises(StateError, match="class_weights is 'balanced' there and '1,5' here"):
        fit(of_kind["two"], optim=replace(OPTIM, class_weights="1,5"), out=tmp_path, resume=True)


# --- settings, checkpoints and memory ---------------------------------------------------------------------------


def test_another_task_or_metric_does_not_go_on_with_a_run(of_kind, tmp_path) -> None:
    fit(of_kind["multilabel"], out=tmp_path, optim=replace(OPTIM, epochs=1))
    with pytest.raises(StateError, match="metric is 'auroc' there and 'ap' here"):
        fit(of_kind["multilabel"], metric="ap", out=tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="task is 'multilabel' there and 'regression' here"):
        fit(of_kind["multilabel"], task="regression", out=tmp_path, resume=True)


def test_a_recorded_run_is_read_with_its_task(of_kind, tmp_path) -> None:
    fit(of_kind["two"], task="binary", metric="acc", out=tmp_path, optim=replace(OPTIM, epochs=1))
    found = read_train_settings(tmp_path)
    assert (found.task, found.links.metric) == ("binary", "acc")


def test_settings_of_earlier_versions_are_read_with_their_defaults(communities, tmp_path) -> None:
    """Before a step, an optimiser or a run had all of today's settings."""
    fit(communities, out=tmp_path, optim=replace(OPTIM, epochs=1))
    path = tmp_path / "config.yaml"
    config = yaml.safe_load(path.read_text())
    assert not {"task", "metric"} & set(config)  # a run of classes is recorded as before
    del config["compile"], config["optim"]["balance"], config["optim"]["class_weights"]
    path.write_text(yaml.safe_dump(config))
    found = read_train_settings(tmp_path)
    assert (found.step.compile, found.optim.balance, found.optim.class_weights) == (False, "none", "none")
    assert found.task == "node"


def test_an_evaluation_counts_its_scores(of_kind, monkeypatch) -> None:
    """The scores and labels of a split are next to the inference, or to the metric."""
    dataset = of_kind["multilabel"]
    task = node_task.NodeTask.of(TrainSettings(model=MODEL, loader=LOADER), dataset)

    class Counted:
        memory_budget_bytes = 10**9

    asked = []
    monkeypatch.setattr(node_task, "_beside", lambda inference, held: _Asked(inference, held, asked))
    task.require_memory(None, Counted())  # type: ignore[arg-type]
    assert asked == [48 * 3 * 8]
    Counted.memory_budget_bytes = 10**6
    with pytest.raises(
        BudgetError, match="the scores and labels of 48 nodes, with a metric of them, take 10"
    ):
        task.require_memory(None, Counted())  # type: ignore[arg-type]


def test_a_budget_without_room_for_scores_is_refused_with_one_that_is_enough(of_kind, monkeypatch) -> None:
    monkeypatch.setattr(node_task, "_SUMMARY_BYTES", 150_000_000)  # as if there were many labels
    optim = replace(OPTIM, epochs=1)
    with pytest.raises(
        BudgetError, match="the scores and labels of 48 nodes, with a metric of them"
    ) as error:
        fit(of_kind["multilabel"], optim=optim, loader=LOADER.changed(memory_budget="200MB"))
    enough = re.search(r'Give memory_budget="(\d+)MB" or more', str(error.value))
    assert enough is not None
    fit(of_kind["multilabel"], optim=optim, loader=LOADER.changed(memory_budget=f"{enough[1]}MB"))


class _Asked:
    """An inference that notes the memory it leaves to others."""

    def __init__(self, inference: Any, held: int, asked: list[int]) -> None:
        asked.append(held)

    def require_memory(self, *_: Any, **__: Any) -> None:
        """Has enough."""


def test_a_network_that_diverges_ends_the_run_of_every_task(of_kind) -> None:
    for name in ("binary", "multilabel", "values"):
        with pytest.raises(DivergedError, match=r"lower --lr|a lower --lr"):
            fit(of_kind[name], optim=replace(OPTIM, lr=1e30, epochs=6))


@pytest.mark.parametrize("labels", ["multilabel", "values"])
def test_a_run_over_nan_names_the_rows_and_columns(of_kind, tmp_path, labels) -> None:
    held = of_kind[labels].to_numpy()
    node = int(held["train"][40])
    held["features"][node, [2, 4]] = np.nan
    dataset = Dataset.from_numpy(tmp_path / "nan", **held, allow_nan=True)
    message = rf"epoch 1, batch \d: .*column 2 of node {node} is nan; .*, 2 numbers .* in columns 2, 4 of node {node}"
    with pytest.raises(DivergedError, match=message):
        fit(dataset)


def test_predictions_behind_nan_are_not_written(of_kind, tmp_path, capsys) -> None:
    """Nor is a part of the file left."""
    fit(of_kind["values"], out=tmp_path / "run", optim=replace(OPTIM, epochs=1))
    held = of_kind["values"].to_numpy()
    held["features"][17] = np.nan
    Dataset.from_numpy(tmp_path / "nan", **held, allow_nan=True)
    words = ["infer", "--dataset", str(tmp_path / "nan"), "--checkpoint", str(tmp_path / "run"), "--out"]
    assert main([*words, str(tmp_path / "v.npy")]) == 1
    assert "of 240 nodes are NaN, the first of node " in " ".join(capsys.readouterr().err.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nan", "run"]
    with (
        predictions(Dataset.open(tmp_path / "nan"), load_checkpoint(tmp_path / "run")) as made,
        pytest.raises(DivergedError, match=r"the logits of \d+ of 240 nodes are NaN"),
    ):
        for chunk in made.chunks:
            raise AssertionError(f"a chunk of {len(chunk)} rows was given")


# --- several types ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """Papers whose authors tell their labels."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 2, 120)
    authors = 2 * random.integers(0, 15, 240) + np.repeat(classes, 2)
    writes = np.stack([authors, np.repeat(np.arange(120), 2)])
    bits = np.stack([classes, 1 - classes], axis=1).astype(np.float32)
    bits[::7, 1] = np.nan
    labels = {"multilabel": bits, "values": bits[:, :1] * 3 - 0.5, "two": classes}
    root = tmp_path_factory.mktemp("papers")
    return {
        name: Dataset.from_numpy_hetero(
            root / name,
            num_nodes={"paper": 120, "author": 30},
            features={
                "author": np.eye(30, 8, dtype=np.float32) + np.arange(30)[:, None].astype(np.float32) % 2
            },
            edges={("author", "writes", "paper"): writes, ("paper", "by", "author"): writes[::-1].copy()},
            labels={"paper": array},
            train=np.arange(72),
            valid=np.arange(72, 96),
            test=np.arange(96, 120),
        )
        for name, array in labels.items()
    }


@pytest.mark.parametrize("model", ["rsage", "rgcn", "rgat"])
@pytest.mark.parametrize(
    ("labels", "optim"), [("multilabel", {}), ("values", {}), ("two", {"balance": "classes"})]
)
def test_graphs_of_several_types_have_every_task(papers, tmp_path, model, labels, optim) -> None:
    dataset = papers[labels]
    task = "binary" if labels == "two" else "node"
    of_types = replace(MODEL, name=model, heads=2)
    found = fit(dataset, task=task, model=of_types, optim=replace(OPTIM, epochs=6, **optim), out=tmp_path)
    losses = [record.loss for record in found.runs[0].epochs]
    assert losses[-1] < losses[0]
    with predictions(dataset, load_checkpoint(tmp_path)) as made:
        rows = np.concatenate(list(made.chunks))
    assert rows.shape == (120, dataset.label_width)
