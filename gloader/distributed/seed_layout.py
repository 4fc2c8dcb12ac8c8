"""The layout in shared memory of what comes with a batch's seeds where they are no plain nodes: links, trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np

from gloader.types import HeteroBatch, Links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.types import AnyBatch

ArrayKinds: TypeAlias = Iterator[tuple[type[np.generic], int]]  # dtype and length of one array after another

_LABELS: Final[dict[str, type[np.generic]]] = {"float32": np.float32, "int64": np.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """The sizes of `Links`."""

    num_pairs: int  # P
    num_positives: int
    label_dtype: str  # of `_LABELS`
    has_times: bool = False

    @classmethod
    def of(cls, links: Links) -> LinkShape:
        """Return the sizes of ``links``; raise TypeError where labels have another dtype."""
        if links.labels.dtype.name not in _LABELS:
            raise TypeError(f"labels of links have dtype {links.labels.dtype}; they must be float32 or int64")
        return cls(
            num_pairs=len(links.pairs),
            num_positives=links.num_positives,
            label_dtype=links.labels.dtype.name,
            has_times=links.times is not None,
        )

    def to_json(self) -> list[Any]:
        """Return the sizes as a JSON array."""
        times = [True] if self.has_times else []
        return [self.num_pairs, self.num_positives, self.label_dtype, *times]

    @classmethod
    def from_json(cls, sizes: object) -> LinkShape:
        """Parse a result of `to_json`; raise ValueError if it is none."""
        if isinstance(sizes, list) and [type(size) for size in sizes[:3]] == [int, int, str]:
            num_pairs, num_positives, label_dtype, *times = sizes
            if 0 <= num_positives <= num_pairs and label_dtype in _LABELS and times in ([], [True]):
                return cls(
                    num_pairs=num_pairs,
                    num_positives=num_positives,
                    label_dtype=label_dtype,
                    has_times=bool(times),
                )
        raise ValueError(f"is {sizes!r:.80}, not the sizes of links")

    def arrays(self) -> ArrayKinds:
        """Yield the arrays: both ends of the pairs, labels, rows of the link table, times."""
        yield np.int32, 2 * self.num_pairs
        yield _LABELS[self.label_dtype], self.num_pairs
        yield np.int64, self.num_pairs
        if self.has_times:
            yield np.int64, self.num_positives

    def links(self, views: Iterator[NDArray[Any]]) -> Links:
        """Return the links whose arrays come next in ``views``."""
        return Links(
            pairs=next(views).reshape(-1, 2),
            labels=next(views),
            edge_ids=next(views),
            num_positives=self.num_positives,
            times=next(views) if self.has_times else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedShape:
    """What comes with batches whose seeds are not plain nodes: the pairs of links, and whose tree each node is of."""

    links: LinkShape | None = None
    has_trees: bool = False

    @classmethod
    def of(cls, batch: AnyBatch) -> Self:
        """Return the sizes of what comes with ``batch``."""
        links = None if batch.links is None else LinkShape.of(batch.links)
        return cls(links=links, has_trees=batch.trees is not None)

    def to_json(self) -> list[Any]:
        """Return the sizes as the last items of the JSON array of a batch: none of plain nodes."""
        if self.links is None and not self.has_trees:
            return []
        return [None if self.links is None else self.links.to_json(), self.has_trees]

    @classmethod
    def from_json(cls, sizes: list[Any]) -> Self:
        """Parse a result of `to_json`; raise ValueError if it is none."""
        if not sizes:
            return cls()
        if len(sizes) == 2 and type(sizes[1]) is bool and (sizes[0] is not None or sizes[1]):
            links = None if sizes[0] is None else LinkShape.from_json(sizes[0])
            return cls(links=links, has_trees=sizes[1])
        raise ValueError(f"is {sizes!r:.80}, not the sizes of links")

    def arrays(self, num_nodes: Sequence[int]) -> ArrayKinds:
        """Yield the arrays: trees of each type's nodes, then those of the links."""
        if self.has_trees:
            for count in num_nodes:
                yield np.int32, count
        if self.links is not None:
            yield from self.links.arrays()

    def read(
        self, views: Iterator[NDArray[Any]], num_types: int
    ) -> tuple[list[NDArray[np.int32]] | None, Links | None]:
        """Return the trees of each type, and the links, whose arrays come next in ``views``; None: there are none."""
        trees = [next(views) for _ in range(num_types)] if self.has_trees else None
        return trees, None if self.links is None else self.links.links(views)


PLAIN_SEEDS: Final = SeedShape()


def seed_arrays(batch: AnyBatch) -> list[NDArray[Any]]:
    """Return the arrays of a `SeedShape`, in its order."""
    found: list[NDArray[Any]] = []
    if batch.trees is not None:
        found += batch.trees.values() if isinstance(batch, HeteroBatch) else [batch.trees]
    if batch.links is not None:
        found += [batch.links.pairs.reshape(-1), batch.links.labels, batch.links.edge_ids]
        found += [] if batch.links.times is None else [batch.links.times]
    return found
