from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import ConfigError
from gloader.training.link_judge import (
    AucCount,
    LinkMetric,
    auc,
    best_scores,
    hits,
    hits_of_rows,
    parse_metric,
    reciprocal_ranks,
)


def _scores(*shape: int, seed: int, levels: int = 12) -> np.ndarray:
    """Scores of few different values, so that many are equal."""
    return np.random.default_rng(seed).integers(0, levels, shape).astype(np.float32) / 4


def _in_chunks(scores: np.ndarray, size: int):
    return (scores[start : start + size] for start in range(0, len(scores), size))


@pytest.fixture(scope="module")
def evaluator():
    """OGB's own, from its file: to import the package asks the network for updates."""
    found = importlib.util.find_spec("ogb")
    if found is None or found.origin is None:
        pytest.skip("ogb is not installed")
    path = Path(found.origin).parent / "linkproppred" / "evaluate.py"
    spec = importlib.util.spec_from_file_location("ogb_link_evaluate", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.Evaluator


def _ogb(evaluator, name: str, positives, negatives, k: int | None = None) -> dict[str, object]:
    judge = evaluator(name=name)
    if k is not None:
        judge.K, judge.eval_metric = k, f"hits@{k}"
    # Torch tensors: the branch for numpy raises.
    return judge.eval({"y_pred_pos": torch.from_numpy(positives), "y_pred_neg": torch.from_numpy(negatives)})


@pytest.mark.parametrize("seed", range(4))
def test_mrr_is_that_of_ogb(evaluator, seed) -> None:
    positives, negatives = _scores(300, seed=seed), _scores(300, 40, seed=seed + 9)
    expected = _ogb(evaluator, "ogbl-citation2", positives, negatives)["mrr_list"]
    assert np.allclose(reciprocal_ranks(positives, negatives), expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize("k", [1, 20, 50, 200, 500])
@pytest.mark.parametrize("levels", [12, 1 << 20])
def test_hits_are_those_of_ogb(evaluator, k, levels) -> None:
    positives, negatives = _scores(300, seed=1, levels=levels), _scores(400, seed=2, levels=levels)
    expected = _ogb(evaluator, "ogbl-collab", positives, negatives, k)[f"hits@{k}"]
    assert hits(_in_chunks(positives, 37), _in_chunks(negatives, 91), k) == expected


@pytest.mark.parametrize("sizes", [(300, 400), (37, 91), (1, 400)])
def test_auc_is_that_of_sklearn(sizes) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    positives, negatives = _scores(300, seed=3) + 0.5, _scores(400, seed=4)
    expected = metrics.roc_auc_score(np.repeat([1, 0], [300, 400]), np.concatenate([positives, negatives]))
    found = auc(_in_chunks(positives, sizes[0]), lambda: _in_chunks(negatives, sizes[1]))
    assert found == pytest.approx(expected, abs=1e-12)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20)
)
def test_auc_counts_pairs(positives, negatives) -> None:
    count = AucCount(np.array(positives, np.float32))
    count.add(np.array(negatives, np.float32))
    assert count.twice_right == sum(2 * (p > n) + (p == n) for p in positives for n in negatives)
    assert count.num_pairs == len(positives) * len(negatives)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(1, 9), st.integers(1, 12), st.data())
def test_hits_of_rows_are_hits_of_each_row(positives, width, k, data) -> None:
    rows = data.draw(
        st.lists(
            st.lists(st.integers(0, 5), min_size=width, max_size=width),
            min_size=len(positives),
            max_size=len(positives),
        )
    )
    p, n = np.array(positives, np.float32), np.array(rows, np.float32)
    expected = sum(hits([p[i : i + 1]], [n[i]], k) for i in range(len(p)))
    assert hits_of_rows(p, n, k) == expected


def test_the_best_scores_of_many_chunks() -> None:
    scores = np.random.default_rng(0).normal(size=500).astype(np.float32)
    assert (best_scores(_in_chunks(scores, 33), 50) == np.sort(scores)[-50:]).all()
    assert len(best_scores(_in_chunks(scores[:20], 33), 50)) == 20


@pytest.mark.parametrize("text", ["hits@1", "hits@50", "mrr", "auc"])
def test_metrics_have_names(text) -> None:
    assert str(parse_metric(text)) == text


def test_auto_is_no_metric_yet() -> None:
    assert parse_metric("auto") is None
    assert parse_metric("hits@20") == LinkMetric("hits", 20)


@pytest.mark.parametrize("text", ["hits", "hits@0", "hits@", "hits@-1", "ndcg", "hits@5.5", ""])
def test_other_names_are_refused(text) -> None:
    with pytest.raises(ConfigError, match=r"is not known; allowed: auto, hits@K such as hits@50, mrr, auc"):
        parse_metric(text)
