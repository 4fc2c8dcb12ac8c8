"""The link tables of a conversion: from the source, from files, and from an edge split.

A link table lists pairs of nodes whose edges a model predicts. It belongs to one relation (edge type). An edge split
divides a relation's edges among three new tables, train, valid and test. Only the train edges stay in the graph. The
others are *held out*. A *reverse relation* holds the same pairs in the other direction. It would reveal held-out edges
to the model, so their reverse edges must leave the graph too. Reverse relations are found by the flag --reverse, by
their names, or by a comparison of the relations' pairs.

The conversion calls `with_tables` (adds the tables from files), then `split_source` (splits the edges), and at last
`planned_tables` (gives each table its relation and its reverse relation).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.csc.edge_rules import (
    REVERSE_PREFIX,
    find_relation,
    named_reverses,
    relation_ends,
)
from gloader.convert.links.edge_parts import RandomParts, deal_edges, edge_rows, time_parts
from gloader.convert.links.write_tables import PlannedLinks
from gloader.convert.options import PARTS
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.convert.source import LinkSource
from gloader.core.fanouts import parse_relation
from gloader.core.hashing import GOLDEN, mixed_words
from gloader.core.malformed import shown
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError, SourceError
from gloader.ssd_store.format.manifest import ALLOWED, is_type_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.convert.csc.edge_rules import EdgeEnds
    from gloader.convert.links.edge_parts import PartRule
    from gloader.convert.options import EdgeShares, PrepareOptions
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import AnySource, EdgeStream, GraphSource
    from gloader.types import IdArray, Relation


_LOG = logging.getLogger(__name__)
# Bytes per sampled pair: its hash, the other relation's hash, and the sort. Most of the memory remains for chunks.
_PAIR_BYTES: Final = 128
_MIN_PAIRS: Final = 1 << 12  # number of pairs that a sample may have with any memory budget
# If another relation holds at least this share of the reversed pairs, but is no reverse relation, a warning names it.
_WARNING_SHARE: Final = 0.1
# A relation with more than this share of all possible pairs holds reversed pairs by chance. It is no reverse relation.
_FULL_SHARE: Final = 0.9


def reverse_of(
    relation: Relation,
    relations: Sequence[Relation],
    named: Mapping[Relation, Relation] = MappingProxyType({}),
) -> Relation | None:
    """Return the reverse relation of ``relation`` among ``relations``, or None. Pure.

    The user's pairs in ``named`` decide first, and then names. The reverse of (a, r, b) is named (b, rev_r, a). The
    reverse of (b, rev_r, a) is (a, r, b). A relation within one type is its own reverse if no other is found.
    """
    if relation in named:
        return named[relation]
    source, name, destination = relation
    names = [REVERSE_PREFIX + name]
    if name.startswith(REVERSE_PREFIX):
        names.append(name.removeprefix(REVERSE_PREFIX))
    matches = [(destination, each, source) for each in names if (destination, each, source) in relations]
    return matches[0] if matches else relation if source == destination else None


def reverses_by_pairs(
    relation: Relation,
    streams: Mapping[Relation, EdgeStream],
    *,
    counts: tuple[int, int],
    known: Sequence[Relation],
    budget_bytes: int,
    max_edges: int,
) -> list[Relation]:
    """Return the relations that hold ``relation``'s pairs in the other direction, whatever their names are.

    Pairs are compared by their hashes. Without memory for all pairs, all relations are compared by the same sample. A
    relation is a reverse if it holds all reversed pairs, or if it holds only reversed pairs and more than half of them.
    A warning names relations with only a part of the reversed pairs, and the flag that declares a reverse relation.

    Parameters
    ----------
    relation : the split relation
    streams : all relations' edges; candidates are read once
    counts : numbers of source and destination nodes
    known : reverse relations that were found by the flag or by name; they are skipped
    budget_bytes, max_edges : memory, and edges per chunk
    """
    source, _, destination = relation
    # ``each[::2]`` has a relation's source type and destination type.
    others = [
        each
        for each in streams
        if each[::2] == (destination, source) and each != relation and each not in known
    ]
    if not others:
        return []
    most_pairs = max(_MIN_PAIRS, budget_bytes // _PAIR_BYTES)
    ours = PairSample(most_pairs=most_pairs)
    ours.fill(streams[relation], max_edges, is_reversed=False)
    reverses = []
    for other in others:
        theirs = PairSample(most_pairs=most_pairs)
        theirs.fill(streams[other], max_edges, is_reversed=True)
        num_ours, num_theirs, num_both = ours.compared(theirs)
        if not num_both:
            continue
        # The common pairs, as a share of this relation's pairs and as a share of the other relation's pairs.
        of_ours, of_theirs = num_both / num_ours, num_both / num_theirs
        # The share of all possible pairs in the other relation. If it is near 1, the other holds these pairs by chance.
        density = theirs.estimated() / max(counts[0] * counts[1], 1)
        overlap = (
            f"{relation_text(other)} holds {100 * of_ours:.3g}% of the pairs of {relation_text(relation)} the other "
            f"way round ({num_both:,} of {num_ours:,}{' in a sample' if ours.is_part or theirs.is_part else ''})"
        )
        is_reverse = of_ours == 1.0 or (of_theirs == 1.0 and of_ours > 1 / 2)
        if is_reverse and density < _FULL_SHARE:
            _LOG.info("%s: held-out edges are left out of it too", overlap)
            reverses.append(other)
        elif of_ours >= max(_WARNING_SHARE, 2 * density):
            _LOG.warning(
                "%s: held-out edges stay in that relation. If it is the reverse relation, leave them out of it with "
                "--reverse %s=%s, in Python reverse={%r: %r}",
                overlap,
                relation_text(relation),
                relation_text(other),
                relation_text(relation),
                relation_text(other),
            )
    return reverses


@dataclass(slots=True, kw_only=True)
class PairSample:
    """A sample of a relation's distinct pairs: the pairs whose hash begins with ``bits`` zero bits.

    The sample has all pairs if ``bits`` is 0. Each further bit halves it. The hash depends only on the pair. So two
    samples with equal ``bits`` contain the same pairs of both relations.
    """

    most_pairs: int  # largest number of pairs in the sample
    hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))  # ascending, unique
    bits: int = 0  # number of zero bits at the start of each hash

    @property
    def is_part(self) -> bool:
        """True if the sample has only a part of the pairs."""
        return self.bits > 0

    def fill(self, edges: EdgeStream, max_edges: int, *, is_reversed: bool) -> None:
        """Add the pairs in ``edges``, with source and destination exchanged if ``is_reversed``."""
        parts, size = [self.hashes], 0  # arrays of hashes to be joined, and the number of new hashes
        for chunk in edges.chunks(max_edges):
            first, second = (chunk.dst, chunk.src) if is_reversed else (chunk.src, chunk.dst)
            hashes = self._below(mixed_words(mixed_words(_as_uint64(first) * GOLDEN) + _as_uint64(second)))
            parts.append(hashes)
            size += len(hashes)
            if size > self.most_pairs:
                self._shrink(parts)
                parts, size = [self.hashes], 0
        self._shrink(parts)

    def compared(self, other: PairSample) -> tuple[int, int, int]:
        """Reduce both samples to the larger ``bits``. Return the numbers of pairs in this one, the other, and both."""
        bits = max(self.bits, other.bits)
        self.bits = other.bits = bits
        self.hashes, other.hashes = self._below(self.hashes), other._below(other.hashes)
        both = np.intersect1d(self.hashes, other.hashes, assume_unique=True)
        return len(self.hashes), len(other.hashes), len(both)

    def estimated(self) -> int:
        """Return an estimate for the number of distinct pairs."""
        return len(self.hashes) << self.bits

    def _shrink(self, parts: list[NDArray[np.uint64]]) -> None:
        """Join the hashes, and halve the sample until it is at most half full."""
        self.hashes = np.unique(np.concatenate(parts))
        while len(self.hashes) > self.most_pairs // 2:
            self.bits += 1
            self.hashes = self._below(self.hashes)

    def _below(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the hashes that begin with ``bits`` zero bits."""
        return hashes[hashes >> np.uint64(64 - self.bits) == 0] if self.bits else hashes


