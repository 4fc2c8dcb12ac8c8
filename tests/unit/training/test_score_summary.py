"""The summary of scores is small, and its curves are those of all scores to within a pixel."""

import json

import numpy as np
import pytest

from gloader.errors import DivergedError, ScoreError
from gloader.training.score_summary import score_summary
from gloader.training.scores import METRICS

MOST_BYTES = 100_000


def plain_roc(scores, labels):
    """Every point of the ROC curve."""
    points = [(0.0, 0.0)]
    for threshold in np.unique(scores)[::-1]:
        above = scores >= threshold
        points.append((np.mean(above[labels == 0]), np.mean(above[labels == 1])))
    return np.array(points)


def distances(points, line):
    """The distance of each of ``points`` from a line through given points."""
    start, end = line[:-1], line[1:]
    along = end - start
    length = np.maximum((along**2).sum(axis=1), 1e-300)
    share = np.clip(((points[:, None] - start) * along).sum(axis=2) / length, 0, 1)
    return np.sqrt(((start + share[:, :, None] * along - points[:, None]) ** 2).sum(axis=2)).min(axis=1)


def scored(n, levels=0, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    scores = np.clip(rng.normal(0.4 + 0.2 * labels, 0.2), 0, 1)
    return (np.round(scores * levels) / levels if levels else scores).astype(np.float32), labels


@pytest.mark.parametrize(("n", "levels"), [(2000, 0), (2000, 5), (30, 0), (2000, 1)])
def test_a_thinned_roc_curve_is_the_whole_one_to_within_three_pixels(n, levels):
    scores, labels = scored(n, levels)
    (curve,) = score_summary("binary", scores, labels, None)["curves"]
    points = np.array(curve["roc"])
    assert len(points) <= 200
    assert points[0].tolist() == [0, 0]
    assert points[-1].tolist() == [1, 1]
    whole = plain_roc(scores, labels)
    # 3 of a chart's 440 pixels. Each point that is kept is a point of the whole curve.
    assert distances(whole, points).max() < 3 / 440
    assert distances(points, whole).max() < 1e-4


def test_the_point_before_a_long_step_of_equal_scores_is_kept():
    scores = np.full(2000, 0.5, np.float32)
    labels = np.arange(2000) % 2
    scores[0:30:2] = np.linspace(0.9, 1.0, 15)  # fifteen of the thousand with label 0
    (curve,) = score_summary("binary", scores, labels, None)["curves"]
    assert curve["roc"] == [[0, 0], [0.015, 0], [1, 1]]


def test_a_precision_recall_curve_keeps_the_extremes_of_each_hundredth():
    scores, labels = scored(3000)
    (curve,) = score_summary("binary", scores, labels, None)["curves"]
    points = np.array(curve["precision_recall"])
    assert len(points) <= 200
    whole = []
    for threshold in np.unique(scores[scores >= scores[labels == 1].min()])[::-1]:
        above = scores >= threshold
        whole.append((above[labels == 1].mean(), labels[above].mean()))
    whole = np.array(whole)
    for cell in range(100):
        inside = whole[np.minimum((whole[:, 0] * 100).astype(int), 99) == cell][:, 1]
        if not len(inside):
            continue
        # Recalls have five digits: one that is a whole hundredth may have been rounded into its neighbour.
        kept = points[np.abs(points[:, 0] * 100 - cell - 0.5) <= 0.5 + 1e-3][:, 1]
        assert np.isclose(kept, inside.min(), rtol=1e-4).any()
        assert np.isclose(kept, inside.max(), rtol=1e-4).any()
    assert (np.diff(points[:, 0]) >= 0).all()


def test_calibration_counts_each_known_node_once():
    scores = np.array([0.0, 0.09, 0.11, 0.5, 0.55, 1.0, 0.3], np.float32)
    labels = np.array([0, 1, 1, 1, 0, 1, -1])
    (curve,) = score_summary("binary", scores, labels, None)["curves"]
    assert curve["calibration"] == [[0.045, 0.5, 2], [0.11, 1.0, 1], [0.525, 0.5, 2], [1.0, 1.0, 1]]
    assert curve["share"] == pytest.approx(2 / 3)


def test_logits_keep_the_order_that_probabilities_lose():
    """Both logits are the probability 1 in float32, so that their order would be a tie."""
    logits, labels = np.array([20.0, 30.0, -2000.0, 0.2], np.float32), np.array([0, 1, 0, 1])
    found = score_summary("binary", logits, labels, None, are_logits=True)
    assert found["metrics"]["auroc"] == METRICS["auroc"].compute(logits, labels).value == 0.75
    assert found["metrics"]["acc"] == METRICS["acc"].compute(logits, labels, threshold=0.0).value == 0.75
    assert found["labels"][0]["auroc"] == 0.75
    assert found["curves"][0]["calibration"] == [[0.0, 0.0, 1], [0.54983, 1.0, 1], [1.0, 0.5, 2]]


@pytest.mark.parametrize(
    ("kind", "outputs", "labels"),
    [
        ("binary", *scored(500)),
        ("classes", np.arange(50) % 4, np.arange(50) % 3),
        ("values", np.arange(9.0), np.arange(9.0) ** 2),
    ],
)
def test_its_metrics_are_those_of_the_kind(kind, outputs, labels):
    metrics = score_summary(kind, outputs, labels, None)["metrics"]
    assert metrics == {
        name: metric.compute(outputs, labels).value
        for name, metric in METRICS.items()
        if kind in metric.kinds
    }


def test_the_figures_of_a_column_are_its_metrics():
    rng = np.random.default_rng(3)
    labels, values = rng.normal(size=(2, 200, 2)).astype(np.float32)
    labels[:50, 1] = np.nan
    rows = {row["name"]: row for row in score_summary("values", values, labels, ["a", "b"])["columns"]}
    for place, name in enumerate("ab"):
        for metric in ("mae", "rmse", "r2"):
            wanted = METRICS[metric].compute(values[:, place], labels[:, place]).value
            assert rows[name][metric] == pytest.approx(wanted, rel=1e-14)
    assert (rows["a"]["num"], rows["b"]["num"]) == (200, 150)


def test_a_metric_that_is_not_defined_is_left_out():
    found = score_summary("binary", np.array([0.2, 0.7], np.float32), np.array([1, 1]), None)
    assert list(found["metrics"]) == ["acc", "f1", "f1-macro"]
    assert found["curves"] == []
    assert found["labels"] == [{"name": "0", "num": 2, "num_ones": 2, "auroc": None, "ap": None}]
    found = score_summary("values", np.array([0.2, 0.7]), np.array([3.0, 3.0]), None)
    assert list(found["metrics"]) == ["mae", "rmse"]
    assert found["columns"][0]["r2"] is None
    assert found["grids"][0]["low"] < 3 < found["grids"][0]["high"]


@pytest.mark.parametrize(
    ("kind", "outputs", "labels"),
    [
        ("classes", np.array([0]), np.array([-1])),
        ("binary", np.zeros(1), np.array([np.nan])),
        ("multilabel", np.zeros((1, 2)), np.full((1, 2), np.nan)),
        ("values", np.zeros(1), np.array([np.nan])),
    ],
)
def test_a_split_without_labels_is_summarised(kind, outputs, labels):
    found = score_summary(kind, outputs, labels, None)
    assert (found["num"], found["metrics"]) == (0, {})


def test_outputs_that_cannot_be_are_refused():
    with pytest.raises(DivergedError, match=r"^the score of row 0 of the labels is NaN"):
        score_summary("binary", np.array([np.nan]), np.array([1]), None)
    with pytest.raises(ScoreError, match=r"^row 0 of the labels in column 1 \('b'\) is 2"):
        score_summary("multilabel", np.zeros((1, 2)), np.array([[0.0, 2.0]]), ["a", "b"])


def test_counts_are_the_whole_split():
    rng = np.random.default_rng(1)
    labels, predicted = rng.integers(-1, 9, 200_000), rng.integers(0, 9, 200_000)
    found = score_summary("classes", predicted, labels, None)
    known = labels >= 0
    wanted = np.zeros((9, 9), int)
    np.add.at(wanted, (labels[known], predicted[known]), 1)
    assert found["matrix"] == wanted.tolist()
    assert found["num"] == known.sum()
    assert {row[0]: row[1:] for row in found["classes"]}["4"] == [
        wanted[4].sum(),
        wanted[:, 4].sum(),
        wanted[4, 4],
    ]
    values = rng.normal(size=(2, 200_000)).astype(np.float32)
    (grid,) = score_summary("values", values[0], values[1], None)["grids"]
    assert np.sum(grid["counts"]) == 200_000
    # The first axis is the truth, whose least value is in the first cell.
    real = np.floor((values[1] - grid["low"]) / (grid["high"] - grid["low"]) * 32)
    assert np.abs(np.sum(grid["counts"], axis=1) - np.histogram(real, range(33))[0]).max() <= 2


LONG = "a name of a class or of a column that is far too long to be read in a table " * 3


@pytest.mark.parametrize("kind", ["classes", "many", "multilabel", "values"])
def test_it_is_small_whatever_the_number_of_nodes_labels_and_classes(kind):
    rng = np.random.default_rng(0)
    names = [f"{place} {LONG}" for place in range(300)]
    if kind in ("classes", "many"):
        classes = rng.integers(0, 40 if kind == "classes" else 300, (2, 300_000))
        found = score_summary("classes", *classes, names)
    else:
        outputs = rng.random((2000, 300), np.float32)
        labels = (rng.random((2000, 300)) < 0.5).astype(np.float32) if kind == "multilabel" else outputs**2
        found = score_summary(kind, outputs, labels, names)
        assert len(found["labels" if kind == "multilabel" else "columns"]) == 40
    assert len(json.dumps(found)) < MOST_BYTES
    assert LONG not in json.dumps(found)
