"""Sources for a conversion: a graph as streams of edges, feature rows and link tables.

The modules in `gloader.convert.sources` make these values, one module per file format, and `gloader.convert.prepare`
converts them into a dataset. A *stream* is a value with a function that yields chunks of at most a given size. Each
call starts again at the first edge or row, so a conversion can read a stream several times. A conversion reads a
`GraphSource`, with node types and relations. `Source` is the short form for one node type and one relation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gloader.dataset.schema import DatasetSchema, checked_schema, relation_text
from gloader.errors import SourceError
from gloader.types import EDGE, NO_TIME, NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.core.keys import KeyChunk, KeyKind
    from gloader.dataset.encoders import Encoders
    from gloader.dataset.schema import DatasetKind
    from gloader.dataset.values import LabelKind
    from gloader.types import IdArray, Relation

# The end of messages about missing labels: the alternative to labels.
OR_EDGES = "or predict edges: --edge-split 80/10/10, in Python edge_split=(0.8, 0.1, 0.1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeChunk:
    """Consecutive edges of a stream: edge i runs from ``src[i]`` to ``dst[i]``."""

    src: IdArray  # (n,) source node ids
    dst: IdArray  # (n,) destination node ids
    weight: NDArray[np.float32] | None = None  # (n,) edge weights
    time: IdArray | None = None  # (n,) int64 seconds
    # (n,) each edge's number in the source, which is the row of its features. None means the order of the stream.
    number: IdArray | None = None

    def take(self, which: NDArray[np.bool_] | IdArray) -> EdgeChunk:
        """Return the edges that ``which`` selects: a mask (n,) or positions. Pure."""
        return self.with_columns(lambda column: column[which])

    def with_columns(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> EdgeChunk:
        """Return the chunk with ``change`` applied to each column that is not None."""
        columns = {name: getattr(self, name) for name in self.__slots__}
        return EdgeChunk(**{name: change(column) for name, column in columns.items() if column is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeStream:
    """A graph's edges in a fixed order.

    ``chunks(max_edges)`` starts again at the first edge, and yields chunks with at most ``max_edges`` edges. Each file
    format has its own such function.
    """

    chunks: Callable[[int], Iterator[EdgeChunk]]
    num_edges: int | None  # None means unknown until the edges are read
    has_weights: bool = False  # True if every chunk has weights
    has_times: bool = False  # True if every chunk has times
    # For a table: its columns' names, without the columns of source and destination.
    columns: tuple[str, ...] = ()
    held_bytes: int = 0  # memory that the stream keeps all the time, such as row offsets
    reading_bytes: int = 0  # memory that is needed only while the stream is read, without its chunks


def edges_over(edges: EdgeStream, chunks: Callable[[int], Iterator[EdgeChunk]]) -> EdgeStream:
    """Return a stream that reads ``chunks``, with the number of edges and the flags of ``edges``. Pure."""
    return EdgeStream(
        chunks=chunks,
        num_edges=edges.num_edges,
        has_weights=edges.has_weights,
        has_times=edges.has_times,
    )


def changed_edges(
    edges: EdgeStream, change: Callable[[EdgeChunk, int], EdgeChunk], *, part: tuple[int, int] = (1, 1)
) -> EdgeStream:
    """Return a stream that applies ``change`` to each chunk of ``edges``. Pure.

    Parameters
    ----------
    edges : the stream to change
    change : function of a chunk, and of the number of edges before this chunk
    part : numerator and denominator of a factor. Chunks of ``edges`` have at most ``max_edges`` times this factor
        edges. A factor below 1 is for changes that make chunks larger or need copies
    """

    def chunks(max_edges: int) -> Iterator[EdgeChunk]:
        num_before = 0
        for chunk in edges.chunks(max(1, max_edges * part[0] // part[1])):
            yield change(chunk, num_before)
            num_before += chunk.src.shape[0]

    return edges_over(edges, chunks)


def reversed_edges(edges: EdgeStream) -> EdgeStream:
    """Return the edges with source and destination exchanged. Pure."""
    return changed_edges(edges, lambda chunk, _: replace(chunk, src=chunk.dst, dst=chunk.src))


def bare_edges(edges: EdgeStream) -> EdgeStream:
    """Return the edges without weights and times. Pure."""
    bare = changed_edges(edges, lambda chunk, _: EdgeChunk(src=chunk.src, dst=chunk.dst))
    return replace(bare, has_weights=False, has_times=False)


def row_timed(edges: EdgeStream, row_times: IdArray | None) -> EdgeStream:
    """Return the edges with the times of their source rows, or without times if these rows have none. Pure.

    ``row_times`` (N,) int64 seconds are those of the sources. A source that is no node gets no time: the check of ids,
    which comes later, refuses it.
    """

    def chunks(max_edges: int) -> Iterator[EdgeChunk]:
        for chunk in edges.chunks(max_edges):
            time = None
            if row_times is not None:
                time = np.full(chunk.src.shape, NO_TIME, np.int64)
                is_node = (chunk.src >= 0) & (chunk.src < len(row_times))
                time[is_node] = row_times[chunk.src[is_node]]
            yield replace(chunk, time=time)

    return replace(edges, chunks=chunks, has_times=row_times is not None)


def doubled_edges(edges: EdgeStream) -> EdgeStream:
    """Return the edges, each followed by its reverse, as in OGB. Pure."""

    def doubled(chunk: EdgeChunk, _: int) -> EdgeChunk:
        ends = np.stack([chunk.src, chunk.dst], axis=1)  # row by row: s0, d0, s1, d1, ...
        twice = chunk.with_columns(lambda column: np.repeat(column, 2))
        return replace(twice, src=ends.ravel(), dst=ends[:, ::-1].ravel())

    stream = changed_edges(edges, doubled, part=(1, 2))
    return replace(
        stream,
        num_edges=None if edges.num_edges is None else 2 * edges.num_edges,
        reading_bytes=edges.reading_bytes,
        held_bytes=edges.held_bytes,
    )


def numbered(chunk: EdgeChunk, first: int) -> EdgeChunk:
    """Return a chunk with edge numbers: its own numbers, or else ``first``, ``first + 1`` and so on. Pure."""
    if chunk.number is not None:
        return chunk
    return replace(chunk, number=np.arange(first, first + chunk.src.shape[0], dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureStream:
    """Feature rows, in the order of nodes or edges.

    ``chunks(max_rows)`` starts again at row 0 and yields (n, F) arrays of consecutive rows, n <= ``max_rows``.
    """

    chunks: Callable[[int], Iterator[NDArray[np.generic]]]
    num_rows: int  # N, or E
    dim: int  # F
    dtype: np.dtype[np.generic]  # the chunks' dtype
    names: tuple[str, ...] = ()  # (F,) the columns' names, for messages
    where: str | None = None  # the file, for messages; None means that messages name only the source
    # ``chunks`` of a text table refuse whole numbers that float32 cannot represent. ``rounded`` has the same rows with
    # such numbers rounded. None means that ``chunks`` never refuse a number for this reason.
    rounded: FeatureStream | None = None
    held_bytes: int = 0  # memory that the stream keeps all the time, such as row offsets
    reading_bytes: int = 0  # memory that is needed only while the stream is read, without its chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Node ids in the three parts of a node-classification task."""

    train: IdArray  # (n,)
    valid: IdArray  # (n,)
    test: IdArray  # (n,)

    @property
    def num_bytes(self) -> int:
        """Bytes for all ids."""
        return self.train.nbytes + self.valid.nbytes + self.test.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSplits(Splits):
    """Splits made at random, because the source has none."""

    seed: int  # seed of the random numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A graph with one node type and one relation, with features, labels and splits."""

    name: str  # a short display name, such as "ogbn-arxiv"
    origin: str  # the source as the user wrote it, such as "ogb:ogbn-arxiv"
    num_nodes: int  # N
    num_classes: int  # classes are in 0..num_classes-1; for labels that are values, the number of columns k
    edges: EdgeStream
    features: FeatureStream
    labels: NDArray[Any]  # (N,) int64 classes, -1 where unknown, or (N, k) float32 values, NaN where unknown
    splits: Splits
    label_names: tuple[str, ...] = ()  # names of the classes, or of the k columns; empty without names
    edge_features: FeatureStream | None = None  # (E, F_e) in the order of ``edges``
    edge_file: Path | None = None  # the edges' file, for messages
    row_ids: IdArray | None = None  # (N,) each feature row's node; None means that row i belongs to node i
    resident_bytes: int = 0  # memory that the streams keep all the time, such as row offsets
    links: tuple[LinkSource, ...] = ()  # tables of edges to predict
    tables: tuple[TaskSource, ...] = ()  # tables of rows to predict
    row_times: IdArray | None = None  # (N,) int64 seconds, the least int64 for a node without a time
    # Lines on the columns' roles, such as "edges: src and dst of e.csv, amount is the weight", for the receipt: the
    # conversion's printed summary.
    column_notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()  # parts of the source that the dataset lacks, such as "pos (N, 3)"

    def graph(self) -> GraphSource:
        """Return the graph as a `GraphSource`. Pure."""
        nodes = NodeSource(
            name=NODE,
            num_nodes=self.num_nodes,
            features=self.features,
            row_ids=self.row_ids,
            row_times=self.row_times,
        )
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
            label_names=self.label_names,
            splits=self.splits,
            resident_bytes=self.resident_bytes,
            links=self.links,
            tables=self.tables,
            column_notes=self.column_notes,
            unused=self.unused,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChunk:
    """Consecutive rows in a link table."""

    src: IdArray  # (n,) source node ids
    dst: IdArray  # (n,) destination node ids
    time: IdArray | None = None  # (n,) int64 seconds

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.src.shape[0])