def _as_uint64(ids: NDArray[Any]) -> NDArray[np.uint64]:
    """Return int64 ids as uint64, for the hash."""
    return ids.view(np.uint64)


def named_or_only(text: str | None, relations: Sequence[Relation], *, need: str, where: str) -> Relation:
    """Return the relation that ``text`` names, or the only relation. Pure.

    Parameters
    ----------
    text : "author:writes:paper", or only its name, or None for the only relation
    relations : the source's relations
    need : beginning of the error message; it names the option that needs a relation
    where : the source, for messages

    Raises
    ------
    ConfigError
        No relation matches, or several.
    """
    if text is not None:
        return find_relation(text, relations, where=where)
    if len(relations) != 1:
        there = ", ".join(map(relation_text, relations)) or "none"
        raise ConfigError(f"{need}, as {where} has {len(relations)} relations; they are: {there}")
    return relations[0]


# Bytes per edge of a chunk in an edge split: the edge as read, its ids, and the number of its part.
_EDGE_BYTES = 96
_MIN_EDGES, _MAX_EDGES = 4_096, 2_000_000  # bounds for the number of edges per chunk


def with_tables(source: AnySource, options: PrepareOptions) -> GraphSource:
    """Return the source's graph, with its own link tables and those from files. Check the options of links.

    Of the files, only CSV files are read to the end, to count their rows and to find their labels' dtype.

    Raises
    ------
    ConfigError
        A table's name cannot be stored or occurs twice, or a relation is unknown or must be named. Or the edges to
        split have the times of their source rows.
    SourceError, ShapeError, GraphError
        A file is missing or malformed.
    """
    notes: ColumnNotes = ColumnNotes()
    graph = source.graph()
    links = (*graph.links, *(_table_in_file(text, notes) for text in options.edge_tables))
    if options.reverse and not graph.has_names:
        raise ConfigError(
            f"--reverse is for graphs of several relations; {graph.origin} has one, which may hold both directions"
        )
    # Some results are not used: the calls only raise ConfigError for an unknown relation.
    named_reverses(options.reverse, _relations(graph), where=graph.origin)
    if _is_split(graph, options):
        _refuse_row_timed(graph, [_split_relation(graph, options)])
    elif options.edge_split_relation is not None:
        raise ConfigError(
            "--edge-split-relation names a relation to split, and --edge-split is missing: add --edge-split 80/10/10"
        )
    elif options.edge_split_by != "random":
        raise ConfigError(
            f"--edge-split-by {options.edge_split_by} needs an edge split: add --edge-split 80/10/10"
        )
    split_tables = PARTS if _is_split(graph, options) else ()
    # Each table's origin, by its name in lower case.
    origins = dict.fromkeys(split_tables, "made by --edge-split")
    for each in links:
        if not is_type_name(each.name):
            raise ConfigError(f"link table {shown(each.name)}: a name has {ALLOWED}, and no '__' inside")
        if (other := origins.get(each.name.casefold())) is not None:
            raise ConfigError(f"the link table {each.name!r} of {each.where} is there already, {other}")
        origins[each.name.casefold()] = f"from {each.where}"
        _relation_of(each, graph, _relations(graph))
    return replace(
        graph,
        links=links,
        column_notes=(*graph.column_notes, *notes.lines),
        unused=(*graph.unused, *notes.unused),
    )


