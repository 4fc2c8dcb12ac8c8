"""The link tables of a conversion: those of the source, those in files, and the parts that edges are dealt out to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.hetero_source import HeteroSource
from gloader.convert.links.edge_parts import EdgeRows, RandomParts, deal_edges
from gloader.convert.links.link_source import LinkSource
from gloader.convert.links.relations import named_or_only, reverse_of, reverses_by_pairs
from gloader.convert.links.shares import PARTS
from gloader.convert.links.time_cuts import time_parts
from gloader.convert.links.write import PlannedTable
from gloader.convert.readers.told import Told
from gloader.convert.relation_rules import find_relation, named_reverses, relation_ends
from gloader.convert.source import Source
from gloader.core.malformed import shown
from gloader.dataset.schema import EDGE, relation_text
from gloader.errors import ConfigError, SourceError
from gloader.ssd_store.format.array_names import ALLOWED, is_type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.convert.hetero_source import AnySource
    from gloader.convert.links.edge_parts import PartEdges, TimeParts
    from gloader.convert.links.shares import EdgeShares
    from gloader.convert.options import PrepareOptions
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import EdgeStream
    from gloader.types import IdArray, Relation

# Bytes per edge of a chunk that is dealt out: as it is read, as ids, and what says its part.
_EDGE_BYTES = 96
_MIN_EDGES, _MAX_EDGES = 4_096, 2_000_000
_S = TypeVar("_S", Source, HeteroSource)


def with_tables(source: _S, options: PrepareOptions) -> _S:
    """Return ``source`` with the link tables of files behind its own; as much of the files is read as says their sizes.

    Raises
    ------
    ConfigError
        A table's name cannot be stored or is there twice, or a relation that is named, or should be, is not there.
    SourceError, ShapeError, GraphError
        A file is missing or malformed.
    """
    told: Told = Told()
    links = (*source.links, *(_table_in_file(text, told) for text in options.edge_tables))
    if isinstance(source, HeteroSource):
        named_reverses(options.reverse, _relations(source), where=source.origin)
    elif options.reverse:
        raise ConfigError(
            f"--reverse is for graphs of several relations; {source.origin} has one, which may hold both directions"
        )
    if options.edge_split is not None:
        _split_relation(source, options)
    elif options.edge_split_relation is not None:
        raise ConfigError(
            "--edge-split-relation says whose edges are split: add their shares, --edge-split 80/10/10"
        )
    elif options.edge_split_by != "random":
        raise ConfigError(
            f"--edge-split-by {options.edge_split_by} says how edges are split: add their shares, --edge-split 80/10/10"
        )
    made = PARTS if options.edge_split is not None else ()
    seen = dict.fromkeys(made, "made by --edge-split")
    for each in links:
        if not is_type_name(each.name):
            raise ConfigError(f"link table {shown(each.name)}: a name has {ALLOWED}, and no '__' inside")
        if (other := seen.get(each.name.casefold())) is not None:
            raise ConfigError(f"the link table {each.name!r} of {each.where} is there already, {other}")
        seen[each.name.casefold()] = f"from {each.where}"
        _relation_of(each, source, _relations(source))
    return replace(
        source, links=links, said=(*source.said, *told.said), unused=(*source.unused, *told.unused)
    )


def _table_in_file(text: str, told: Told) -> LinkSource:
    """Return the link table that ``text`` names, see `edge_table`."""
    from gloader.convert.links.table_rows import edge_table  # needs pyarrow, which no other preparation does

    return edge_table(text, told)


def split_edges(source: AnySource, options: PrepareOptions) -> EdgeStream | None:
    """Return the edges that are dealt out to tables, all of them; None: none are. Pure; raises as `with_tables`."""
    return None if options.edge_split is None else _edges_of(source, _split_relation(source, options))[1]


def split_source(source: _S, options: PrepareOptions, *, budget_bytes: int, progress: PrepareProgress) -> _S:
    """Return ``source`` with the edges of the part "train" alone, and a link table for each part.

    Edges of a relation that leads back are split as those are that they lead back from.

    Parameters
    ----------
    source : its edges are read once to be counted, and more often where times decide
    options : of the conversion; without a split the source is returned as it is
    budget_bytes : memory that it stays within
    progress : receives the steps

    Raises
    ------
    ConfigError
        A part has no edges.
    SourceError
        Times decide, and there are none.
    GraphError
        An id, a weight or a time is out of range.
    """
    if options.edge_split is None:
        return source
    relation = _split_relation(source, options)
    ends, edges = _edges_of(source, relation)
    shares = options.edge_split
    max_edges = max(_MIN_EDGES, min(_MAX_EDGES, budget_bytes // _EDGE_BYTES))
    rule = _rule(edges, relation, shares, options, ends=ends, max_edges=max_edges, progress=progress)
    parts = deal_edges(edges, rule, ends=ends, max_edges=max_edges, progress=progress)
    _refuse_empty(parts, ends.where)
    if isinstance(source, Source):
        links = _part_tables(parts, source.origin, relation) + source.links
        return replace(source, edges=parts[0], links=links)
    kept = {relation: parts[0]}
    for back in _backs(source, relation, options, budget_bytes=budget_bytes, max_edges=max_edges):
        # The held-out edges would come back by it.
        back_ends, back_edges = _edges_of(source, back)
        if isinstance(rule, RandomParts):
            rule = replace(rule, is_reverse=True)
        elif not back_edges.has_times:
            raise SourceError(
                f"{back_ends.where}: its edges lead back along {relation_text(relation)}, and have no times by which "
                "--edge-split-by time could leave some of them out; give them times, or split at random"
            )
        kept[back] = deal_edges(back_edges, rule, ends=back_ends, max_edges=max_edges, progress=progress)[0]
    links = _part_tables(parts, source.origin, relation, *list(kept)[1:2]) + source.links
    relations = tuple(
        replace(each, edges=kept[each.relation]) if each.relation in kept else each
        for each in source.relations
    )
    return replace(source, relations=relations, links=links)


def _part_tables(
    parts: Sequence[PartEdges], where: str, relation: Relation, back: Relation | None = None
) -> tuple[LinkSource, ...]:
    """Return the link table of each part; ``back`` leads back, None: what its name says, if there is one."""
    return tuple(
        LinkSource(
            name=name,
            rows=EdgeRows(edges=part),
            where=where,
            relation=relation_text(relation),
            reverse=None if back is None else relation_text(back),
        )
        for name, part in zip(PARTS, parts, strict=True)
    )


def _backs(
    source: HeteroSource, relation: Relation, options: PrepareOptions, *, budget_bytes: int, max_edges: int
) -> list[Relation]:
    """Return the relations that hold edges of ``relation`` the other way round: by a flag, a name or their pairs."""
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
    source: AnySource,
    relations: Sequence[Relation],
    options: PrepareOptions,
    *,
    new_ids: IdArray | None = None,
) -> tuple[PlannedTable, ...]:
    """Return the link tables of the dataset, each with its relation and the one that leads back. Pure.

    Parameters
    ----------
    source : of one type or several
    relations : of the dataset, reverses that are added included
    options : name reverses
    new_ids : (N,) of the nodes of a source of one type that get another order; None: they keep their ids
    """
    tables = []
    named = named_reverses(options.reverse, relations, where=source.origin)
    for each in source.links:
        relation = _relation_of(each, source, relations)
        back = (
            reverse_of(relation, relations, named)
            if each.reverse is None
            else find_relation(each.reverse, relations, where=source.origin)
        )
        counts = [_num_nodes(source, node_type) for node_type in (relation[0], relation[2])]
        tables.append(
            PlannedTable(
                source=each,
                relation=relation,
                reverse=back,
                num_sources=counts[0],
                num_destinations=counts[1],
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
) -> RandomParts | TimeParts:
    if options.edge_split_by == "time":
        return time_parts(edges, shares, ends=ends, max_edges=max_edges, progress=progress)
    return RandomParts(seed=options.edge_split_seed, shares=shares, is_ordered=relation[0] != relation[2])


def _refuse_empty(parts: Sequence[PartEdges], where: str) -> None:
    total = sum(each.num_edges or 0 for each in parts)
    for name, part in zip(PARTS, parts, strict=True):
        if not part.num_edges:
            raise ConfigError(
                f"{where}: splitting its {total} edges by --edge-split leaves the table {name!r} empty; give it "
                "a larger share"
            )


def _relations(source: AnySource) -> list[Relation]:
    return [EDGE] if isinstance(source, Source) else [each.relation for each in source.relations]


def _split_relation(source: AnySource, options: PrepareOptions) -> Relation:
    need = "--edge-split needs --edge-split-relation"
    return named_or_only(options.edge_split_relation, _relations(source), need=need, where=source.origin)


def _relation_of(table: LinkSource, source: AnySource, relations: Sequence[Relation]) -> Relation:
    if table.relation is not None:
        return find_relation(table.relation, relations, where=source.origin)
    need = f"the link table {table.name!r} needs a relation, as in --edge-table {table.name}@RELATION=FILE"
    return named_or_only(None, _relations(source), need=need, where=source.origin)


def _edges_of(source: AnySource, relation: Relation) -> tuple[EdgeEnds, EdgeStream]:
    if isinstance(source, Source):
        return EdgeEnds.of(source.num_nodes, source.edge_origin), source.edges
    each = next(each for each in source.relations if each.relation == relation)
    return relation_ends(source, each), each.edges


def _num_nodes(source: AnySource, node_type: str) -> int:
    return source.num_nodes if isinstance(source, Source) else source.num_nodes_of(node_type)
