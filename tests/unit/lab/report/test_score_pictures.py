"""Pictures of scores: the captions have the metrics, and the charts show what was counted."""

from __future__ import annotations

from typing import Any

import numpy as np
from training_runs import drawn, lines, run, texts, told

from gloader.lab.report.cell_chart import draw_grid, draw_matrix
from gloader.lab.report.score_pictures import ScorePictures, pictures_of
from gloader.training.score_summary import score_summary


def pictures(kind: Any, outputs: Any, labels: Any, names: Any = None) -> ScorePictures:
    """What a report shows, from the scores themselves."""
    return pictures_of(run("run", scores=score_summary(kind, outputs, labels, names) | {"split": "test"}))


def captions(found: ScorePictures) -> dict[str, str]:
    return {chart.name: chart.caption for chart in found.charts}


def test_classes_are_a_matrix_with_their_names() -> None:
    found = pictures("classes", np.array([0, 0, 1, 1, 1]), np.array([0, 0, 0, 1, -1]), ["cat", "dog"])
    (chart,) = found.charts
    assert chart.name == "run-confusion"
    assert chart.caption == (
        "Confusion of the classes of 4 nodes of the split test: the share of each true class. Accuracy 0.7500."
    )
    assert told(chart) == [
        "true cat, predicted cat: 2 (66.7%)",
        "true cat, predicted dog: 1 (33.3%)",
        "true dog, predicted dog: 1 (100.0%)",
    ]
    assert {"0 cat", "1 dog", "67%", "33%", "100%"} < set(texts(chart))
    (scores, metrics), (classes, table) = found.tables
    assert (scores, metrics.rows) == (
        "Scores of 4 nodes of the split test",
        (("acc", "0.7500"), ("f1-macro", "0.7333")),
    )
    assert classes == "Classes"
    assert table.rows == (
        ("cat", "3", "2", "1.0000", "0.6667", "0.8000"),
        ("dog", "1", "2", "0.5000", "1.0000", "0.6667"),
    )


def test_of_many_classes_the_most_confused_are_listed() -> None:
    labels = np.arange(3000) % 1500
    predicted = labels.copy()
    predicted[:1500:100] = 7  # fifteen nodes of fifteen classes
    predicted[labels == 3] = 8
    found = pictures("classes", predicted, labels)
    assert found.charts == ()
    (_, _), (classes, table), (confused, pairs) = found.tables
    assert classes == "Classes, the 40 most frequent of 1,500"
    assert len(table.rows) == 40
    assert confused == "Most confused classes, among the 1,000 most frequent"
    assert pairs.rows[0] == ("3 as 8", "2")


def test_one_label_has_three_curves_with_its_metrics() -> None:
    scores = np.array([0.9, 0.8, 0.3, 0.1], np.float32)
    found = pictures("binary", scores, np.array([1, 0, 1, 0]))
    assert captions(found) == {
        "run-roc": "ROC curve. AUROC 0.7500.",
        "run-precision-recall": "Precision over recall. Average precision 0.8333. Dashed: a ranking by chance.",
        "run-calibration": "Calibration: share of label 1 over the predicted probability.",
    }
    roc, precision, _ = found.charts
    assert "by chance" in texts(roc)
    assert "50.0% with label 1" in texts(precision)
    ((start, *_, end),) = lines(roc, 0)
    ((first, last),) = lines(roc, 7, is_dotted=True)
    assert (start, end) == (first, last)
    assert [name for name, _ in found.tables] == ["Scores of 4 nodes of the split test"]


def test_of_several_labels_the_best_the_median_and_the_worst_are_drawn() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (500, 50)).astype(np.float32)
    scores = np.clip(labels * np.linspace(1, 0, 50) + rng.random((500, 50)), 0, 1).astype(np.float32)
    names = [f"l{place}" for place in range(50)]
    found = pictures("multilabel", scores, labels, names)
    (chart, *_), (_, (heading, table)) = found.charts, found.tables
    assert next(name for name in texts(chart) if name.startswith("l")) == "l0"
    assert chart.caption.endswith(", mean of the labels. Labels: the best, the median and the worst.")
    assert heading == "Labels, the best and the worst 20 of 50"
    assert table.rows[0] == ("l0", "500", table.rows[0][2], "1.0000", "1.0000")


def test_values_are_drawn_against_the_truth_for_each_column() -> None:
    labels = np.array([[0, 0], [1, 10], [2, 20]], np.float32)
    values = np.array([[0, 0], [1, 10], [9, 15]], np.float32)
    found = pictures("values", values, labels, ["price", "area"])
    by_column = {chart.caption.split(":")[0]: chart for chart in found.charts}
    area = by_column["Predicted over true values of area"]
    assert "R2 0.8750" in area.caption
    assert by_column["Predicted over true values of price"].caption.endswith(
        "1 predictions are beyond the range and drawn at its ends."
    )
    assert len(told(area)) == 3
    (_, metrics), (_, table) = found.tables
    assert [name for name, _ in metrics.rows] == ["mae", "rmse", "r2"]
    assert table.rows[0] == ("area", "3", "1.6667", "2.8868", "0.8750")


def test_a_split_without_labels_has_no_pictures() -> None:
    assert pictures("binary", np.zeros(2, np.float32), np.array([-1, -1])) == ScorePictures()


def test_a_cell_is_darker_with_its_share_and_an_empty_one_is_not_drawn() -> None:
    chart = draw_matrix("m", "c", ["a", "b"], [[4, 1], [0, 4]])
    assert chart is not None
    assert [each["fill-opacity"] for each in drawn(chart, "f0")] == ["0.81", "1.00"]
    assert [each["fill-opacity"] for each in drawn(chart, "f1")] == ["0.25"]
    assert not chart.is_wide


def test_many_classes_take_the_whole_width_without_numbers_in_the_cells() -> None:
    counts = np.eye(40, dtype=int).tolist()
    chart = draw_matrix("m", "c", list(map(str, range(40))), counts)
    assert chart is not None
    assert chart.is_wide
    assert "100%" not in texts(chart)


def test_there_is_nothing_to_draw_without_counts() -> None:
    assert draw_matrix("m", "c", [], []) is None
    assert draw_matrix("m", "c", ["a"], [[0]]) is None
    for low, high in ((0.0, 0.0), (float("nan"), 1.0), (0.0, float("inf"))):
        assert draw_grid("g", "c", [[1]], low=low, high=high, labels=("x", "y")) is None
    assert draw_grid("g", "c", [[0]], low=0.0, high=1.0, labels=("x", "y")) is None


def test_a_value_is_drawn_where_its_axes_say() -> None:
    chart = draw_grid("g", "c", [[0, 4], [1, 0]], low=0.0, high=1.0, labels=("true", "predicted"))
    assert chart is not None
    assert told(chart) == ["true 0.25, predicted 0.75: 4", "true 0.75, predicted 0.25: 1"]
    upper, lower = drawn(chart, "f0")
    assert float(upper["x"]) < float(lower["x"])
    assert float(upper["y"]) < float(lower["y"])
    assert [upper["fill-opacity"], lower["fill-opacity"]] == ["1.00", "0.53"]
