"""A run of `gloader train`, as the values that a report shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isnan
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_ERRORS: Final = ("rmse",)  # metrics of which less is better


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One line of ``metrics.jsonl``."""

    number: int  # from 1, as on the screen; the file counts from 0
    seconds: float
    evaluate_seconds: float
    loss: float
    train_acc: float
    valid: float | None
    rows: int
    hit_rate: float
    bytes_read: int  # those of passes over the edges too
    bytes_written: int
    bottleneck: str
    wait_s: float | None  # that the loop waited for the loader; None: an earlier version did not record it
    parts: tuple[float, ...]  # its seconds as of `gloader.lab.report.waits.PARTS`; empty: not recorded
    memory_bytes: tuple[int, ...]  # the most in equal parts of its time; empty: not recorded

    @property
    def all_seconds(self) -> float:
        """With its evaluation."""
        return self.seconds + self.evaluate_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A run of `gloader train`, finished or not."""

    name: str
    source: str
    epochs: tuple[Epoch, ...]
    metric: str  # what validation and the test measured: acc, or of links hits@K, mrr, auc
    settings: Mapping[str, str]  # of config.yaml; empty: it has none
    seed: str
    budget_bytes: int | None  # of memory; None: not recorded
    result: Mapping[str, Any]  # empty as long as it is not finished

    @property
    def test(self) -> float | None:
        """What the test measured; None as long as it did not, or without anything to test with."""
        value = self.result.get(f"test_{self.metric}")
        return None if value is None else float(value)

    @property
    def best(self) -> float | None:
        """The best validation; one that is not a number counts for none."""
        known = [each.valid for each in self.epochs if each.valid is not None and not isnan(each.valid)]
        return (min if self.metric in _ERRORS else max)(known) if known else None

    @property
    def epoch_s(self) -> float | None:
        """The median of the seconds of an epoch, without its evaluation."""
        return median(epoch.seconds for epoch in self.epochs) if self.epochs else None

    @property
    def waiting(self) -> float | None:
        """Share of the seconds of its epochs that the loop waited for the loader; None: not recorded."""
        known = [epoch for epoch in self.epochs if epoch.wait_s is not None]
        total = sum(epoch.seconds for epoch in known)
        return sum(epoch.wait_s or 0.0 for epoch in known) / total if total > 0 else None

    @property
    def total_seconds(self) -> float:
        """Of the whole run; of one that is not finished, of its epochs."""
        return float(self.result.get("total_seconds", sum(epoch.all_seconds for epoch in self.epochs)))

    @property
    def bytes_read(self) -> int:
        """From the SSD."""
        return sum(epoch.bytes_read for epoch in self.epochs)

    @property
    def bytes_written(self) -> int:
        """To the SSD."""
        return sum(epoch.bytes_written for epoch in self.epochs)

    @property
    def hit_rate(self) -> float | None:
        """Share of the rows that came from memory."""
        rows = sum(epoch.rows for epoch in self.epochs)
        return sum(epoch.rows * epoch.hit_rate for epoch in self.epochs) / rows if rows else None

    @property
    def peak_bytes(self) -> int | None:
        """Most anonymous memory, as the budget counts it; None: not recorded."""
        seen = max((most for epoch in self.epochs for most in epoch.memory_bytes), default=None)
        known = self.result.get("peak_anonymous_bytes", seen)
        return None if known is None else int(known)

    def named(self, name: str) -> Training:
        """Return the same run under another name."""
        return replace(self, name=name)