def _table_in_file(text: str, notes: ColumnNotes) -> LinkSource:
    """Return the link table that ``text`` names; see `edge_table`."""
    from gloader.convert.links.link_rows import edge_table  # needs pyarrow, which no other preparation does

    return edge_table(text, notes)


def split_edges(source: GraphSource, options: PrepareOptions) -> EdgeStream | None:
    """Return the edges that an edge split divides, or None without a split. Raises as `with_tables`. Pure."""
    if not _is_split(source, options):
        return None
    return _edges_of(source, _split_relation(source, options))[1]


def _is_split(source: GraphSource, options: PrepareOptions) -> bool:
    """True if edges are to be divided. Links with a note were divided by their source. Pure."""
    return options.edge_split is not None and not source.link_note


def split_source(
    source: GraphSource, options: PrepareOptions, *, budget_bytes: int, progress: PrepareProgress
) -> GraphSource:
    """Return the source with only the train edges in its graph, and with the link tables train, valid and test.

    Reverse relations are split in the same way. Their edges in valid and test are dropped.

    Parameters
    ----------
    source : the source. One pass counts its edges. A split by time needs more passes
    options : the conversion's options; without a split, the source is returned unchanged
    budget_bytes : the memory budget
    progress : receives the steps

    Raises
    ------
    ConfigError
        A part has no edges, or a reverse relation has the times of its source rows.
    SourceError
        The split is by time, and edges have no times.
    GraphError
        An id, a weight or a time is out of range.
    """
    shares = options.edge_split
    if shares is None or not _is_split(source, options):
        return source
    relation = _split_relation(source, options)
    ends, edges = _edges_of(source, relation)
    max_edges = max(_MIN_EDGES, min(_MAX_EDGES, budget_bytes // _EDGE_BYTES))
    rule = _rule(edges, relation, shares, options, ends=ends, max_edges=max_edges, progress=progress)
    parts = deal_edges(edges, rule, ends=ends, max_edges=max_edges, progress=progress)
    _refuse_empty(parts, ends.where)
    kept = {relation: parts[0]}
    reverses = _reverse_relations(source, relation, options, budget_bytes=budget_bytes, max_edges=max_edges)
    _refuse_row_timed(source, reverses)
    for back in reverses:
        # Otherwise, the reverse relation would keep the held-out pairs in the graph.
        back_ends, back_edges = _edges_of(source, back)
        if isinstance(rule, RandomParts):
            rule = replace(rule, is_reverse=True)
        elif not back_edges.has_times:
            raise SourceError(
                f"{back_ends.where} is a reverse relation of {relation_text(relation)} without times, so "
                "--edge-split-by time cannot find its held-out edges; give its edges times, or split at random"
            )
        kept[back] = deal_edges(back_edges, rule, ends=back_ends, max_edges=max_edges, progress=progress)[0]
    # The keys of ``kept`` are the split relation and then its reverses. The tables get the first reverse, if any.
    links = _part_tables(parts, source.origin, relation, *list(kept)[1:2]) + source.links
    relations = tuple(
        replace(each, edges=kept[each.relation]) if each.relation in kept else each
        for each in source.relations
    )
    return replace(source, relations=relations, links=links)


def _refuse_row_timed(source: GraphSource, relations: Sequence[Relation]) -> None:
    """Raise ConfigError if one of ``relations``, a split one and its reverses, has the times of its source rows."""
    timed = [each for each in source.relations if each.is_row_timed and each.relation in relations]
    if timed:
        raise ConfigError(
            f"--edge-split: the edges of {source.where(timed[0])} have the times of their source rows, so an edge and "
            "its reverse have different times and cannot be matched; give the edges a time of their own with time: "
            "COLUMN, or leave out the times of rows"
        )


def _part_tables(
    parts: Sequence[EdgeStream], where: str, relation: Relation, back: Relation | None = None
) -> tuple[LinkSource, ...]:
    """Return each part's link table. ``back`` is the reverse relation, or None to find it by name."""
    return tuple(
        LinkSource(
            name=name,
            rows=edge_rows(part),
            where=where,
            relation=relation_text(relation),
            reverse=None if back is None else relation_text(back),
        )
        for name, part in zip(PARTS, parts, strict=True)
    )


def _reverse_relations(
    source: GraphSource, relation: Relation, options: PrepareOptions, *, budget_bytes: int, max_edges: int
) -> list[Relation]:
    """Return the reverse relations, found by the flag --reverse, by name, or by their pairs."""
    relations = _relations(source)
    named = named_reverses(options.reverse, relations, where=source.origin)
    back = reverse_of(relation, relations, named)
    known = [] if back is None or back == relation else [back]
    return known + reverses_by_pairs(
        relation,
        {each.relation: each.edges for each in source.relations},
        counts=(source.num_nodes_of(relation[0]), source.num_nodes_of(relation[2])),
        known=known,
        budget_bytes=budget_bytes,
        max_edges=max_edges,
    )


def planned_tables(
    source: GraphSource,
    relations: Sequence[Relation],
    options: PrepareOptions,
    *,
    new_ids: IdArray | None = None,
) -> tuple[PlannedLinks, ...]:
    """Return the dataset's link tables, each with its relation and reverse relation. Pure.

    Parameters
    ----------
    source : the source, with link tables from files
    relations : the dataset's relations, with added reverses
    options : the conversion's options, which may name reverses
    new_ids : (N,) new node ids for a reordered graph of one type, or None if nodes keep their ids
    """
    tables = []
    named = named_reverses(options.reverse, relations, where=source.origin)
    for each in source.links:
        relation = _relation_of(each, source, relations)
        back = (
            None
            if each.is_free
            else reverse_of(relation, relations, named)
            if each.reverse is None
            else find_relation(each.reverse, relations, where=source.origin)
        )
        tables.append(
            PlannedLinks(
                source=each,
                relation=relation,
                reverse=back,
                num_sources=source.num_nodes_of(relation[0]),
                num_destinations=source.num_nodes_of(relation[2]),
                new_ids=new_ids,
            )
        )
    return tuple(tables)


def _rule(
    edges: EdgeStream,
    relation: Relation,
    shares: EdgeShares,
    options: PrepareOptions,
    *,
    ends: EdgeEnds,
    max_edges: int,
    progress: PrepareProgress,
) -> PartRule:
    """Return the rule of the edge split. A rule by time reads the edges a few times."""
    if options.edge_split_by == "time":
        return time_parts(edges, shares, ends=ends, max_edges=max_edges, progress=progress)
    return RandomParts(seed=options.edge_split_seed, shares=shares, is_ordered=relation[0] != relation[2])


def _refuse_empty(parts: Sequence[EdgeStream], where: str) -> None:
    """Raise ConfigError for a part of the split without edges."""
    total = sum(each.num_edges or 0 for each in parts)
    for name, part in zip(PARTS, parts, strict=True):
        if not part.num_edges:
            raise ConfigError(
                f"{where}: splitting its {total} edges by --edge-split leaves the table {name!r} empty; give it "
                "a larger share"
            )


def _relations(source: GraphSource) -> list[Relation]:
    return [each.relation for each in source.relations]


def _split_relation(source: GraphSource, options: PrepareOptions) -> Relation:
    """Return the relation whose edges are split. Raises ConfigError if it must be named or is unknown."""
    need = "--edge-split needs --edge-split-relation"
    return named_or_only(options.edge_split_relation, _relations(source), need=need, where=source.origin)


def _relation_of(table: LinkSource, source: GraphSource, relations: Sequence[Relation]) -> Relation:
    """Return a table's relation, one of ``relations``. A table that names none belongs to the source's only relation.

    Raises ConfigError if the relation is unknown, or must be named.
    """
    if table.is_free and table.relation is not None:
        return parse_relation(table.relation)
    if table.relation is not None:
        return find_relation(table.relation, relations, where=source.origin)
    need = f"the link table {table.name!r} needs a relation, as in --edge-table {table.name}@RELATION=FILE"
    return named_or_only(None, _relations(source), need=need, where=source.origin)


def _edges_of(source: GraphSource, relation: Relation) -> tuple[EdgeEnds, EdgeStream]:
    """Return the ranges of a relation's node ids, and its edges."""
    each = next(each for each in source.relations if each.relation == relation)
    return relation_ends(source, each), each.edges
