"""The choice of loss, metric, weights and draws for the labels of a dataset."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.config import LinkConfig, LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.errors import ConfigError, ScoreError
from gloader.training.class_weights import balanced_seeds, class_weights_of
from gloader.training.dataset_checks import require_dataset
from gloader.training.node_task import NodeTask
from gloader.training.objectives import NODE_CLASSES, BinaryClasses, LabelColumns, NodeClasses
from gloader.training.train import resolved_settings, run_config

if TYPE_CHECKING:
    from pathlib import Path

N = 40
RARE = 4  # nodes of class 1


def _dataset(path: Path, labels: np.ndarray) -> Dataset:
    """A ring of nodes, of which the first 20 train, and 10 each validate and test."""
    ids = np.arange(N)
    return Dataset.from_numpy(
        path,
        edge_index=np.stack([ids, (ids + 1) % N]),
        features=np.ones((N, 2), np.float32),
        labels=labels,
        train=ids[:20],
        valid=ids[20:30],
        test=ids[30:],
        labels_as=None if labels.ndim == 1 else "values",
    )


def _settings(task: str = "node", metric: str = "auto", **optim: Any) -> TrainSettings:
    return TrainSettings(
        model=ModelConfig(hidden=4),
        optim=OptimConfig(**optim),
        loader=LoaderSettings.of(fanouts=(2,), batch_size=8),
        task=task,  # type: ignore[arg-type]
        links=LinkConfig(metric=metric),
    )


TWO = np.where(np.arange(N) % 10 == 3, 1, 0)  # 2 of 20, 1 of 10, 1 of 10
BITS = np.stack([TWO, 1 - TWO, np.arange(N) % 2], axis=1).astype(np.float32)
VALUES = np.linspace(-1, 2, N, dtype=np.float32)[:, None] + 0.25


@pytest.fixture(scope="module")
def of_kind(tmp_path_factory) -> dict[str, Dataset]:
    root = tmp_path_factory.mktemp("kinds")
    unknown = BITS.copy()
    unknown[5, 1] = np.nan
    return {
        "classes": _dataset(root / "classes", np.arange(N) % 3),
        "two": _dataset(root / "two", TWO),
        "binary": _dataset(root / "binary", TWO[:, None].astype(np.float32)),
        "multilabel": _dataset(root / "multilabel", BITS),
        "unknown": _dataset(root / "unknown", unknown),
        "values": _dataset(root / "values", VALUES),
    }


@pytest.mark.parametrize(
    ("labels", "task", "name", "metric", "width", "objective"),
    [
        ("classes", "node", "node", "acc", 3, NODE_CLASSES),
        ("classes", "classes", "node", "acc", 3, NODE_CLASSES),
        ("two", "node", "node", "acc", 2, NODE_CLASSES),
        ("two", "binary", "binary", "auroc", 1, BinaryClasses()),
        ("binary", "node", "binary", "auroc", 1, BinaryClasses()),
        ("binary", "multilabel", "multilabel", "auroc", 1, LabelColumns(1, True, False)),
        ("multilabel", "node", "multilabel", "auroc", 3, LabelColumns(3, True, False)),
        ("values", "node", "regression", "rmse", 1, LabelColumns(1, False, False)),
        ("multilabel", "regression", "regression", "rmse", 3, LabelColumns(3, False, False)),
    ],
)
def test_the_task_follows_the_labels(of_kind, labels, task, name, metric, width, objective) -> None:
    dataset = of_kind[labels]
    found = NodeTask.of(_settings(task), dataset)
    assert (found.name, found.metric, found.spec.out_dim) == (name, metric, width)
    assert found.objective == objective
    assert found.is_error == (metric == "rmse")
    settings = resolved_settings(_settings(task), dataset)
    assert (settings.task, settings.links.metric) == (name, metric)
    recorded = run_config(settings, dataset)
    # A run of classes is recorded as before there were other tasks.
    assert [recorded.get(key) for key in ("task", "metric")] == (
        [None, None] if name == "node" else [name, metric]
    )


def test_an_unknown_training_label_is_masked(of_kind) -> None:
    assert NodeTask.of(_settings(), of_kind["unknown"]).objective == LabelColumns(3, True, True)
    assert NodeTask.of(_settings(), of_kind["multilabel"]).objective == LabelColumns(3, True, False)


@pytest.mark.parametrize(
    ("labels", "settings", "message"),
    [
        (
            "classes",
            _settings("binary"),
            "--task binary does not fit .*, which has 3 classes: binary labels are one",
        ),
        (
            "classes",
            _settings("regression"),
            "has labels of kind classes: .* prepare .* with --labels-as values",
        ),
        (
            "values",
            _settings("classes"),
            "labels of kind values: .*; leave --task out, and --task regression is",
        ),
        (
            "values",
            _settings("multilabel"),
            "labels of kind values: multilabel labels are columns of 0 and 1",
        ),
        ("multilabel", _settings("binary"), "labels of kind multilabel: binary labels are one column"),
        ("classes", _settings("ranking"), "task='ranking' is not one of 'node', 'classes', 'binary'"),
        (
            "classes",
            _settings(metric="auroc"),
            "metric auroc .* is not defined for labels of the kind classes",
        ),
        (
            "values",
            _settings(metric="acc"),
            "is not defined for labels of the kind values; choose --metric mae, rmse",
        ),
        ("values", _settings(metric="hits@5"), "metric.*hits@5"),
        (
            "values",
            _settings(class_weights="balanced"),
            "--class-weights balanced is for classes of nodes, and --task",
        ),
        (
            "multilabel",
            _settings(balance="classes"),
            "--balance classes is for classes of nodes, and --task mul",
        ),
        (
            "classes",
            _settings(balance="classes", class_weights="balanced"),
            "both make rare classes count .*one of",
        ),
    ],
)
def test_labels_metrics_and_settings_that_do_not_fit_are_refused(of_kind, labels, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        require_dataset(settings, of_kind[labels])


@pytest.mark.parametrize("name", ["class_weights", "balance"])
def test_links_have_no_classes_of_nodes(of_kind, name) -> None:
    value = {"class_weights": "1,5", "balance": "classes"}[name]
    with pytest.raises(ConfigError, match=rf"--{name.replace('_', '-')} {value} is for classes of nodes"):
        require_dataset(replace(_settings("link", **{name: value})), _Linked(of_kind["classes"]))


class _Linked:
    """A dataset that says it has links."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset, self.link_tables = dataset, {"train": None}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


