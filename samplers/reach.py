"""Which relations a batch can have edges of at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gloader.types import Relation


def unreachable_relations(
    relations: Sequence[Relation], seed_types: Iterable[str], num_hops: int
) -> tuple[Relation, ...]:
    """Return the relations, in order, whose destinations no hop can find, whatever their edges are. Pure.

    Parameters
    ----------
    relations : of the graph
    seed_types : types that seeds have
    num_hops : L
    """
    found = set(seed_types)
    reached: set[Relation] = set()
    for _ in range(num_hops):
        reached |= {relation for relation in relations if relation[2] in found}
        found |= {source for source, _, _ in reached}
    return tuple(relation for relation in relations if relation not in reached)
