"""Which relation a link table is of, and which leads back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.convert.relation_rules import REVERSE_PREFIX, find_relation
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.types import Relation


def reverse_of(relation: Relation, relations: Sequence[Relation]) -> Relation | None:
    """Return the relation of ``relations`` whose edges lead back, as its name says; None: there is none. Pure.

    It is (b, rev_r, a) for (a, r, b), and the other way round; a relation within one type may hold both directions.
    """
    source, name, destination = relation
    names = [REVERSE_PREFIX + name]
    if name.startswith(REVERSE_PREFIX):
        names.append(name.removeprefix(REVERSE_PREFIX))
    found = [(destination, each, source) for each in names if (destination, each, source) in relations]
    return found[0] if found else relation if source == destination else None


def named_or_only(text: str | None, relations: Sequence[Relation], *, need: str, where: str) -> Relation:
    """Return the relation that ``text`` names, or the only one. Pure.

    Parameters
    ----------
    text : "author:writes:paper", or its name alone; None: the only one
    relations : of the source
    need : what a relation is to be named for and how, as the message begins
    where : the source, for messages

    Raises
    ------
    ConfigError
        None is meant, or several.
    """
    if text is not None:
        return find_relation(text, relations, where=where)
    if len(relations) != 1:
        there = ", ".join(map(relation_text, relations)) or "none"
        raise ConfigError(f"{need}, as {where} has {len(relations)} relations; they are: {there}")
    return relations[0]
