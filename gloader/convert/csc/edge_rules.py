"""Rules that change a source's edges and relations before the sort.

A source is a graph in another format. A relation is an edge type: (source type, name, destination type).
`plan_relations` gives each relation its rules (`EdgeRules`), and adds reverse relations. `chunks_after_rules` then
reads a relation's edges in chunks, checks each chunk, drops self loops, adds reverse edges, and adds new self loops.
The sort (`external_csc`) takes these chunks, and merges parallel edges itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.csc.csc_kernels import first_bad_edge, first_bad_weight
from gloader.convert.options import EdgeRules
from gloader.convert.source import EdgeChunk, RelationSource, numbered, reversed_edges, row_timed
from gloader.core.value_kernels import first_outside
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError, GraphError
from gloader.types import NO_EDGE, NO_TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.convert.options import PrepareOptions
    from gloader.convert.source import EdgeStream, GraphSource
    from gloader.types import Relation


# The largest absolute time. It is half the range of int64, so that the sum or difference of two times fits too.
MAX_SECONDS: Final = 2**62 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeEnds:
    """The nodes that edges join: the ranges of the ids of sources and destinations."""

    num_nodes: int  # number of destinations; their ids are 0..num_nodes-1
    num_sources: int  # number of sources; their ids are 0..num_sources-1
    where: str = "edges"  # the edges' file or source, for messages
    # True if the graph's types have names. Then ids count within a type, and an error names the range of the wrong id.
    has_names: bool = False

    @classmethod
    def of(cls, num_nodes: int, where: str = "edges") -> EdgeEnds:
        """Return the ends for edges within one node set. Pure."""
        return cls(num_nodes=num_nodes, num_sources=num_nodes, where=where)


def chunks_after_rules(
    edges: EdgeStream, *, ends: EdgeEnds, rules: EdgeRules, max_edges: int, is_numbered: bool = False
) -> Iterator[tuple[int, EdgeChunk]]:
    """Yield pairs of the number of edges read from the source and the chunk that the rules made of them.

    With ``rules.symmetrize``, a chunk's reverse edges follow its edges. A reverse edge has the same time and number,
    and the same weight with the sign bit set. The merge uses this bit to distinguish the two directions. Self loops
    have no reverse. Added self loops come last. They have weight 1, the earliest time and no number.

    Parameters
    ----------
    edges : the source's stream, read once
    ends : the edges' nodes; both ends must be one node set if ``rules`` add reverse edges or self loops
    rules : changes to the edges
    max_edges : edges per chunk as read; reverse edges may double a chunk
    is_numbered : True to give every edge its number in the source

    Raises
    ------
    GraphError
        An id or a time is out of range, or a weight is negative or not finite. The message names file, edge and value.
    """
    done, earliest = 0, MAX_SECONDS  # edges read so far, and their earliest time
    for chunk in edges.chunks(max_edges):
        check_chunk(chunk, ends=ends, first=done)
        count = chunk.src.shape[0]
        if chunk.time is not None:
            earliest = int(chunk.time.min(initial=earliest))
        if is_numbered:
            chunk = numbered(chunk, done)  # noqa: PLW2901 - as below
        done += count
        if rules.self_loops:
            chunk = _without_loops(chunk)  # noqa: PLW2901 - the chunk goes through the rules one after another
        if rules.symmetrize:
            chunk = _with_reverse(chunk)  # noqa: PLW2901
        yield count, chunk
    # Given loops were dropped above, so every node gets exactly one loop, of weight 1.
    if rules.self_loops:
        for start in range(0, ends.num_nodes, max_edges):
            count = min(ends.num_nodes, start + max_edges) - start
            nodes = np.arange(start, start + count, dtype=np.int64)
            yield (
                0,
                EdgeChunk(
                    src=nodes,
                    dst=nodes,
                    weight=np.ones(count, np.float32) if edges.has_weights else None,
                    time=np.full(count, earliest if done else 0, np.int64) if edges.has_times else None,
                    number=np.full(count, NO_EDGE, np.int64) if is_numbered else None,
                ),
            )


def check_chunk(chunk: EdgeChunk, *, ends: EdgeEnds, first: int) -> None:
    """Refuse a bad id, weight or time. Pure.

    Parameters
    ----------
    chunk : the edges
    ends : the edges' nodes
    first : the first edge's number in the stream, for messages

    Raises
    ------
    GraphError
        As `chunks_after_rules`.
    """
    bad = int(first_bad_edge(chunk.src, chunk.dst, ends.num_sources, ends.num_nodes))
    if bad >= 0:
        raise GraphError(
            f"{ends.where}: edge {first + bad} (counted from 0) has {_wrong_end(chunk, bad, ends)}"
        )
    bad = -1 if chunk.weight is None else int(first_bad_weight(chunk.weight))
    if chunk.weight is not None and bad >= 0:
        raise GraphError(
            f"{ends.where}: edge {first + bad} (counted from 0) has weight {chunk.weight[bad]}; weights must be "
            "finite and at least 0"
        )
    known = chunk.time
    if known is not None and (known == NO_TIME).any():
        known = np.where(known == NO_TIME, 0, known)
    bad = -1 if known is None else int(first_outside(known, -MAX_SECONDS, MAX_SECONDS))
    if chunk.time is not None and bad >= 0:
        raise GraphError(
            f"{ends.where}: edge {first + bad} (counted from 0) has time {chunk.time[bad]}; times are seconds in "
            f"{-MAX_SECONDS}..{MAX_SECONDS}"
        )


def _wrong_end(chunk: EdgeChunk, edge: int, ends: EdgeEnds) -> str:
    """Return the end of the message for an edge with an id out of range."""
    kind, value, count = "source", int(chunk.src[edge]), ends.num_sources
    if 0 <= value < count:
        kind, value, count = "destination", int(chunk.dst[edge]), ends.num_nodes
    if not ends.has_names:
        return f"{kind} {value}; node ids must lie in 0..{count - 1}, one per feature row"
    if count == 0:
        return f"{kind} {value}; there are no {kind}s"
    return f"{kind} {value}; ids of {kind}s must lie in 0..{count - 1}"


def _without_loops(chunk: EdgeChunk) -> EdgeChunk:
    """Return the chunk's edges between different nodes."""
    keep = chunk.src != chunk.dst
    if keep.all():
        return chunk
    return chunk.take(keep)


