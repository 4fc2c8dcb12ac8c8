"""Relations by the names that DGL's users give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.types import Relation


_K = TypeVar("_K")


def only(names: Iterable[_K]) -> _K:
    """Return the only one of ``names``.

    Raises
    ------
    ConfigError
        There are several.
    """
    found = list(names)
    if len(found) != 1:
        raise ConfigError(
            f"there are {len(found)} types or relations: name one of {', '.join(map(repr, found))}"
        )
    return found[0]


def relation_of(relations: Iterable[Relation], name: Any) -> Relation:
    """Return the relation that ``name`` means: a triple, or the name between two types; None is the only one.

    Raises
    ------
    ConfigError
        There is none of that name, or there are several.
    """
    known = list(relations)
    if name is None:
        return only(known)
    found = [
        each for each in known if name in (each, each[1]) or (isinstance(name, list) and tuple(name) == each)
    ]
    if len(found) != 1:
        there = (
            "is no relation"
            if not found
            else "is the name of several relations; give one of them as a triple"
        )
        raise ConfigError(f"{name!r} {there}: there are {', '.join(map(repr, known))}")
    return found[0]
