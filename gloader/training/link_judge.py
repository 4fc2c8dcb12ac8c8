"""How a table of links is judged: the negatives of its edges, and a figure of the scores of both, out of core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from gloader.core.hashing import GOLDEN, mix_int, mixed_words
from gloader.errors import ConfigError
from gloader.training.link_metrics import (
    LinkMetric,
    auc,
    hits,
    hits_of_rows,
    reciprocal_ranks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.dataset.link_table import LinkTable
    from gloader.types import IdArray, LinkReader, LinkRows

    Scores = NDArray[np.float32]

SHARED_SUFFIX: Final = "_neg"  # of the table of negatives that all edges of a table are compared with
_TABLE_SHARE: Final = 8  # of the budget, one part in so many is for each table that is read
_SORTED_SHARE: Final = 8  # and for scores of edges that all negatives are compared with
_DRAWN_KEY: Final = np.uint64(mix_int(int.from_bytes(b"judged", "big")))


class Scorer(Protocol):
    """What scores pairs; see `PairScorer`."""

    def rows_per_call(self, num_destinations: int = 1) -> int:
        """Return how many sources, each with so many destinations, one call may be given."""
        ...

    def score(self, sources: IdArray, destinations: IdArray, /) -> Scores:
        """Return the scores of pairs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkJudge:
    """Judges the edges of a table against negatives: those given for each, those given for all, or drawn ones.

    Drawn ones are the edges' sources with one random destination each, a hash of the row: the same in every run.

    Parameters
    ----------
    table : the edges
    metric : what comes of it
    shared : the table of the negatives that are given for all; None: there is none
    num_destinations : nodes of the destination type
    """

    table: LinkTable
    metric: LinkMetric
    shared: LinkTable | None
    num_destinations: int

    @classmethod
    def of(cls, dataset: Dataset, table: LinkTable, metric: LinkMetric) -> LinkJudge:
        """Return the judge of a table of ``dataset``.

        Raises
        ------
        ConfigError
            The metric needs negatives for each edge, and the table has none.
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

    def judge(self, scorer: Scorer, *, budget_bytes: int) -> float | None:
        """Return the figure; None for a table without edges.

        Parameters
        ----------
        scorer : of the network
        budget_bytes : for the table, and for scores, beside what the scorer takes
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
            most = max(1, budget_bytes // (4 * 4 * _SORTED_SHARE))  # sorting takes as much again
            return auc(
                _joined(self._positives(scorer, table), most),
                lambda: self._negatives(scorer, table, budget_bytes),
            )

    def _of_rows(self, scorer: Scorer, table: LinkReader) -> float:
        total = 0.0
        for rows in self._chunks(table, scorer.rows_per_call(1 + self.table.negatives_per_row)):
            positives = scorer.score(rows.sources, rows.destinations)
            negatives = scorer.score(rows.sources, _given(rows))
            if self.metric.kind == "mrr":
                total += float(reciprocal_ranks(positives, negatives).sum())
            else:
                total += hits_of_rows(positives, negatives, self.metric.k)
        return total / table.num_rows

    def _of_labels(self, scorer: Scorer, table: LinkReader) -> float:
        total = 0.0
        for rows in self._chunks(table, scorer.rows_per_call()):
            found = scorer.score(rows.sources, rows.destinations)
            labels = rows.labels
            assert labels is not None  # noqa: S101 - looked at before training
            if self.metric.kind == "acc":
                total += int(np.count_nonzero(found.argmax(axis=1) == labels))
            else:
                total += float(np.square(np.subtract(found, labels, dtype=np.float64)).sum())
        mean = total / table.num_rows
        return mean if self.metric.kind == "acc" else mean**0.5

    def _positives(self, scorer: Scorer, table: LinkReader) -> Iterator[Scores]:
        for rows in self._chunks(table, scorer.rows_per_call()):
            yield scorer.score(rows.sources, rows.destinations)

    def _negatives(self, scorer: Scorer, table: LinkReader, budget_bytes: int) -> Iterator[Scores]:
        for sources, destinations in self._wrong_pairs(scorer, table, budget_bytes):
            yield scorer.score(sources, destinations)

    def _wrong_pairs(
        self, scorer: Scorer, table: LinkReader, budget_bytes: int
    ) -> Iterator[tuple[IdArray, IdArray]]:
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
        """Return the random destinations of rows ``first`` and so on, (count,)."""
        rows = np.arange(first, first + count, dtype=np.uint64)
        share = (mixed_words(rows * GOLDEN + _DRAWN_KEY) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        found: IdArray = (share * self.num_destinations).astype(np.int64)
        return found

    @staticmethod
    def _chunks(table: LinkReader, size: int) -> Iterator[LinkRows]:
        for start in range(0, table.num_rows, size):
            yield table.read(np.arange(start, min(start + size, table.num_rows), dtype=np.int64))


def auto_metric(dataset: Dataset, table: LinkTable) -> LinkMetric:
    """Return the metric that suits the negatives which are given for a table. Pure."""
    if table.negatives_per_row:
        return LinkMetric("mrr")
    return LinkMetric("hits", 50) if table.name + SHARED_SUFFIX in dataset.link_tables else LinkMetric("auc")


def _given(rows: LinkRows) -> IdArray:
    if rows.negatives is None:
        raise AssertionError("the table has negatives for each row")
    return rows.negatives


def _joined(chunks: Iterator[Scores], most: int) -> Iterator[Scores]:
    """Yield the scores in chunks of about ``most``."""
    parts: list[Scores] = []
    for chunk in chunks:
        parts.append(chunk)
        if sum(map(len, parts)) >= most:
            yield np.concatenate(parts)
            parts = []
    if parts:
        yield np.concatenate(parts)