def _with_reverse(chunk: EdgeChunk) -> EdgeChunk:
    """Return the chunk's edges, then the reverse of each edge that is no self loop."""
    reverse = _without_loops(chunk)
    return EdgeChunk(
        src=np.concatenate([chunk.src, reverse.dst]),
        dst=np.concatenate([chunk.dst, reverse.src]),
        # The sign bit alone marks a reverse edge. It works for a weight of 0 too, which becomes -0.0.
        weight=_joined(chunk.weight, None if reverse.weight is None else -reverse.weight),
        time=_joined(chunk.time, reverse.time),
        number=_joined(chunk.number, reverse.number),
    )


def _joined(column: NDArray[Any] | None, reverse: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return an optional column of the edges, followed by the column of the reverse edges."""
    return None if column is None or reverse is None else np.concatenate([column, reverse])


REVERSE_PREFIX = "rev_"  # beginning of the name of an added reverse relation


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRelation:
    """A relation that the dataset will have."""

    source: RelationSource  # the edges in the source; an added reverse relation reads them reversed
    ends: EdgeEnds
    rules: EdgeRules

    @property
    def relation(self) -> Relation:
        """The relation's name and types."""
        return self.source.relation


def plan_relations(source: GraphSource, options: PrepareOptions) -> tuple[PlannedRelation, ...]:
    """Return the dataset's relations in order: the source's relations, then added reverse relations. Pure.

    Raises
    ------
    ConfigError
        An option does not fit the number of types, or names a relation that is missing, ambiguous or between two types.
    SourceError
        A relation names an unknown type.
    """
    relations = source.relations
    _refuse_options(source, options)
    # The relations that get the reverse of each edge.
    both_ways = {
        find_relation(text, [each.relation for each in relations], where=source.origin)
        for text in options.symmetrized
    }
    if options.symmetrize is True:
        both_ways = {each.relation for each in relations if each.relation[0] == each.relation[2]}
    for relation in sorted(both_ways):
        first, _, last = relation
        if first != last:
            raise ConfigError(
                f"--symmetrize {relation_text(relation)}: the relation runs from {first!r} to {last!r}, and only "
                "one within a type has both directions; --add-reverse adds a relation back"
            )
    timed = next((each for each in relations if each.is_row_timed and each.relation in both_ways), None)
    if timed is not None:
        raise ConfigError(
            f"--symmetrize: the edges of {source.where(timed)} have the times of their source rows, and a reverse edge "
            "has another source row; give the table both directions, or its edges a time of their own with time: COLUMN"
        )
    planned = [
        PlannedRelation(
            source=each,
            ends=relation_ends(source, each),
            rules=EdgeRules(
                symmetrize=each.relation in both_ways,
                self_loops=options.self_loops,
                deduplicate=options.deduplicate,
            ),
        )
        for each in relations
    ]
    if options.add_reverse:
        named = named_reverses(options.reverse, [each.relation for each in relations], where=source.origin)
        planned += _reverses(source, [each for each in planned if each.relation not in named])
    return tuple(planned)


def find_relation(text: str, relations: Sequence[Relation], *, where: str) -> Relation:
    """Return the relation that ``text`` names, such as "author:writes:paper" or a unique "writes". Pure.

    Raises
    ------
    ConfigError
        No relation matches, or several. The message lists the relations.
    """
    matches = [relation for relation in relations if text in (relation_text(relation), relation[1])]
    exact = [relation for relation in matches if relation_text(relation) == text]
    matches = exact or matches
    if len(matches) == 1:
        return matches[0]
    existing = ", ".join(map(relation_text, matches or relations)) or "none"
    problem = "names several" if matches else "is none"
    raise ConfigError(f"relation {text!r} {problem} of {where}'s relations; write one of: {existing}")


def named_reverses(
    pairs: Sequence[tuple[str, str]], relations: Sequence[Relation], *, where: str
) -> dict[Relation, Relation]:
    """Return a mapping from each relation in ``pairs`` to its reverse relation; both of a pair are keys. Pure.

    Parameters
    ----------
    pairs : texts of a relation and its reverse relation
    relations : the existing relations
    where : the source, for messages

    Raises
    ------
    ConfigError
        A name matches no relation or several, or the second relation is not a reverse of the first.
    """
    reverses: dict[Relation, Relation] = {}
    for pair in pairs:
        relation, back = (find_relation(text, relations, where=where) for text in pair)
        # The types of both ends, against those of the reverse in the opposite order.
        if relation[::2] != back[2::-2]:
            raise ConfigError(
                f"--reverse {pair[0]}={pair[1]}: {relation_text(back)} does not lead back along "
                f"{relation_text(relation)}; a reverse goes from {relation[2]!r} to {relation[0]!r}"
            )
        reverses |= {relation: back, back: relation}
    return reverses


def _refuse_options(source: GraphSource, options: PrepareOptions) -> None:
    """Raise ConfigError for an option that does not fit the number of types and relations."""
    reason = f"is for graphs of several node types; {source.origin} has one type and one relation"
    if options.symmetrized and not source.has_names:
        raise ConfigError(f"--symmetrize {options.symmetrized[0]} {reason}: write --symmetrize alone")
    if options.add_reverse and not source.has_names:
        raise ConfigError(f"--add-reverse {reason}: write --symmetrize")
    if options.order != "none" and source.has_names:
        raise ConfigError(
            f"--order {options.order} is for graphs of one node type; {source.origin} has {len(source.nodes)}: leave "
            "it out"
        )
    # Relations between two different types.
    between = [each.relation for each in source.relations if each.relation[0] != each.relation[2]]
    if options.symmetrize is True and len(between) == len(source.relations) and not options.add_reverse:
        raise ConfigError(
            f"--symmetrize is for relations within a type, and {source.origin} has none; --add-reverse adds a relation "
            "back to each"
        )
    if options.self_loops and between:
        raise ConfigError(
            f"--self-loops joins a node with itself, which a relation between two types such as "
            f"{relation_text(between[0])} cannot; leave it out"
        )


def _reverses(source: GraphSource, planned: Sequence[PlannedRelation]) -> list[PlannedRelation]:
    """Return a reverse relation for each of the ``planned`` relations that has none in the source."""
    existing = {each.relation for each in source.relations}
    added = []
    for each in planned:
        first, name, last = each.relation
        reverse = (last, REVERSE_PREFIX + name, first)
        # A source may have reverse relations itself, or relations that are their own reverse.
        is_reverse = (
            name.startswith(REVERSE_PREFIX) and (last, name.removeprefix(REVERSE_PREFIX), first) in existing
        )
        if each.rules.symmetrize or each.source.is_symmetric or is_reverse or reverse in existing:
            continue
        edges = reversed_edges(each.source.edges)
        back = RelationSource(
            relation=reverse,
            edges=row_timed(edges, source.row_times_of(last)) if each.source.is_row_timed else edges,
            edge_features=each.source.edge_features,
            edge_file=each.source.edge_file,
            is_row_timed=each.source.is_row_timed,
        )
        added.append(PlannedRelation(source=back, ends=relation_ends(source, back), rules=each.rules))
    return added


def relation_ends(source: GraphSource, each: RelationSource) -> EdgeEnds:
    """Return the nodes that a relation's edges join. Raises SourceError for unknown types."""
    first, _, last = each.relation
    return EdgeEnds(
        num_nodes=source.num_nodes_of(last),
        num_sources=source.num_nodes_of(first),
        where=source.where(each),
        has_names=source.has_names,
    )
