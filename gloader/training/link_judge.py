"""Evaluation of predicted links: scores of node pairs, and metrics such as hits@K, MRR and AUC.

A link table lists edges, for example for validation. A positive is an edge of a link table, and a negative is a pair of
nodes that is no edge. A good network gives positives higher scores. A table may store negatives for each edge or for
all edges; otherwise they are drawn at random.

The functions first in this module compute metrics from scores. `PairScorer` computes scores in chunks, from embeddings,
the network's output rows, which may lie on the SSD. `LinkJudge` chooses the pairs and turns their scores into the
metric. `gloader.training.link_prediction` calls it after an epoch and at the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch

from gloader.core.hashing import GOLDEN, mix_int, mixed_words
from gloader.core.malformed import shown
from gloader.errors import ConfigError, DivergedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.dataset.link_table import LinkTable
    from gloader.training.inference.layer_rows import EmbeddedRows
    from gloader.types import IdArray, LinkReader, LinkRows

    Scores = NDArray[np.float32]


_HITS: Final = re.compile(r"hits@([1-9]\d{0,8})")  # the metric hits@K, with K
# Metrics without K.
_PLAIN: Final[tuple[Literal["mrr", "auc", "acc", "rmse"], ...]] = ("mrr", "auc", "acc", "rmse")
_LOWEST: Final = np.float32(-np.inf)  # below every score


@dataclass(frozen=True, slots=True)
class LinkMetric:
    """A metric for a set of links. ``str()`` is its name in ``result.json`` and on the command line.

    hits@K is the share of positives above the K-th best negative. "mrr" is the mean reciprocal rank of a positive among
    its negatives. "auc" is the area under the ROC curve. "acc" (accuracy) and "rmse" (error) judge learned labels.
    """

    kind: Literal["hits", "mrr", "auc", "acc", "rmse"]
    k: int = 0  # K of hits@K

    def __str__(self) -> str:
        """Return the name, such as "hits@50"."""
        return f"hits@{self.k}" if self.kind == "hits" else self.kind

    @property
    def is_error(self) -> bool:
        """True if a smaller value is better."""
        return self.kind == "rmse"


def parse_metric(text: str) -> LinkMetric | None:
    """Return the metric named by ``text``, or None for "auto". Pure.

    Raises
    ------
    ConfigError
        The text names no metric.
    """
    if text == "auto":
        return None
    for kind in _PLAIN:
        if text == kind:
            return LinkMetric(kind)
    match = _HITS.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"metric {shown(text)} is not known; allowed: auto, hits@K such as hits@50, mrr, auc; for labels "
            "of links, learned with --negatives none, acc (classes) or rmse (values)"
        )
    return LinkMetric("hits", int(match[1]))


def reciprocal_ranks(positives: Scores, negatives: Scores) -> NDArray[np.float64]:
    """Return 1 / rank of each positive among its own negatives, (n,). Pure.

    The rank is the mean of the first and the last rank among negatives with the same score, as in OGB.

    Parameters
    ----------
    positives : (n,)
    negatives : (n, k)
    """
    better = np.count_nonzero(negatives > positives[:, None], axis=1)
    as_good = np.count_nonzero(negatives >= positives[:, None], axis=1)
    reciprocals: NDArray[np.float64] = 1.0 / (0.5 * (better + as_good) + 1.0)
    return reciprocals


def hits_of_rows(positives: Scores, negatives: Scores, k: int) -> int:
    """Return the number of positives that score strictly above the k-th best of their own negatives. Pure.

    A positive with fewer than k negatives counts too.

    Parameters
    ----------
    positives : (n,) scores
    negatives : (n, m) scores, m for each positive
    k : at least 1
    """
    as_good = np.count_nonzero(negatives >= positives[:, None], axis=1)
    return int(np.count_nonzero(as_good < k))


def best_scores(chunks: Iterable[Scores], k: int) -> Scores:
    """Return the k best scores, ascending, or all if there are fewer. Holds a few copies of k scores and of a chunk."""
    best = np.empty(0, np.float32)
    for chunk in chunks:
        both = np.concatenate([best, chunk.ravel()])
        best = np.partition(both, len(both) - k)[len(both) - k :] if len(both) > k else both
    return np.sort(best)


def hits(positives: Iterable[Scores], negatives: Iterable[Scores], k: int) -> float:
    """Return the share of positives strictly above the k-th best negative. With fewer than k negatives it is 1."""
    best = best_scores(negatives, k)
    threshold = best[0] if len(best) == k else _LOWEST
    num_hits = num_rows = 0
    for chunk in positives:
        num_hits += len(chunk) if len(best) < k else int(np.count_nonzero(chunk > threshold))
        num_rows += len(chunk)
    return num_hits / max(num_rows, 1)


class AucCount:
    """The exact area under the ROC curve: the share of (positive, negative) pairs in the right order.

    A pair with equal scores counts half. Holds the sorted positives; negatives come in chunks.

    Parameters
    ----------
    positives : (n,)
    """

    def __init__(self, positives: Scores) -> None:
        self._positives = np.sort(positives)
        # A pair in the right order counts 2, a pair with equal scores 1. Python ints: the sum may exceed 2**63.
        self.twice_right = 0
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
    positives : chunks of scores; each chunk is sorted and held during one pass over the negatives
    negatives : called once per chunk of positives; returns an iterator over all negatives in chunks
    """
    twice_right = num_pairs = 0
    for chunk in positives:
        count = AucCount(chunk)
        for scores in negatives():
            count.add(scores)
        twice_right += count.twice_right
        num_pairs += count.num_pairs
    return twice_right / max(2 * num_pairs, 1)


