"""Metrics by hand, and the sentences for labels and scores that no metric is defined for."""

import math

import numpy as np
import pytest

from gloader.errors import ConfigError, DivergedError, ScoreError, ShapeError
from gloader.training.class_weights import balanced_weights
from gloader.training.scores import DEFAULT_METRICS, METRICS, metric_of

NAN = np.nan


def floats(*values):
    return np.array(values, np.float32)


def score(name, outputs, labels, **more):
    return METRICS[name].compute(outputs, labels, **more)


def test_the_metrics_and_what_they_are_for():
    assert list(METRICS) == ["acc", "auroc", "ap", "f1", "f1-macro", "mae", "rmse", "r2"]
    assert [name for name, metric in METRICS.items() if metric.is_error] == ["mae", "rmse"]
    for kind, name in DEFAULT_METRICS.items():
        assert metric_of(name, kind).name == name


def test_a_metric_that_is_unknown_or_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match=r"metric 'aucroc' is not known; did you mean 'auroc'\?"):
        metric_of("aucroc", "binary")
    wanted = (
        r"^metric rmse \(root mean squared error\) is not defined for labels of the kind classes; choose --metric "
        r"acc, f1-macro$"
    )
    with pytest.raises(ConfigError, match=wanted):
        metric_of("rmse", "classes")


def test_equal_scores_count_half_and_are_one_threshold():
    scores, labels = floats(0.9, 0.5, 0.5, 0.1), np.array([1, 1, 0, 0])
    # Pairs: two in order, one equal (0.5, 0.5), one in order.
    assert score("auroc", scores, labels).value == 3.5 / 4
    # Precision 1 at 0.9, and 2/3 at 0.5, whose two nodes come together.
    assert score("ap", scores, labels).value == pytest.approx((1 + 2 / 3) / 2, abs=1e-15)


def test_zero_and_minus_zero_are_equal_and_infinite_scores_have_a_place():
    scores, labels = floats(0.0, -0.0, np.inf, -np.inf), np.array([1, 0, 1, 0])
    assert score("auroc", scores, labels).value == 3.5 / 4


def test_the_threshold_of_logits_is_zero():
    logits, labels = floats(-0.1, 0.1, 0.4, 2.0), np.array([0, 0, 1, 1])
    assert score("acc", logits, labels, threshold=0.0).value == 0.75
    assert (
        score("acc", logits, labels).value == 0.75
    )  # 0.5 as the threshold decides otherwise, for 0.1 and 0.4
    assert score("f1", logits, labels, threshold=0.0).value == 0.8
    assert score("f1", logits, labels).value == pytest.approx(2 / 3, abs=1e-15)


def test_a_million_equal_scores_are_half_and_lose_no_digit():
    labels = np.arange(1_000_000) % 3 == 0
    assert score("auroc", np.full(1_000_000, 0.3, np.float32), labels).value == 0.5


def test_sums_are_compensated():
    """A plain sum of squares in float64 loses the small errors beside the large one."""
    labels = np.zeros(100_001)
    values = np.full(100_001, 1e-3)
    values[0] = 1e6
    assert score("mae", values, labels).value == pytest.approx((1e6 + 100) / 100_001, rel=1e-15)
    squares = (1e12 + 1e-6 * 100_000) / 100_001
    assert score("rmse", values, labels).value == pytest.approx(squares**0.5, rel=1e-15)


def test_the_sum_of_precisions_is_compensated():
    """Each third of the ranks has label 1, so that the precision at the i-th is i / (3i - 2)."""
    scores = np.arange(300_000, 0, -1, dtype=np.float32)
    labels = np.arange(300_000) % 3 == 0
    wanted = math.fsum(place / (3 * place - 2) for place in range(1, 100_001)) / 100_000
    assert score("ap", scores, labels).value == wanted


