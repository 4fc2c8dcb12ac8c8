"""Relations of a typed dataset: those of the source, the rules that each gets, and the reverses that are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.hetero_source import RelationSource, ReversedEdges
from gloader.convert.options import EdgeRules
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.convert.hetero_source import HeteroSource
    from gloader.convert.options import PrepareOptions
    from gloader.types import Relation

REVERSE_PREFIX = "rev_"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRelation:
    """A relation that the dataset will have."""

    source: RelationSource
    ends: EdgeEnds
    rules: EdgeRules

    @property
    def relation(self) -> Relation:
        """Its name and types."""
        return self.source.relation


def plan_relations(source: HeteroSource, options: PrepareOptions) -> tuple[PlannedRelation, ...]:
    """Return the relations of the dataset in order: the source's, then the reverses that are asked for. Pure.

    Raises
    ------
    ConfigError
        An option is for graphs of one type, or names a relation that is not there, is not unique, or runs between two
        types.
    SourceError
        A relation names a type that is not there.
    """
    given = source.relations
    _refuse_options(source, options)
    both_ways = {
        find_relation(text, [each.relation for each in given], where=source.origin)
        for text in options.symmetrized
    }
    if options.symmetrize is True:
        both_ways = {each.relation for each in given if each.relation[0] == each.relation[2]}
    for relation in sorted(both_ways):
        first, _, last = relation
        if first != last:
            raise ConfigError(
                f"--symmetrize {relation_text(relation)}: the relation runs from {first!r} to {last!r}, and only "
                "one within a type has both directions; --add-reverse adds a relation back"
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
        for each in given
    ]
    if options.add_reverse:
        named = named_reverses(options.reverse, [each.relation for each in given], where=source.origin)
        planned += _reverses(source, [each for each in planned if each.relation not in named])
    return tuple(planned)


def find_relation(text: str, relations: Sequence[Relation], *, where: str) -> Relation:
    """Return the relation that ``text`` means: "author:writes:paper", or its name alone where only one has it. Pure.

    Raises
    ------
    ConfigError
        None is meant, or several; says which there are.
    """
    found = [relation for relation in relations if text in (relation_text(relation), relation[1])]
    exact = [relation for relation in found if relation_text(relation) == text]
    found = exact or found
    if len(found) == 1:
        return found[0]
    there = ", ".join(map(relation_text, found or relations)) or "none"
    said = "names several" if found else "is none"
    raise ConfigError(f"relation {text!r} {said} of {where}'s relations; write one of: {there}")


def named_reverses(
    pairs: Sequence[tuple[str, str]], relations: Sequence[Relation], *, where: str
) -> dict[Relation, Relation]:
    """Return the relation that leads back along each that ``pairs`` name, from either of the two. Pure.

    Raises
    ------
    ConfigError
        A name is of no relation, or of several, or the second does not lead back along the first.
    """
    found: dict[Relation, Relation] = {}
    for pair in pairs:
        one, back = (find_relation(text, relations, where=where) for text in pair)
        if one[::2] != back[2::-2]:
            raise ConfigError(
                f"--reverse {pair[0]}={pair[1]}: {relation_text(back)} does not lead back along {relation_text(one)}; "
                f"a reverse goes from {one[2]!r} to {one[0]!r}"
            )
        found |= {one: back, back: one}
    return found


def _refuse_options(source: HeteroSource, options: PrepareOptions) -> None:
    if options.order != "none":
        raise ConfigError(
            f"--order {options.order} is for graphs of one node type; {source.origin} has {len(source.nodes)}: leave "
            "it out"
        )
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


def _reverses(source: HeteroSource, planned: Sequence[PlannedRelation]) -> list[PlannedRelation]:
    """Return the reverse of each relation that has none yet."""
    there = {each.relation for each in source.relations}
    added = []
    for each in planned:
        first, name, last = each.relation
        reverse = (last, REVERSE_PREFIX + name, first)
        # A source may bring its own reverses, whose reverses are there, or relations that are their own.
        is_reverse = (
            name.startswith(REVERSE_PREFIX) and (last, name.removeprefix(REVERSE_PREFIX), first) in there
        )
        if each.rules.symmetrize or each.source.is_symmetric or is_reverse or reverse in there:
            continue
        back = RelationSource(
            relation=reverse,
            edges=ReversedEdges(edges=each.source.edges),
            edge_features=each.source.edge_features,
            edge_file=each.source.edge_file,
        )
        added.append(PlannedRelation(source=back, ends=relation_ends(source, back), rules=each.rules))
    return added


def relation_ends(source: HeteroSource, each: RelationSource) -> EdgeEnds:
    """Return the nodes that the edges of a relation join, and what holds them; raises SourceError for unknown types."""
    first, _, last = each.relation
    return EdgeEnds(
        num_nodes=source.num_nodes_of(last),
        num_sources=source.num_nodes_of(first),
        where=source.where(each),
        is_typed=True,
    )
