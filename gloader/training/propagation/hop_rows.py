"""The hop columns of the kept nodes as rows: propagated features, then propagated labels.

The columns are in groups: a group has the columns that one metapath and one statistic make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gloader.training.propagation.label_rows import without_own_fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray


class MadeColumns(Protocol):
    """The columns that a propagation has made, for all kept nodes."""

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the rows (n, width) of the kept nodes ``start`` to ``stop``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HopGroup:
    """The columns that one metapath and one statistic make."""

    name: str  # such as "in2.mean"
    columns: tuple[str, ...]  # the names of the columns within the group

    @property
    def full_names(self) -> list[str]:
        """The names of the columns, such as "in2.mean.age"."""
        return [f"{self.name}.{column}" for column in self.columns]


def spans(groups: Sequence[HopGroup]) -> list[tuple[str, int, int]]:
    """Return the name, the first column and the column after the last one of each group. Pure."""
    ends = np.cumsum([0, *(len(group.columns) for group in groups)]).tolist()
    return [(group.name, ends[i], ends[i + 1]) for i, group in enumerate(groups)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HopRows:
    """The rows of all hop columns, read in the order of the kept nodes.

    Each group of propagated labels is read fold by fold, and becomes a sum over folds here.
    """

    nodes: IdArray | range  # (n,) the kept nodes, ascending
    groups: tuple[HopGroup, ...]  # of the features, then of the labels
    dtype: str  # the stored dtype
    features: MadeColumns  # (n, w)
    labels: MadeColumns | None  # (n, groups * NUM_FOLDS * w); None without propagated labels
    num_label_groups: int = 0
    on_rows: Callable[[int], None] = lambda _: None  # called with the number of rows so far

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(len(group.columns) for group in self.groups)

    def chunks(self, num_rows: int) -> Iterator[tuple[IdArray, NDArray[np.float32]]]:
        """Yield consecutive kept nodes (m,), at most ``num_rows``, and their rows (m, width)."""
        for start in range(0, len(self.nodes), num_rows):
            stop = min(start + num_rows, len(self.nodes))
            nodes = np.asarray(self.nodes[start:stop], np.int64)
            parts = [self.features.read(start, stop)]
            if self.labels is not None:
                # Each hop has its own sums.
                hops = np.split(self.labels.read(start, stop), self.num_label_groups, axis=1)
                parts += [without_own_fold(hop, nodes) for hop in hops]
            yield nodes, np.hstack(parts)
            self.on_rows(stop)
