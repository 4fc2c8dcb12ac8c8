"""Link tables on their way into a dataset: streams of rows, from arrays, files or the edges of a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChunk:
    """Consecutive rows of a link table."""

    src: IdArray  # (n,)
    dst: IdArray  # (n,)
    time: IdArray | None = None  # (n,) seconds

    @property
    def num_rows(self) -> int:
        """Rows of the chunk."""
        return int(self.src.shape[0])


class LinkStream(Protocol):
    """The rows of a link table in a fixed order. Every call of a method starts again at row 0."""

    @property
    def num_rows(self) -> int | None:
        """Number of rows; None: unknown until they are read."""
        ...

    @property
    def has_times(self) -> bool:
        """Whether every chunk carries times."""
        ...

    @property
    def label_dtype(self) -> str | None:
        """The dtype of the labels, int64 or float32; None: there are none."""
        ...

    @property
    def negatives_per_row(self) -> int:
        """Destinations given as wrong ones for each row; 0: none."""
        ...

    def chunks(self, max_rows: int) -> Iterator[LinkChunk]:
        """Yield the rows in order, at most ``max_rows`` at a time."""
        ...

    def labels(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield the labels in order, (n,) of ``label_dtype``; nothing where there are none."""
        ...

    def negatives(self, max_rows: int) -> Iterator[IdArray]:
        """Yield the given negatives in order, (n, k); nothing where there are none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSource:
    """A link table that a conversion writes."""

    name: str
    rows: LinkStream
    where: str  # what holds it, for messages
    relation: str | None = None  # "author:writes:paper", or its name alone; None: the only one
    reverse: str | None = (
        None  # the relation that leads back; None: the one that is named so, if there is one
    )