_FLOAT_BYTES: Final = 4  # bytes of a float32
# Bytes per pair: both ids, the destinations' order, their numbers, the score, and temporaries.
_PAIR_BYTES: Final = 48
# The scorer's memory has four equal parts: rows of sources, rows of destinations, ids and scores of pairs, and
# temporaries of the decoder.
_SHARES: Final = 4
# Rows per pair that the decoder holds at once: both ends, their product, hidden layers.
_DECODER_ROWS: Final = 6


class PairScorer:
    """Scores pairs of nodes from the embeddings of both ends.

    Each call reads every required row once for its sources and once for its destinations, in ascending order. On an
    SSD this is one pass over a part of the file. Destinations are read in blocks, because they may exceed the memory.

    Parameters
    ----------
    decoder : maps the rows of both ends, (P, width) each, to (P,) scores, or (P, C) with C outputs per pair
    sources, destinations : embeddings of both ends; the same object if both ends have the same node type
    budget_bytes : memory for the held rows and for the data of pairs
    place : the decoder's device
    """

    def __init__(
        self,
        decoder: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        sources: EmbeddedRows,
        destinations: EmbeddedRows,
        *,
        budget_bytes: int,
        place: torch.device,
    ) -> None:
        self._decoder = decoder
        self._sources, self._destinations = sources, destinations
        self._share_bytes = budget_bytes // _SHARES
        self._place = place
        row_bytes = _FLOAT_BYTES * sources.width
        # Rows of one end that are held at once, and pairs that are decoded at once.
        self._rows_held = max(1, self._share_bytes // row_bytes)
        self._pairs_decoded = max(1, self._share_bytes // (_DECODER_ROWS * row_bytes))

    def rows_per_call(self, num_destinations: int = 1) -> int:
        """Return the maximum number of sources in one call of `score`, each with ``num_destinations`` destinations."""
        return max(1, min(self._rows_held, self._share_bytes // (_PAIR_BYTES * num_destinations)))

    @torch.no_grad()
    def score(self, sources: IdArray, destinations: IdArray) -> Scores:
        """Return scores in the shape of ``destinations``, with (C,) appended for a decoder with C outputs.

        Parameters
        ----------
        sources : (n,) int64, at most `rows_per_call`
        destinations : (n,), or (n, k) with k destinations for each source

        Raises
        ------
        DivergedError
            Scores are NaN, which no metric can rank. The error counts them.
        """
        ids, source_at = np.unique(sources, return_inverse=True)
        source_rows = self._take(self._sources, ids)
        # `flat` has the destination of each pair, and `order` lists the pairs sorted by destination. `distinct` has
        # each destination once, ascending. `number` gives each sorted pair's place of its destination in `distinct`.
        flat = destinations.ravel()
        per_source = len(flat) // max(len(sources), 1)
        order = np.argsort(flat, kind="stable")
        ascending = flat[order]
        is_new = np.r_[True, ascending[1:] != ascending[:-1]][: len(ascending)]
        number = np.cumsum(is_new) - 1
        distinct = ascending[is_new]
        result: Scores | None = None
        for start in range(0, len(distinct), self._rows_held):
            block = self._take(self._destinations, distinct[start : start + self._rows_held])
            first, last = np.searchsorted(number, [start, start + self._rows_held])
            for begin in range(first, last, self._pairs_decoded):
                pairs = order[begin : min(begin + self._pairs_decoded, last)]
                scores = self._decode(
                    source_rows,
                    source_at[pairs // per_source],
                    block,
                    number[begin : begin + len(pairs)] - start,
                )
                if result is None:
                    result = np.empty((len(flat), *scores.shape[1:]), np.float32)
                result[pairs] = scores
        if result is None:
            return np.empty(destinations.shape, np.float32)
        if num_bad := int(np.count_nonzero(np.isnan(result))):
            raise DivergedError(
                f"{num_bad:,} of {result.size:,} scores of pairs are NaN: features that they are computed from are "
                "NaN, or the network diverged; clean them (gloader prepare refuses them without --allow-nan), or train "
                "with a lower --lr"
            )
        return result.reshape(*destinations.shape, *result.shape[1:])

    def _take(self, rows: EmbeddedRows, ids: IdArray) -> torch.Tensor:
        """Return the rows ``ids`` (n,) on the decoder's device, (n, width)."""
        out = np.empty((len(ids), rows.width), np.float32)
        rows.take(ids, out)
        return torch.from_numpy(out).to(self._place)

    def _decode(
        self, sources: torch.Tensor, source_at: IdArray, destinations: torch.Tensor, destination_at: IdArray
    ) -> Scores:
        """Return the scores of P pairs. ``source_at`` and ``destination_at`` (P,) are row numbers of both ends."""
        ends = (
            rows[torch.from_numpy(at).to(self._place)]
            for rows, at in ((sources, source_at), (destinations, destination_at))
        )
        scores: Scores = self._decoder(*ends).float().cpu().numpy()
        return scores


# The table "valid_neg" has the negatives for all edges of the table "valid".
SHARED_SUFFIX: Final = "_neg"
# The reader of each open link table gets one part in eight of the budget.
_TABLE_SHARE: Final = 8
# For AUC, the positives' scores, which are sorted and held, get one part in eight too.
_SORTED_SHARE: Final = 8
# Key of the hash that draws negatives.
_DRAWN_KEY: Final = np.uint64(mix_int(int.from_bytes(b"judged", "big")))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkJudge:
    """Evaluates a table's edges against negatives.

    Negatives are given for each edge, or given for all edges, or drawn. A drawn negative pairs an edge's source with
    one random destination. The destination is a hash of the edge's row number, so every run draws the same.

    Parameters
    ----------
    table : the table of edges
    metric : the metric
    shared : the table of negatives for all edges, or None
    num_destinations : nodes of the destination type
    """

    table: LinkTable
    metric: LinkMetric
    shared: LinkTable | None
    num_destinations: int

    @classmethod
    def of(cls, dataset: Dataset, table: LinkTable, metric: LinkMetric) -> LinkJudge:
        """Return the judge for ``table`` of ``dataset``.

        Raises
        ------
        ConfigError
            The metric needs negatives for each edge, but the table has none.
        """
        if metric.kind == "mrr" and not table.negatives_per_row:
            raise ConfigError(
                f"metric mrr ranks each edge among negatives of its own, and links {table.name!r} of {dataset.name} "
                "have none; use hits@K or auc"
            )
        return cls(
            table=table,
            metric=metric,
            shared=None if table.negatives_per_row else dataset.link_tables.get(table.name + SHARED_SUFFIX),
            num_destinations=dataset.node_tables[table.relation[2]].num_nodes,
        )

    def judge(self, scorer: PairScorer, *, budget_bytes: int) -> float | None:
        """Return the metric's value; None for a table without edges.

        Parameters
        ----------
        scorer : scores pairs by the network
        budget_bytes : memory for the table and the scores, without the scorer's own memory
        """
        if self.table.num_rows == 0:
            return None
        with self.table.open(max_bytes=budget_bytes // _TABLE_SHARE) as table:
            if self.metric.kind in ("acc", "rmse"):
                return self._of_labels(scorer, table)
            if self.table.negatives_per_row and self.metric.kind != "auc":
                return self._of_rows(scorer, table)
            if self.metric.kind == "hits":
                return hits(
                    self._positives(scorer, table),
                    self._negatives(scorer, table, budget_bytes),
                    self.metric.k,
                )
            # A score takes 4 bytes, and exists several times: in its chunk, in the joined chunks, and sorted.
            most = max(1, budget_bytes // (4 * 4 * _SORTED_SHARE))
            return auc(
                _joined(self._positives(scorer, table), most),
                lambda: self._negatives(scorer, table, budget_bytes),
            )

    def _of_rows(self, scorer: PairScorer, table: LinkReader) -> float:
        """Return MRR or hits@K, with each edge ranked among the negatives given for this edge."""
        total = 0.0
        for rows in self._chunks(table, scorer.rows_per_call(1 + self.table.negatives_per_row)):
            positives = scorer.score(rows.sources, rows.destinations)
            negatives = scorer.score(rows.sources, _given(rows))
            if self.metric.kind == "mrr":
                total += float(reciprocal_ranks(positives, negatives).sum())
            else:
                total += hits_of_rows(positives, negatives, self.metric.k)
        return total / table.num_rows

    def _of_labels(self, scorer: PairScorer, table: LinkReader) -> float:
        """Return the accuracy of predicted classes, or the root mean square error of predicted values."""
        total = 0.0
        for rows in self._chunks(table, scorer.rows_per_call()):
            scores = scorer.score(rows.sources, rows.destinations)
            labels = rows.labels
            assert labels is not None  # noqa: S101 - checked before training
            if self.metric.kind == "acc":
                total += int(np.count_nonzero(scores.argmax(axis=1) == labels))
            else:
                total += float(np.square(np.subtract(scores, labels, dtype=np.float64)).sum())
        mean = total / table.num_rows
        return mean if self.metric.kind == "acc" else mean**0.5

    def _positives(self, scorer: PairScorer, table: LinkReader) -> Iterator[Scores]:
        """Yield the scores of the table's edges, in chunks."""
        for rows in self._chunks(table, scorer.rows_per_call()):
            yield scorer.score(rows.sources, rows.destinations)

    def _negatives(self, scorer: PairScorer, table: LinkReader, budget_bytes: int) -> Iterator[Scores]:
        """Yield the scores of the negatives, in chunks."""
        for sources, destinations in self._negative_pairs(scorer, table, budget_bytes):
            yield scorer.score(sources, destinations)

    def _negative_pairs(
        self, scorer: PairScorer, table: LinkReader, budget_bytes: int
    ) -> Iterator[tuple[IdArray, IdArray]]:
        """Yield sources (n,) and destinations (n,) or (n, k) of negatives, in chunks that fit the scorer."""
        if self.shared is not None:
            with self.shared.open(max_bytes=budget_bytes // _TABLE_SHARE) as shared:
                for rows in self._chunks(shared, scorer.rows_per_call()):
                    yield rows.sources, rows.destinations
            return
        num_given = self.table.negatives_per_row
        first = 0
        for rows in self._chunks(table, scorer.rows_per_call(max(1, num_given))):
            if num_given:
                yield rows.sources, _given(rows)
            else:
                yield rows.sources, self._drawn(first, len(rows.sources))
            first += len(rows.sources)

    def _drawn(self, first: int, count: int) -> IdArray:
        """Return the random destinations of ``count`` rows, from row ``first`` on, (count,)."""
        rows = np.arange(first, first + count, dtype=np.uint64)
        # The upper 53 bits of the hash make a float64 in [0, 1).
        share = (mixed_words(rows * GOLDEN + _DRAWN_KEY) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        destinations: IdArray = (share * self.num_destinations).astype(np.int64)
        return destinations

    @staticmethod
    def _chunks(table: LinkReader, size: int) -> Iterator[LinkRows]:
        """Yield the table's rows in order, ``size`` at a time."""
        for start in range(0, table.num_rows, size):
            yield table.read(np.arange(start, min(start + size, table.num_rows), dtype=np.int64))


def auto_metric(dataset: Dataset, table: LinkTable) -> LinkMetric:
    """Return the metric that fits a table's given negatives. Pure."""
    if table.negatives_per_row:
        return LinkMetric("mrr")
    return LinkMetric("hits", 50) if table.name + SHARED_SUFFIX in dataset.link_tables else LinkMetric("auc")


def _given(rows: LinkRows) -> IdArray:
    """Return the negatives given for each row, (n, k)."""
    if rows.negatives is None:
        raise AssertionError("the table has negatives for each row")
    return rows.negatives


def _joined(chunks: Iterator[Scores], most: int) -> Iterator[Scores]:
    """Yield the scores in chunks of at least ``most`` scores; the last chunk may be smaller."""
    parts: list[Scores] = []
    for chunk in chunks:
        parts.append(chunk)
        if sum(map(len, parts)) >= most:
            yield np.concatenate(parts)
            parts = []
    if parts:
        yield np.concatenate(parts)
