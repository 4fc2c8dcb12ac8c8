"""The table of reached scores and published ones."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gloader.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks import Published

HEAD = (
    "| row | split | gloader | published | difference | in std | of | time | features | peak memory |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """One benchmark that was run."""

    name: str
    split: str
    scores: tuple[float, ...]  # one per run, by the official evaluator, as fractions
    published: Published
    seconds: float  # of all runs, evaluation included
    features: str
    peak_rss_bytes: int

    @property
    def mean(self) -> float:
        """Mean over the runs, in per cent."""
        return 100 * statistics.fmean(self.scores)

    @property
    def std(self) -> float | None:
        """Unbiased standard deviation over the runs, in per cent; None for one run."""
        return 100 * statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def difference(self) -> float:
        """Points above what was published."""
        return self.mean - self.published.mean

    @property
    def deviations(self) -> float | None:
        """The difference in standard deviations: the published one, or else that of our runs."""
        unit = self.published.std or self.std
        return self.difference / unit if unit else None

    def markdown(self) -> str:
        """Return the row of the table."""
        published = self.published
        cells = (
            self.name,
            self.split,
            _with_spread(self.mean, self.std),
            _with_spread(published.mean, published.std),
            f"{self.difference:+.2f}",
            "" if self.deviations is None else f"{self.deviations:+.1f}",
            published.of + (f"; {published.differs}" if published.differs else ""),
            format_seconds(self.seconds),
            self.features,
            format_bytes(self.peak_rss_bytes),
        )
        return f"| {' | '.join(cells)} |"

    def figures(self) -> dict[str, Any]:
        """Return the row as JSON."""
        return {
            "name": self.name,
            "split": self.split,
            "scores": list(self.scores),
            "mean": self.mean,
            "std": self.std,
            "published": {name: getattr(self.published, name) for name in ("mean", "std", "of", "differs")},
            "difference": self.difference,
            "difference_in_std": self.deviations,
            "seconds": self.seconds,
            "features": self.features,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def markdown_table(rows: Sequence[ScoreRow], *, runs: int, settings: Sequence[str], note: str = "") -> str:
    """Return the table of ``rows``, with what its reader has to know. Pure."""
    intro = (
        f"Scores (accuracy; of links hits@K or MRR) in per cent by the official evaluators, mean and unbiased standard "
        f"deviation of {runs} run{'s' if runs > 1 else ''}; the difference is in points, and in published standard "
        f"deviations (in our own where none is published)."
    )
    if settings:
        intro += f" Not the recipes' settings: {' '.join(settings)}."
    return "\n".join([*filter(None, (note, intro)), "", *HEAD, *(row.markdown() for row in rows)]) + "\n"


def _with_spread(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}")