def test_unknown_labels_are_left_out():
    assert score("acc", np.array([0, -1, 2]), np.array([0, -1, 1])).value == 0.5
    # The row without a label may have any score.
    assert score("auroc", floats(0.9, NAN, 0.1), floats(1, NAN, 0)).value == 1
    assert score("auroc", floats(0.9, NAN, 0.1), np.array([1, -1, 0])).value == 1
    assert score("rmse", floats(1, NAN, 5), floats(1, NAN, 3)).value == pytest.approx(2**0.5, abs=1e-15)


def test_a_label_of_one_class_is_left_out_and_counted():
    scores = np.array([[0.9, 0.9, 0.9], [0.1, 0.1, 0.1]], np.float32)
    labels = np.array([[1, 1, NAN], [0, 1, NAN]], np.float32)
    for name, left_out in (("auroc", 2), ("ap", 2), ("f1", 1), ("f1-macro", 1), ("acc", 1)):
        assert score(name, scores, labels).num_left_out == left_out, name
    assert score("auroc", scores, labels).value == 1
    assert score("acc", scores, labels).value == 0.75


ONE_CLASS = r"needs labels of both classes, and all 2 known labels of the split are 1; choose --metric acc"
UNDEFINED = [
    ("auroc", floats(0.1, 0.2), np.array([1, 1]), f"^auroc {ONE_CLASS}, or a split with both classes$"),
    ("ap", floats(0.1, 0.2), np.array([1, 1]), f"^ap {ONE_CLASS}"),
    (
        "auroc",
        floats(0.1),
        floats(NAN),
        "^auroc needs a known label, and all labels of the split are unknown$",
    ),
    ("acc", floats(0.1), floats(NAN), "^acc needs a known label"),
    ("acc", np.array([1]), np.array([-1]), "^acc needs a known label"),
    ("acc", np.empty(0, np.int64), np.empty(0, np.int64), "^acc needs a known label"),
    ("f1-macro", np.array([1]), np.array([-1]), "^f1-macro needs a known label"),
    ("f1-macro", floats(0.1), floats(NAN), "^f1-macro needs a known label"),
    ("f1", floats(0.1), np.array([0]), "^f1 is not defined without a label 1, and none of the known labels"),
    ("rmse", floats(), floats(), "^rmse needs a known label"),
    (
        "r2",
        floats(1, 2),
        floats(3, 3),
        "^r2 is not defined for labels: all known ones are equal; choose --metric mae",
    ),
    ("r2", floats(1), floats(3), "^r2 is not defined"),
    ("mae", np.empty((3, 0), np.float32), np.empty((3, 0), np.float32), "^there are no labels to score$"),
    ("auroc", np.empty((3, 0), np.float32), np.empty((3, 0), np.float32), "^there are no labels to score$"),
]


@pytest.mark.parametrize(("name", "outputs", "labels", "text"), UNDEFINED)
def test_an_undefined_metric_is_an_error_and_never_nan(name, outputs, labels, text):
    with pytest.raises(ScoreError, match=text):
        score(name, outputs, labels)


def test_no_label_with_both_classes_names_the_first_of_them():
    labels = np.ones((2, 3), np.float32)
    text = r"known labels in column 0 \('toxic'\) of the split are 1; .* \(and 2 labels more\)$"
    with pytest.raises(ScoreError, match=text):
        score("auroc", labels, labels, names=["toxic", "rude", "mean"])


@pytest.mark.parametrize("name", ["auroc", "ap", "acc", "f1", "f1-macro"])
def test_scores_that_are_nan_and_labels_that_are_neither_0_nor_1_are_refused(name):
    with pytest.raises(
        DivergedError, match=r"^the score of row 2 of the labels is NaN: features are NaN, or"
    ):
        score(name, floats(1, 0, NAN), np.array([1, 0, 1]))
    with pytest.raises(ScoreError, match=r"^row 1 of the labels is 2; a label is 0, 1, or -1 if unknown$"):
        score(name, floats(1, 0, 0), np.array([1, 2, 0]))
    with pytest.raises(ScoreError, match=r"^row 1 of the labels is 0.5; a label is 0, 1, or NaN if unknown$"):
        score(name, floats(1, 0, 0), floats(1, 0.5, 0))
    with pytest.raises(ScoreError, match=r"^row 1 of the labels is -1; a label is 0, 1, or NaN"):
        score(name, floats(1, 0, 0), floats(1, -1, 0))


