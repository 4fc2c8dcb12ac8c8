"""Sources of a conversion: a graph as streams of edges, feature rows and link tables, never as whole arrays.

A conversion reads a `GraphSource`: node types and relations. `Source` is the short form of a graph of one type and one
relation. Every call of a stream's method starts again at the first edge or row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gloader.dataset.schema import Schema, checked_schema, relation_text
from gloader.errors import SourceError
from gloader.types import EDGE, NODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.dataset.schema import DatasetKind
    from gloader.types import IdArray, Relation

# The end of messages about missing labels.
OR_EDGES = "or predict edges: --edge-split 80/10/10, in Python edge_split=(0.8, 0.1, 0.1)"


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
        """True if every chunk carries weights."""
        ...

    @property
    def has_times(self) -> bool:
        """True if every chunk carries times."""
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
        """True if every chunk carries weights."""
        return self.edges.has_weights

    @property
    def has_times(self) -> bool:
        """True if every chunk carries times."""
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
    """A graph of one node type and one relation, with features, labels and splits."""

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

    def graph(self) -> GraphSource:
        """Return the graph as a conversion reads it. Pure."""
        nodes = NodeSource(name=NODE, num_nodes=self.num_nodes, features=self.features, row_ids=self.row_ids)
        relation = RelationSource(
            relation=EDGE, edges=self.edges, edge_features=self.edge_features, edge_file=self.edge_file
        )
        return GraphSource(
            name=self.name,
            origin=self.origin,
            kind="homogeneous",
            nodes=(nodes,),
            relations=(relation,),
            labelled=NODE,
            num_classes=self.num_classes,
            labels=self.labels,
            splits=self.splits,
            resident_bytes=self.resident_bytes,
            links=self.links,
            said=self.said,
            unused=self.unused,
        )


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
        """True if every chunk carries times."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOf:
    """Features that the conversion makes: the mean of the rows at the other end of a node's edges, 0 without any.

    An edge that is there twice counts twice. The rows are those that the dataset stores.
    """

    relation: Relation  # between the type itself and another, which has features


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSource:
    """The nodes of one type."""

    name: str
    num_nodes: int
    features: FeatureStream | MeanOf | None = None  # None: the type has none
    row_ids: IdArray | None = None  # (N,) the node of each row of ``features``; None: row i is of node i


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationSource:
    """The edges of one relation: ids within the source type, and within the destination type."""

    relation: Relation
    edges: EdgeStream
    edge_features: FeatureStream | None = None  # (E, F_e) in the order of ``edges``
    edge_file: Path | None = None  # where the edges come from, for messages
    is_symmetric: bool = (
        False  # holds both directions of every edge: a reverse relation would be the same again
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSource:
    """A graph of node types and relations that a conversion turns into a dataset. Their order counts."""

    name: str  # a short name for people
    origin: str  # the source as it was asked for, such as "ogb:ogbn-mag"
    nodes: tuple[NodeSource, ...]
    relations: tuple[RelationSource, ...]
    labelled: str  # the type that has labels and splits
    num_classes: int
    labels: IdArray  # (N,) of the labelled type, -1 where unlabelled
    splits: Splits  # ids within the labelled type
    kind: DatasetKind = "hetero"  # of the dataset; "homogeneous": the type and the relation have no names
    resident_bytes: int = 0  # memory that the streams hold besides their chunks
    links: tuple[LinkSource, ...] = ()  # tables of edges that are predicted
    said: tuple[str, ...] = ()  # for the receipt, as of `Source`
    unused: tuple[str, ...] = ()  # that it holds and the dataset will not

    @property
    def has_names(self) -> bool:
        """True if messages name the types and relations: those of a graph of one type have no names of their own."""
        return self.kind == "hetero"

    @property
    def num_nodes(self) -> dict[str, int]:
        """The number of nodes of each type."""
        return {nodes.name: nodes.num_nodes for nodes in self.nodes}

    def graph(self) -> GraphSource:
        """Return the graph itself; as `Source.graph`. Pure."""
        return self

    def schema(self, relations: Sequence[Relation]) -> Schema:
        """Return the schema of a dataset with ``relations``, those that a conversion adds included. Pure."""
        if self.has_names:
            return checked_schema(self.num_nodes, relations)
        return Schema.of_one_type(self.num_nodes_of(NODE))

    def num_nodes_of(self, node_type: str) -> int:
        """Return the number of nodes of a type.

        Raises
        ------
        SourceError
            There is no such type; says which there are.
        """
        for nodes in self.nodes:
            if nodes.name == node_type:
                return nodes.num_nodes
        raise SourceError(
            f"{self.origin} has no node type {node_type!r}; there are {', '.join(nodes.name for nodes in self.nodes)}"
        )

    def where(self, source: RelationSource) -> str:
        """Return the file of a relation's edges, or else the source, with the relation, for messages."""
        named = f", relation {relation_text(source.relation)}" if self.has_names else ""
        return f"{source.edge_file or self.origin}{named}"

    def where_nodes(self, node_type: str) -> str:
        """Return the source with the node type, for messages."""
        return f"{self.origin}, node type {node_type!r}" if self.has_names else self.origin


AnySource: TypeAlias = Source | GraphSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ReversedEdges(ChangedEdges):
    """An edge stream whose edges run the other way."""

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        for chunk in self.edges.chunks(max_edges):
            yield replace(chunk, src=chunk.dst, dst=chunk.src)


def only_labelled(types: Iterable[str], *, otherwise: str | None = None, where: str) -> str:
    """Return the one type of ``types``, those that have labels; without any, ``otherwise``. Pure.

    Raises
    ------
    SourceError
        There are none and nothing otherwise, or several; names them.
    """
    found = list(types)
    if len(found) == 1:
        return found[0]
    if not found and otherwise is not None:
        return otherwise
    if not found:
        raise SourceError(
            f"{where} has no labels on any node type; exactly one type has labels and splits: add some, {OR_EDGES}"
        )
    raise SourceError(
        f"{where} has labels on {len(found)} node types ({', '.join(found)}); exactly one type has labels and splits"
    )
