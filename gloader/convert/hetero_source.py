"""Sources with several node types and relations: every part a stream, as in `gloader.convert.source`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from gloader.convert.readers.node_arrays import OR_EDGES
from gloader.convert.source import ChangedEdges, Source
from gloader.dataset.schema import relation_text
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gloader.convert.links.link_source import LinkSource
    from gloader.convert.source import EdgeChunk, EdgeStream, FeatureStream, Splits
    from gloader.types import IdArray, Relation


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
class HeteroSource:
    """A graph of several types that a conversion turns into a dataset. The order of types and relations counts."""

    name: str  # a short name for people
    origin: str  # the source as it was asked for, such as "ogb:ogbn-mag"
    nodes: tuple[NodeSource, ...]
    relations: tuple[RelationSource, ...]
    labelled: str  # the type that has labels and splits
    num_classes: int
    labels: IdArray  # (N,) of the labelled type, -1 where unlabelled
    splits: Splits  # ids within the labelled type
    resident_bytes: int = 0  # memory that the streams hold besides their chunks
    links: tuple[LinkSource, ...] = ()  # tables of edges that are predicted
    said: tuple[str, ...] = ()  # for the receipt, as of `Source`
    unused: tuple[str, ...] = ()  # that it holds and the dataset will not

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
        return f"{source.edge_file or self.origin}, relation {relation_text(source.relation)}"


AnySource: TypeAlias = Source | HeteroSource


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
