"""Every metric equals scikit-learn's, with ties, unknown labels, and several labels."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gloader.errors import ScoreError
from gloader.training.scores import METRICS

sklearn = pytest.importorskip("sklearn.metrics")
CLOSE = {"rel": 0, "abs": 1e-12}


def made(seed, n, *, levels, is_double, share=0.4):
    """Return scores with few or many levels, so with or without ties, and labels 0 and 1 that lean to them."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < share).astype(np.int64)
    scores = np.clip(rng.normal(0.35 + 0.3 * labels, 0.3), 0, 1)
    if levels:
        scores = np.round(scores * levels) / levels
    return scores.astype(np.float64 if is_double else np.float32), labels


scored = st.builds(
    made,
    st.integers(0, 2**32),
    st.integers(2, 300),
    levels=st.sampled_from([0, 1, 2, 7, 50]),
    is_double=st.booleans(),
    share=st.floats(0.05, 0.95),
)


@given(scored)
@settings(max_examples=150)
def test_scores_of_one_label_are_ranked_as_by_scikit_learn(pair):
    scores, labels = pair
    assume(0 < labels.sum() < len(labels))
    assert METRICS["auroc"].compute(scores, labels).value == pytest.approx(
        sklearn.roc_auc_score(labels, scores), **CLOSE
    )
    assert METRICS["ap"].compute(scores, labels).value == pytest.approx(
        sklearn.average_precision_score(labels, scores), **CLOSE
    )


@given(scored, st.sampled_from([0.0, 0.25, 0.5, 1.0]))
@settings(max_examples=100)
def test_decisions_are_judged_as_by_scikit_learn(pair, threshold):
    scores, labels = pair
    assume(labels.any())
    decided = scores > threshold
    for name, wanted in (
        ("acc", sklearn.accuracy_score(labels, decided)),
        ("f1", sklearn.f1_score(labels, decided)),
        ("f1-macro", sklearn.f1_score(labels, decided, average="macro")),
    ):
        found = METRICS[name].compute(scores, labels, threshold=threshold).value
        assert found == pytest.approx(wanted, **CLOSE), name


@given(st.integers(0, 2**32), st.integers(1, 200), st.integers(2, 9))
@settings(max_examples=100)
def test_classes_are_judged_as_by_scikit_learn(seed, n, num_classes):
    rng = np.random.default_rng(seed)
    labels, predicted = rng.integers(0, num_classes, (2, n))
    labels[rng.random(n) < 0.2] = -1
    known = labels >= 0
    assume(known.any())
    wanted = sklearn.f1_score(labels[known], predicted[known], average="macro")
    assert METRICS["f1-macro"].compute(predicted, labels).value == pytest.approx(wanted, **CLOSE)
    wanted = sklearn.accuracy_score(labels[known], predicted[known])
    assert METRICS["acc"].compute(predicted, labels).value == pytest.approx(wanted, **CLOSE)


@given(st.integers(0, 2**32), st.integers(2, 120), st.integers(1, 6), st.sampled_from([0, 3]))
@settings(max_examples=100)
def test_several_labels_are_the_mean_of_those_with_both_classes(seed, n, k, levels):
    """NaN labels are masked, as OGB does, and a label of one class is left out and counted."""
    rng = np.random.default_rng(seed)
    pairs = [made(seed + place, n, levels=levels, is_double=False, share=rng.random()) for place in range(k)]
    scores, labels = (np.stack(parts, axis=1) for parts in zip(*pairs, strict=True))
    labels = labels.astype(np.float32)
    labels[rng.random((n, k)) < 0.3] = np.nan
    columns = [
        (labels[known, place], scores[known, place])
        for place in range(k)
        for known in [~np.isnan(labels[:, place])]
    ]
    for name, oracle in (("auroc", sklearn.roc_auc_score), ("ap", sklearn.average_precision_score)):
        wanted = [oracle(*column) for column in columns if 0 < column[0].sum() < len(column[0])]
        if not wanted:
            with pytest.raises(ScoreError):
                METRICS[name].compute(scores, labels)
            continue
        found = METRICS[name].compute(scores, labels)
        assert found.value == pytest.approx(np.mean(wanted), **CLOSE)
        assert found.num_left_out == k - len(wanted)


@given(st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=60)
def test_several_labels_of_which_all_occur_are_decided_as_by_scikit_learn(seed, k):
    rng = np.random.default_rng(seed)
    labels, scores = rng.integers(0, 2, (50, k)), rng.random((50, k), np.float32)
    labels[0] = 1
    wanted = sklearn.f1_score(labels, scores > 0.5, average="macro" if k > 1 else "binary")
    assert METRICS["f1"].compute(scores, labels).value == pytest.approx(wanted, **CLOSE)
    if k > 1:
        assert METRICS["f1-macro"].compute(scores, labels).value == pytest.approx(wanted, **CLOSE)
    wanted = np.mean((scores > 0.5) == labels)
    assert METRICS["acc"].compute(scores, labels).value == pytest.approx(wanted, **CLOSE)


@given(st.integers(0, 2**32), st.integers(2, 700), st.integers(1, 4), st.sampled_from([1e-6, 1.0, 1e6]))
@settings(max_examples=100)
def test_values_are_judged_as_by_scikit_learn(seed, n, k, scale):
    """The oracle gets the same numbers in float64: in float32 its own sums are rounded."""
    rng = np.random.default_rng(seed)
    labels = (rng.normal(3.0, 1.0, (n, k)) * scale).astype(np.float32)
    values = (labels + rng.normal(0.0, 0.5 * scale, (n, k))).astype(np.float32)
    for name, oracle in (
        ("mae", sklearn.mean_absolute_error),
        ("rmse", sklearn.root_mean_squared_error),
        ("r2", sklearn.r2_score),
    ):
        wanted = oracle(labels.astype(np.float64), values.astype(np.float64))
        found = METRICS[name].compute(values, labels).value
        assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12), name


@given(st.integers(0, 2**32), st.integers(2, 700), st.sampled_from([0.002, 0.3]))
@settings(max_examples=60)
def test_unknown_values_are_left_out(seed, n, gaps):
    """With few gaps, blocks of rows without a gap are summed as well as blocks with one."""
    rng = np.random.default_rng(seed)
    labels, values = rng.normal(size=(2, n, 1)).astype(np.float32)
    is_known = rng.random(n) >= gaps
    is_known[:2] = True
    with_gaps = np.where(is_known[:, None], labels, np.float32(np.nan))
    for name in ("mae", "rmse", "r2"):
        compute = METRICS[name].compute
        wanted = compute(values[is_known], labels[is_known]).value
        assert compute(values, with_gaps).value == pytest.approx(wanted, rel=1e-12)
        assert compute(values[:, 0], with_gaps[:, 0]) == compute(values, with_gaps)