@pytest.mark.parametrize("name", ["mae", "rmse", "r2"])
def test_values_and_labels_that_are_not_finite_are_refused(name):
    with pytest.raises(DivergedError, match=r"^the value predicted for row 1 of the labels is nan: "):
        score(name, floats(1, NAN), floats(1, 2))
    with pytest.raises(ScoreError, match=r"^row 1 of the labels is inf; a label is a finite number, or NaN"):
        score(name, floats(1, 1), floats(1, np.inf))
    labels, values = np.arange(600.0, dtype=np.float32), np.ones(600, np.float32)
    labels[300], values[400:] = NAN, np.inf
    with pytest.raises(DivergedError, match=r"^the value predicted for row 400 of the labels is inf: "):
        score(name, values, labels)


def test_shapes_and_dtypes_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match=r"the outputs are \(3, 1\) and the labels \(2,\); both are"):
        score("auroc", np.zeros((3, 1), np.float32), np.array([0, 1]))
    with pytest.raises(ShapeError, match=r"^the outputs are int64 and the labels int64; outputs are float32"):
        score("auroc", np.array([0, 1]), np.array([0, 1]))
    with pytest.raises(ShapeError, match=r"^there are 1 names for 2 labels$"):
        score("acc", np.zeros((1, 2), np.float32), np.zeros((1, 2)), names=["one"])
    with pytest.raises(ShapeError, match=r"^there are \(3,\) predicted classes for \(2,\) labels$"):
        score("acc", np.zeros(3, np.int64), np.zeros(2, np.int64))
    with pytest.raises(
        ShapeError, match=r"^the predicted classes are int64 \(2,\) and the labels float64 \(2,\)"
    ):
        score("acc", np.zeros(2, np.int64), np.zeros(2))
    with pytest.raises(ScoreError, match=r"^row 0 is predicted to be of class -3; a class is 0 or more$"):
        score("f1-macro", np.array([-3]), np.array([0]))


def test_other_layouts_and_dtypes_give_the_same():
    rng = np.random.default_rng(0)
    scores, labels = rng.random((50, 2)).astype(np.float16), rng.integers(0, 2, (50, 2))
    wanted = score("auroc", scores.astype(np.float32), labels)
    assert score("auroc", np.asfortranarray(scores), labels.astype(np.uint8)) == wanted
    assert score("auroc", scores, labels.astype(np.float16)) == wanted
    labels = labels[:, 0] == 1
    assert score("ap", scores[:, :1], labels) == score("ap", scores[:, 0].astype(np.float64), labels)


def test_balanced_weights_are_the_closed_form():
    labels = np.array([0, 0, 0, 1, -1])
    np.testing.assert_array_equal(balanced_weights(labels, 2), [4 / (2 * 3), 4 / (2 * 1)])
    # A class weighs as much as any other.
    weights = balanced_weights(np.array([0, 1, 1, 2, 2, 2]), 3)
    np.testing.assert_allclose(weights * [1, 2, 3], 2)


def test_balanced_weights_need_a_node_of_each_class():
    text = r"each of the 8 classes, and 6 have none: 1, 2, 4, 5, 6, \.\.\.; give the weights, such as --class-weights"
    with pytest.raises(ConfigError, match=text):
        balanced_weights(np.array([0, 3]), 8)
    with pytest.raises(ConfigError, match=r"a training node has label 4, and there are 3 classes: 0 to 2"):
        balanced_weights(np.array([0, 1, 2, 4]), 3)