def _nothing(_max_rows: int) -> Iterator[Any]:
    """Return an empty iterator: the chunks of labels or negatives that a table does not have."""
    return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStream:
    """A link table's rows in a fixed order.

    ``chunks``, ``labels`` and ``negatives`` take the largest number of rows per chunk. Each call starts again at row 0.
    Labels come in arrays (n,) of ``label_dtype``. Negatives are wrong destinations for the row's source, which a model
    should not predict. They come in arrays (n, k).
    """

    chunks: Callable[[int], Iterator[LinkChunk]]
    num_rows: int | None  # None means unknown until the rows are read
    has_times: bool = False  # True if every chunk has times
    label_dtype: str | None = None  # int64 or float32; None without labels
    labels: Callable[[int], Iterator[NDArray[np.generic]]] = _nothing
    negatives_per_row: int = 0  # k, the number of given negative destinations per row
    negatives: Callable[[int], Iterator[IdArray]] = _nothing
    are_edges: bool = False  # True if the rows are edges that an edge split took from the source


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSource:
    """A link table that a conversion writes: pairs of nodes whose edges a model predicts."""

    name: str  # the table's name in the dataset, such as "train"
    rows: LinkStream
    where: str  # the file or source, for messages
    relation: str | None = None  # "author:writes:paper", or only "writes"; None means the only relation
    reverse: str | None = None  # the reverse relation; None means that the conversion finds it by its name
    is_free: bool = (
        False  # True if the graph has no relation of this name, so that no row is an edge of the graph
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """A task table that a conversion writes: rows to predict, each of them a node."""

    name: str  # the table's name in the dataset, such as "churn.train"
    node_type: str  # the type of the nodes
    nodes: IdArray  # (n,) ids within the type
    where: str  # the file or source, for messages
    times: IdArray | None = None  # (n,) int64 seconds
    # (n,) int64 classes, -1 where unknown, or (n, k) float32 values, NaN where unknown; None without labels
    labels: NDArray[Any] | None = None
    weights: NDArray[np.float32] | None = None  # (n,)
    label_kind: LabelKind | None = None  # None without labels
    label_names: tuple[str, ...] = ()  # names of the classes, or of the k columns; empty without names
    num_classes: int = 0  # number of classes, or of columns k; 0 without labels

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns."""
        columns = (self.nodes, self.times, self.labels, self.weights)
        return sum(each.nbytes for each in columns if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOf:
    """Features that the conversion computes: the mean of the neighbours' stored rows, or 0 without neighbours.

    A neighbour counts once per edge.
    """

    relation: Relation  # the edges to the neighbours, between this node type and a type with features


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKeys:
    """The keys of a type's nodes: values of the source that identify them.

    ``chunks(max_keys)`` starts again at node 0, and yields at most ``max_keys`` keys at a time.
    """

    kind: KeyKind
    num_bytes: int  # bytes of all keys
    chunks: Callable[[int], Iterator[KeyChunk]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSource:
    """A node type with its features."""

    name: str  # the type's name, such as "paper"
    num_nodes: int  # N
    features: FeatureStream | MeanOf | None = None  # None without features
    row_ids: IdArray | None = None  # (N,) each feature row's node; None means that row i belongs to node i
    keys: NodeKeys | None = None  # None means that the source identifies nodes by their ids
    encoders: Encoders | None = None  # the rules by which columns of a table became the features
    row_times: IdArray | None = None  # (N,) int64 seconds, the least int64 for a row without a time

    @property
    def given(self) -> FeatureStream | None:
        """The source's features, or None if there are none or the conversion computes them."""
        return None if isinstance(self.features, MeanOf) else self.features


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationSource:
    """One relation's edges. Source ids are within the source type, and destination ids within the destination type."""

    relation: Relation  # (source type, name, destination type)
    edges: EdgeStream
    edge_features: FeatureStream | None = None  # (E, F_e) in the order of ``edges``
    edge_file: Path | None = None  # the edges' file, for messages
    encoders: Encoders | None = None  # the rules by which columns of a table became the edge features
    # True if the stream has every edge in both directions, so no reverse relation is needed.
    is_symmetric: bool = False
    # True if the time of an edge is that of its source row. So an edge and its reverse have different times.
    is_row_timed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSource:
    """A graph for a conversion. The dataset will have the node types and relations in the order that they have here."""

    name: str  # a short display name
    origin: str  # the source as the user wrote it, such as "ogb:ogbn-mag"
    nodes: tuple[NodeSource, ...]
    relations: tuple[RelationSource, ...]
    labelled: str  # the type with labels and splits
    num_classes: int  # as in `Source`
    labels: NDArray[Any]  # the labelled type's labels, as in `Source`
    splits: Splits  # ids within the labelled type
    label_names: tuple[str, ...] = ()  # as in `Source`
    # Kind of the dataset. "homogeneous" means one type and one relation, for which messages use no names.
    kind: DatasetKind = "hetero"
    resident_bytes: int = 0  # memory that the streams keep all the time, such as row offsets
    links: tuple[LinkSource, ...] = ()  # tables of edges to predict
    tables: tuple[TaskSource, ...] = ()  # tables of rows to predict
    column_notes: tuple[str, ...] = ()  # lines for the receipt on the columns' roles
    unused: tuple[str, ...] = ()  # parts of the source that the dataset will not have
    key_note: str = ""  # line for the receipt on keys; empty without keys
    # Line for the receipt on ``links`` that the source itself has divided into parts; empty if it has not.
    link_note: str = ""

    @property
    def has_names(self) -> bool:
        """True if types and relations have names. Messages then use them."""
        return self.kind == "hetero"

    @property
    def num_nodes(self) -> dict[str, int]:
        """Each type's number of nodes."""
        return {nodes.name: nodes.num_nodes for nodes in self.nodes}

    def graph(self) -> GraphSource:
        """Return this graph. The method exists so that callers need not distinguish it from a `Source`. Pure."""
        return self

    def schema(self, relations: Sequence[Relation]) -> DatasetSchema:
        """Return the dataset's schema. ``relations`` include the relations that the conversion adds. Pure."""
        if self.has_names:
            return checked_schema(self.num_nodes, relations)
        return DatasetSchema.of_one_type(self.num_nodes_of(NODE))

    def row_times_of(self, node_type: str) -> IdArray | None:
        """Return the times of a type's rows, or None without times."""
        return next(nodes.row_times for nodes in self.nodes if nodes.name == node_type)

    def num_nodes_of(self, node_type: str) -> int:
        """Return a type's number of nodes.

        Raises
        ------
        SourceError
            There is no such type. The message lists all types.
        """
        for nodes in self.nodes:
            if nodes.name == node_type:
                return nodes.num_nodes
        raise SourceError(
            f"{self.origin} has no node type {node_type!r}; there are {', '.join(nodes.name for nodes in self.nodes)}"
        )

    def where(self, source: RelationSource) -> str:
        """Return a relation's edge file or else the source, and the relation's name, for messages."""
        named = f", relation {relation_text(source.relation)}" if self.has_names else ""
        return f"{source.edge_file or self.origin}{named}"

    def where_nodes(self, node_type: str) -> str:
        """Return the source with the node type, for messages."""
        return f"{self.origin}, node type {node_type!r}" if self.has_names else self.origin


AnySource: TypeAlias = Source | GraphSource


def only_labelled(types: Iterable[str], *, otherwise: str | None = None, where: str) -> str:
    """Return the only node type with labels, or ``otherwise`` if no type has labels. Pure.

    Parameters
    ----------
    types : node types with labels
    otherwise : the result if no type has labels; None makes this an error
    where : the source, for messages

    Raises
    ------
    SourceError
        Several types have labels, or no type has and ``otherwise`` is None. The message names the types.
    """
    labelled = list(types)
    if len(labelled) == 1:
        return labelled[0]
    if not labelled and otherwise is not None:
        return otherwise
    if not labelled:
        raise SourceError(
            f"{where} has no labels on any node type; exactly one type has labels and splits: add some, {OR_EDGES}"
        )
    raise SourceError(
        f"{where} has labels on {len(labelled)} node types ({', '.join(labelled)}); exactly one type has labels and "
        "splits"
    )