def test_a_metric_that_is_not_defined_ends_a_run_before_it_begins(tmp_path) -> None:
    labels = TWO[:, None].astype(np.float32)
    labels[20:30] = 0
    task = NodeTask.of(_settings(), _dataset(tmp_path / "d", labels))
    with pytest.raises(
        ScoreError, match="--metric auroc on the valid nodes: auroc needs labels of both classes"
    ):
        task.warn()
    NodeTask.of(_settings(metric="acc"), task.rows.dataset).warn()


def test_labels_without_both_classes_are_counted_once(tmp_path, caplog) -> None:
    labels = BITS.copy()
    labels[30:, 1] = 1  # in the test, label 1 has one class
    NodeTask.of(_settings(), _dataset(tmp_path / "d", labels)).warn()
    assert [record.getMessage() for record in caplog.records if record.name == "gloader"] == [
        "auroc of the test nodes is the mean over 2 of 3 labels: the others have no known node of each class"
    ]


# --- weights and draws ------------------------------------------------------------------------------------------


def test_balanced_weights_have_the_closed_form(of_kind) -> None:
    """N / (classes * nodes of the class)."""
    task = NodeTask.of(_settings(class_weights="balanced"), of_kind["two"])
    assert task.objective == NodeClasses((20 / (2 * 18), 20 / (2 * 2)))
    of_bits = NodeTask.of(_settings(class_weights="balanced"), of_kind["binary"])
    assert of_bits.objective == BinaryClasses((20 / (2 * 18), 20 / (2 * 2)))


@pytest.mark.parametrize(
    ("text", "num_classes", "expected"),
    [("1,5", 2, (1.0, 5.0)), ("5", 2, (1.0, 5.0)), ("1, 2.5,3", 3, (1.0, 2.5, 3.0))],
)
def test_weights_are_read_as_typed(text, num_classes, expected) -> None:
    assert class_weights_of(text, np.array([0, 1]), num_classes) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,5", "--class-weights 1,5 are 2 numbers, and the labels have 3 classes"),
        ("5", "are 1 numbers, and the labels have 3 classes"),
        ("heavy", "is neither none, balanced, nor positive numbers such as 1,5"),
        ((1, 5, 1), "class_weights is (1, 5, 1); allowed: a text, such as 'balanced' or '1,5'"),
        ("1,0,1", "is neither none"),
        ("1,inf,1", "is neither none"),
        ("1,nan,1", "is neither none"),
        (
            "balanced",
            "balanced class weights need a training node in each of the 3 classes, and 1 have none: 2",
        ),
    ],
)
def test_other_weights_are_refused(text, message) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        class_weights_of(text, np.array([0, 1, 1]), 3)


def test_balanced_seeds_draw_every_class_equally_often(of_kind) -> None:
    for name, counts in {"classes": [7, 7, 7], "two": [10, 10], "binary": [10, 10]}.items():
        seeds = balanced_seeds(of_kind[name])
        labels = of_kind[name].labels_of(seeds.nodes).reshape(-1)
        for epoch in range(3):
            drawn = seeds.draws.positions(20, seed=1, epoch=epoch)
            assert np.bincount(labels[drawn].astype(int)).tolist() == counts


@pytest.mark.parametrize(("labels", "unknown"), [(TWO, -1), (VALUES, np.nan)])
def test_nodes_without_a_label_have_no_part_in_a_score(tmp_path, labels, unknown) -> None:
    given = labels.copy()
    given[[31, 38]] = unknown
    task = NodeTask.of(_settings(), _dataset(tmp_path / "some", given))
    nodes, known = task.rows.known("test")
    assert nodes.tolist() == [30, 32, 33, 34, 35, 36, 37, 39]
    np.testing.assert_array_equal(known, labels[nodes])
    given[30:] = unknown
    task = NodeTask.of(_settings(), _dataset(tmp_path / "none", given))
    evaluation = task.score("test", None, None, lambda _: None)  # type: ignore[arg-type]
    assert evaluation.score is None
