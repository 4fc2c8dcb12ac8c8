"""How well links are told from wrong ones: hits@K, MRR and AUC from scores that come in chunks.

The formulas are those of OGB's ``Evaluator`` (hits, MRR) and of scikit-learn's ``roc_auc_score``. OGB's own is what the
tests compare with, and not what a run calls: to import it asks the network for updates, and brings pandas and
scikit-learn beside the memory budget.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from gloader.core.malformed import shown
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Scores = NDArray[np.float32]

_HITS: Final = re.compile(r"hits@([1-9]\d{0,8})")
_LOWEST: Final = np.float32(-np.inf)


@dataclass(frozen=True, slots=True)
class LinkMetric:
    """A figure of a set of links. ``str()`` is its name, in `result.json` and on the command line."""

    kind: Literal["hits", "mrr", "auc", "acc", "rmse"]
    k: int = 0  # of hits

    def __str__(self) -> str:
        """Return the form of the command line, such as "hits@50"."""
        return f"hits@{self.k}" if self.kind == "hits" else self.kind

    @property
    def is_error(self) -> bool:
        """Whether less of it is better."""
        return self.kind == "rmse"


def parse_metric(text: str) -> LinkMetric | None:
    """Return the metric that ``text`` names; None for "auto". Pure.

    Raises
    ------
    ConfigError
        It names none.
    """
    if text == "auto":
        return None
    if text == "mrr":
        return LinkMetric("mrr")
    if text == "auc":
        return LinkMetric("auc")
    found = _HITS.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"metric {shown(text)} is not known; allowed: auto, hits@K such as hits@50, mrr, auc"
        )
    return LinkMetric("hits", int(found[1]))


def reciprocal_ranks(positives: Scores, negatives: Scores) -> NDArray[np.float64]:
    """Return 1 / rank of each positive among its own negatives, (n,). Pure.

    The rank is the mean of that before and that behind all negatives of the same score, as of OGB.

    Parameters
    ----------
    positives : (n,)
    negatives : (n, k)
    """
    better = np.count_nonzero(negatives > positives[:, None], axis=1)
    as_good = np.count_nonzero(negatives >= positives[:, None], axis=1)
    found: NDArray[np.float64] = 1.0 / (0.5 * (better + as_good) + 1.0)
    return found


def hits_of_rows(positives: Scores, negatives: Scores, k: int) -> int:
    """Return how many positives are strictly above the k-th best of their own negatives, or have fewer. Pure.

    Parameters
    ----------
    positives : (n,)
    negatives : (n, m)
    k : at least 1
    """
    as_good = np.count_nonzero(negatives >= positives[:, None], axis=1)
    return int(np.count_nonzero(as_good < k))


def best_scores(chunks: Iterable[Scores], k: int) -> Scores:
    """Return the k best of all scores, the least first; fewer where there are no more. Holds 2k and a chunk."""
    best = np.empty(0, np.float32)
    for chunk in chunks:
        both = np.concatenate([best, chunk.ravel()])
        best = np.partition(both, len(both) - k)[len(both) - k :] if len(both) > k else both
    return np.sort(best)


def hits(positives: Iterable[Scores], negatives: Iterable[Scores], k: int) -> float:
    """Return the share of positives strictly above the k-th best of all negatives; 1 where those are fewer."""
    best = best_scores(negatives, k)
    threshold = best[0] if len(best) == k else _LOWEST
    num_hits = num_rows = 0
    for chunk in positives:
        num_hits += len(chunk) if len(best) < k else int(np.count_nonzero(chunk > threshold))
        num_rows += len(chunk)
    return num_hits / max(num_rows, 1)


class AucCount:
    """The area under the ROC curve: the share of pairs of a positive and a negative in the right order, exactly.

    A pair of equal scores counts half. Holds the positives, sorted; negatives come in chunks.

    Parameters
    ----------
    positives : (n,)
    """

    def __init__(self, positives: Scores) -> None:
        self._positives = np.sort(positives)
        self.twice_right = 0  # Python ints: a pair counts 2, 1 or 0, and there may be more than 2**63
        self.num_pairs = 0

    def add(self, negatives: Scores) -> None:
        """Count all positives against a chunk of negatives."""
        scores, n = negatives.ravel(), len(self._positives)
        not_above = np.searchsorted(self._positives, scores, side="right")
        below = np.searchsorted(self._positives, scores, side="left")
        self.twice_right += 2 * n * len(scores) - int(not_above.sum()) - int(below.sum())
        self.num_pairs += n * len(scores)


def auc(positives: Iterable[Scores], negatives: Any) -> float:
    """Return the area under the ROC curve.

    Parameters
    ----------
    positives : chunks, each of which is held, sorted, while all negatives come by
    negatives : called for an iterator over chunks of all negatives, once for each chunk of positives
    """
    twice_right = num_pairs = 0
    for chunk in positives:
        count = AucCount(chunk)
        for scores in negatives():
            count.add(scores)
        twice_right += count.twice_right
        num_pairs += count.num_pairs
    return twice_right / max(2 * num_pairs, 1)
