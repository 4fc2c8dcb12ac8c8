"""Sources of a conversion: a graph as streams of edges and feature rows, never as whole arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.convert.links.link_source import LinkSource
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeChunk:
    """Consecutive edges of a stream: edge i runs from ``src[i]`` to ``dst[i]``."""

    src: IdArray  # (n,)
    dst: IdArray  # (n,)
    weight: NDArray[np.float32] | None  # (n,)
    time: IdArray | None = None  # (n,) int64 seconds
    # (n,) of each edge in the source, by which its features are found; None: the edges before it in the stream
    number: IdArray | None = None

    def take(self, which: NDArray[np.bool_] | IdArray) -> EdgeChunk:
        """Return the edges that ``which``, a mask (n,) or positions, chooses. Pure."""

        def of(column: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if column is None else column[which]

        return EdgeChunk(
            src=self.src[which],
            dst=self.dst[which],
            weight=of(self.weight),
            time=of(self.time),
            number=of(self.number),
        )


class EdgeStream(Protocol):
    """The edges of a graph in a fixed order. Every call of ``chunks`` starts again at the first edge."""

    @property
    def num_edges(self) -> int | None:
        """Number of edges; None: unknown until they are read."""
        ...

    @property
    def has_weights(self) -> bool:
        """Whether every chunk carries weights."""
        ...

    @property
    def has_times(self) -> bool:
        """Whether every chunk carries times."""
        ...

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedEdges:
    """The base of edge streams over another one: size and columns are those of ``edges``; ``chunks`` is their own."""

    edges: EdgeStream

    @property
    def num_edges(self) -> int | None:
        """Number of edges; None: unknown until they are read."""
        return self.edges.num_edges

    @property
    def has_weights(self) -> bool:
        """Whether every chunk carries weights."""
        return self.edges.has_weights

    @property
    def has_times(self) -> bool:
        """Whether every chunk carries times."""
        return self.edges.has_times


class FeatureStream(Protocol):
    """The feature rows of a graph, in order of its nodes or edges. Every call of ``chunks`` starts again at row 0."""

    @property
    def num_rows(self) -> int:
        """N, or E."""
        ...

    @property
    def dim(self) -> int:
        """F."""
        ...

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        ...

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Node ids of the three parts of a node-classification task."""

    train: IdArray
    valid: IdArray
    test: IdArray

    @property
    def num_bytes(self) -> int:
        """Bytes of all ids."""
        return self.train.nbytes + self.valid.nbytes + self.test.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSplits(Splits):
    """Splits that were dealt out, as none were given."""

    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A graph with features, labels and splits that a conversion turns into a dataset."""

    name: str  # a short name for people, such as "ogbn-arxiv"
    origin: str  # the source as it was asked for, such as "ogb:ogbn-arxiv"
    num_nodes: int
    num_classes: int
    edges: EdgeStream
    features: FeatureStream
    labels: IdArray  # (N,), -1 where unlabelled
    splits: Splits
    edge_features: FeatureStream | None = None  # (E, F_e) in the order of ``edges``
    edge_file: Path | None = None  # where the edges come from, for messages
    row_ids: IdArray | None = None  # (N,) the node of each row of ``features``; None: row i is of node i
    resident_bytes: int = 0  # memory that the streams hold besides their chunks, such as row offsets
    links: tuple[LinkSource, ...] = ()  # tables of edges that are predicted
    said: tuple[str, ...] = ()  # for the receipt: "e.csv: src and dst are the ends, amount the weight"
    unused: tuple[str, ...] = ()  # that it holds and the dataset will not, such as "pos (N, 3)"

    @property
    def edge_origin(self) -> str:
        """The file of the edges, or else the source, for messages."""
        return str(self.edge_file or self.origin)
