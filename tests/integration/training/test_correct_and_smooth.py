"""Runs of correct and smooth: both accuracies, predictions with the training labels, and refusals."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.cli.main import main
from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.errors import BudgetError, ConfigError
from gloader.training import train
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.dataset_checks import require_dataset
from gloader.training.predict import predict, predictions
from gloader.training.train import RunFiles

if TYPE_CHECKING:
    from pathlib import Path

NAME = "correct-and-smooth"
MODEL = ModelConfig(name=NAME, hidden=16)
LOADER = LoaderSettings.of(fanouts=(4, 4), batch_size=32, threads=1, memory_budget=400_000_000)
NUM_CLASSES = 3


def _settings(task: str = "node", model: ModelConfig = MODEL) -> TrainSettings:
    return TrainSettings(model=model, optim=OptimConfig(epochs=4, lr=0.02), loader=LOADER, task=task)  # type: ignore[arg-type]


def _fit(dataset: Dataset, out: Path, **settings: Any) -> dict[str, Any]:
    train.fit(dataset, _settings(**settings), files=RunFiles(out=out))
    return dict(json.loads((out / "result.json").read_text()))


def _probabilities(dataset: Dataset, run: Path, **options: Any) -> np.ndarray:
    with predictions(dataset, load_checkpoint(run), **{"probabilities": True} | options) as made:
        return np.concatenate(list(made.chunks))


def _changed(dataset: Dataset, path: Path, **arrays: np.ndarray) -> Dataset:
    """The dataset with other arrays, such as labels."""
    return Dataset.from_numpy(path, **dataset.to_numpy() | arrays)


@pytest.fixture(scope="module")
def run(communities: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    _fit(communities, out)
    return out


def test_a_result_names_the_accuracy_of_the_network_alone_which_is_that_of_an_mlp(
    communities, run, tmp_path
) -> None:
    result = json.loads((run / "result.json").read_text())
    mlp = _fit(communities, tmp_path / "mlp", model=replace(MODEL, name="mlp"))
    assert {name for name in result if name.startswith("base_")} == {
        "base_test_acc", "base_test_acc_std", "base_valid_acc", "base_valid_acc_std",
    }  # fmt: skip
    assert (result["base_test_acc"], result["base_valid_acc"]) == (mlp["test_acc"], mlp["valid_acc"])
    assert result["base_valid_acc"] == result["runs"][0]["base_valid_acc"]
    epochs = [json.loads(line)["valid_acc"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert result["base_valid_acc"] == max(epochs)
    # The edges tell the class, and the features hardly do.
    assert result["test_acc"] > result["base_test_acc"] + 0.1
    assert result["valid_acc"] > result["base_valid_acc"] + 0.1
    assert "base_test_acc" not in mlp
    scores = json.loads((run / "scores.json").read_text())
    assert scores["split"] == "test"
    assert scores["metrics"]["acc"] == pytest.approx(result["test_acc"])


def test_predictions_have_the_accuracy_of_the_run(communities, run) -> None:
    result = json.loads((run / "result.json").read_text())
    classes = predict(communities, load_checkpoint(run))
    rows = _probabilities(communities, run)
    assert rows.shape == (communities.num_nodes, NUM_CLASSES)
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(rows.argmax(axis=1), classes)
    for split in ("valid", "test"):
        nodes = getattr(communities, split)
        accuracy = np.mean(classes[nodes] == communities.labels_of(nodes))
        assert accuracy == pytest.approx(result[f"{split}_acc"])


def test_labels_of_validation_and_test_nodes_are_never_read(communities, run, tmp_path) -> None:
    labels = communities.to_numpy()["labels"]
    others = np.concatenate([communities.valid, communities.test])
    hidden, swapped = labels.copy(), labels.copy()
    hidden[others] = (hidden[others] + 1) % NUM_CLASSES
    swapped[communities.train[:10]] = (labels[communities.train[:10]] + 1) % NUM_CLASSES
    found = _probabilities(communities, run)
    same = _probabilities(_changed(communities, tmp_path / "hidden", labels=hidden), run)
    other = _probabilities(_changed(communities, tmp_path / "swapped", labels=swapped), run)
    assert same.tobytes() == found.tobytes()
    assert other.tobytes() != found.tobytes()


def test_training_nodes_without_a_label_have_no_error(communities, run, tmp_path) -> None:
    held = communities.to_numpy()
    labels = held["labels"].copy()
    unknown = communities.train[:10]
    labels[unknown] = -1
    with Dataset.create(
        tmp_path / "lacking", name="communities", num_nodes=len(labels), num_classes=NUM_CLASSES
    ) as writer:  # preparing refuses such nodes
        for name in ("indptr", "indices", "features"):
            array = held[name]
            sizes = {"indptr": (), "indices": (len(array), "int32"), "features": (6, "float32")}[name]
            with getattr(writer, name)(*sizes) as out:
                out.append(array)
        writer.labels(labels)
        writer.splits(**{split: held[split] for split in ("train", "valid", "test")})
    lacking = Dataset.open(tmp_path / "lacking")
    fewer = _changed(communities, tmp_path / "fewer", train=np.setdiff1d(communities.train, unknown))
    assert _probabilities(lacking, run).tobytes() == _probabilities(fewer, run).tobytes()


@pytest.mark.parametrize("as_column", [True, False])
def test_two_classes_with_one_output_are_smoothed_too(communities, tmp_path, as_column) -> None:
    is_first = communities.to_numpy()["labels"] == 0
    labels = is_first[:, None].astype(np.float32) if as_column else is_first.astype(np.int64)
    options = {"labels_as": "values"} if as_column else {}
    dataset = Dataset.from_numpy(tmp_path / "two", **communities.to_numpy() | {"labels": labels} | options)
    result = _fit(dataset, tmp_path / "run", task="binary")
    assert result["test_auroc"] > result["base_test_auroc"]
    with predictions(dataset, load_checkpoint(tmp_path / "run")) as made:
        assert made.names == ("probability",)
        share = np.concatenate(list(made.chunks))[:, 0]
    assert np.all((share >= 0) & (share <= 1))
    assert np.mean((share > 0.5)[dataset.test] == is_first[dataset.test]) > 0.8


def test_a_budget_that_is_too_small_is_refused_with_one_that_is_enough(communities, run, tmp_path) -> None:
    expected = _probabilities(communities, run)
    with pytest.raises(BudgetError, match="memory_budget_bytes=") as error:
        _probabilities(communities, run, memory_budget_bytes=1000)
    enough = int(re.findall(r"memory_budget_bytes=(\d+)", str(error.value))[0])
    small = _probabilities(communities, run, memory_budget_bytes=enough, scratch=tmp_path)
    np.testing.assert_allclose(small, expected, atol=1e-6)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_is_the_network_alone_and_whose_labels_it_uses(
    communities, tmp_path, capsys
) -> None:
    data, out = str(communities.root), str(tmp_path / "run")
    flags = ["--fanout", "4,4", "--hidden", "16", "--epochs", "4", "--lr", "0.02", "--batch-size", "32"]
    assert main(["train", "--dataset", data, "--model", NAME, "--out", out, *flags]) == 0
    text = capsys.readouterr().out
    assert (
        "correct and smooth follows the last epoch: the validation figures of the epochs are those of" in text
    )
    assert re.search(r"test accuracy +[\d.]+%\n +test, network alone +[\d.]+%\n", text)
    assert "made the validation figure worse" not in text
    words = ["infer", "--dataset", data, "--checkpoint", out, "--out", str(tmp_path / "classes.npy")]
    assert main(words) == 0
    assert (
        f"correct and smooth uses the labels of the 144 training nodes of {data}; the checkpoint holds no labels"
        in " ".join(capsys.readouterr().out.split())
    )
    np.testing.assert_array_equal(
        np.load(tmp_path / "classes.npy"), predict(communities, load_checkpoint(tmp_path / "run"))
    )


def test_a_worse_figure_is_said(communities, tmp_path, capsys) -> None:
    held = communities.to_numpy()
    # Every edge joins nodes of different classes, and the features tell the class.
    random = np.random.default_rng(0)
    labels = held["labels"]
    sources = np.concatenate([random.choice(np.flatnonzero(labels != own), 8) for own in labels])
    edges = np.stack([sources, np.repeat(np.arange(len(labels)), 8)])
    features = np.eye(NUM_CLASSES, 6)[labels] + random.normal(scale=0.3, size=(len(labels), 6))
    dataset = Dataset.from_numpy(
        tmp_path / "data",
        edge_index=edges,
        features=features.astype(np.float32),
        **{name: held[name] for name in ("labels", "train", "valid", "test")},
    )
    words = ["train", "--dataset", str(dataset.root), "--model", NAME, "--out", str(tmp_path / "run")]
    assert main([*words, "--fanout", "4", "--epochs", "8", "--lr", "0.05", "--batch-size", "32"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "correct and smooth made the validation figure worse: edges here seldom join nodes of one class"
        in text
    )


def test_datasets_and_tasks_that_have_nothing_to_smooth_are_refused(communities, run, tmp_path) -> None:
    held = communities.to_numpy()
    bits = np.eye(NUM_CLASSES, dtype=np.float32)[held["labels"]]
    several = Dataset.from_numpy(tmp_path / "several", **held | {"labels": bits, "labels_as": "values"})
    text = (
        "model 'correct-and-smooth' improves the probabilities of classes, of which a node has one; the task is to "
        "learn other labels: train with --model mlp instead"
    )
    with pytest.raises(ConfigError, match=re.escape(text)):
        require_dataset(_settings(), several)
    topology = {"indptr": np.zeros(len(bits) + 1, np.int64), "indices": np.empty(0, np.int32)}
    alone = _changed(communities, tmp_path / "alone", **topology)
    text = f"{alone.location} has no edges, along which correct-and-smooth spreads the labels of the training nodes"
    with pytest.raises(ConfigError, match=re.escape(text)):
        require_dataset(_settings(), alone)
    with pytest.raises(ConfigError, match=re.escape(text)):
        train.fit(alone, _settings())
    with pytest.raises(ConfigError, match=re.escape(text)):
        predict(alone, load_checkpoint(run))
    untaught = _changed(communities, tmp_path / "untaught", train=np.empty(0, np.int64))
    with pytest.raises(ConfigError, match="has no training nodes with labels"):
        predict(untaught, load_checkpoint(run))


def test_links_have_no_classes_to_smooth(linked: Dataset) -> None:
    with pytest.raises(ConfigError, match="the task is to learn links: train with --model mlp instead"):
        require_dataset(_settings("link"), linked)


@pytest.fixture(scope="module")
def linked(communities: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("linked") / "data"
    return Dataset.from_numpy(path, **communities.to_numpy(), edge_split=(0.8, 0.1, 0.1))
