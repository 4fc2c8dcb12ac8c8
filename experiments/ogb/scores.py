"""Scores by the official evaluators."""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


def score(evaluator: str, truth: NDArray[Any], predicted: NDArray[Any]) -> float:
    """Return the score of ``predicted`` for the labels ``truth`` by ``evaluator``.

    This is the accuracy for classes (n,), and the mean ROC AUC over the columns for labels and probabilities (n, k).

    Parameters
    ----------
    evaluator : "ogb:NAME" is `ogb.nodeproppred.Evaluator`, "ogb-lsc" is `ogb.lsc.MAG240MEvaluator`, "accuracy" is
        the share of equal entries

    Raises
    ------
    ImportError
        The ogb package is not installed.
    """
    if evaluator == "accuracy":
        return float(np.mean(truth == predicted))
    with _quiet():
        if evaluator == "ogb-lsc":
            from ogb.lsc import MAG240MEvaluator

            return float(MAG240MEvaluator().eval({"y_true": truth, "y_pred": predicted})["acc"])
        from ogb.nodeproppred import Evaluator

        judge = Evaluator(evaluator.removeprefix("ogb:"))
        given = {"y_true": truth, "y_pred": predicted}
        if truth.ndim == 1:
            given = {name: values[:, None] for name, values in given.items()}
        return float(judge.eval(given)[judge.eval_metric])


def is_of_links(evaluator: str) -> bool:
    """Return whether ``evaluator`` compares the scores of edges with those of negatives. Pure."""
    return evaluator.startswith("ogb:ogbl-")


def score_links(evaluator: str, edges: NDArray[np.float32], negatives: NDArray[np.float32]) -> float:
    """Return what the official evaluator of links makes of the scores of edges and of what they are compared with.

    Parameters
    ----------
    evaluator : "ogb:ogbl-NAME" is `ogb.linkproppred.Evaluator`
    edges : (n,)
    negatives : (n, k), those of each edge, where it ranks them; (m,), those of all edges, where it counts hits

    Raises
    ------
    ImportError
        The ogb package is not installed.
    """
    import torch

    with _quiet():
        from ogb.linkproppred import Evaluator

        judge = Evaluator(evaluator.removeprefix("ogb:"))
        # Tensors, as it fails on the arrays that it says it takes where it ranks.
        given = {"y_pred_pos": torch.from_numpy(edges), "y_pred_neg": torch.from_numpy(negatives)}
        found = judge.eval(given)
    return float(found["mrr_list"].mean() if judge.eval_metric == "mrr" else found[judge.eval_metric])


@contextmanager
def _quiet() -> Iterator[None]:
    """Have ogb, and what it imports, not warn, and DGL not ask for a backend."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
