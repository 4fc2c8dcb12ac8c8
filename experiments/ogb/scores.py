"""Accuracy by the official evaluators."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def score(evaluator: str, truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Return the accuracy of ``predicted`` (n,) for the classes ``truth`` (n,) by ``evaluator``.

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
    os.environ.setdefault("DGLBACKEND", "pytorch")  # or DGL, which ogb imports, asks for it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ogb and of what it imports
        if evaluator == "ogb-lsc":
            from ogb.lsc import MAG240MEvaluator

            return float(MAG240MEvaluator().eval({"y_true": truth, "y_pred": predicted})["acc"])
        from ogb.nodeproppred import Evaluator

        judge = Evaluator(evaluator.removeprefix("ogb:"))
        return float(judge.eval({"y_true": truth[:, None], "y_pred": predicted[:, None]})["acc"])
