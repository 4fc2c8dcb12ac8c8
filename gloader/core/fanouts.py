"""Fan-outs in the forms that users write: a list, a list per relation, or a list for all relations together.

A fan-out is the number of neighbours that a hop samples per node. A list has one fan-out per hop, and its first number
belongs to the hop next to the seeds. -1 takes all neighbours. With *collective* fan-outs, a node draws this number of
neighbours from all relations together. `checked_fanouts` accepts every form, and calls the other functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np

from gloader.core.malformed import shown
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError
from gloader.types import ANY_RELATION, CollectiveFanouts, Fanouts, Relation, RelationFanouts

# The largest count that a setting may have: it fits every integer argument of a kernel.
MAX_COUNT: Final = 2**31 - 1
_MAX_FANOUT: Final = 2**31 - 2  # local ids and offsets of a batch are int32
_FANOUTS: Final = "fanouts"  # the setting as a whole, in messages
_COLLECTIVE: Final = "collective:"  # prefix of collective fan-outs on the command line
_EXAMPLE = "'author:writes:paper=25,20;*=10,5'"  # for messages

FanoutsLike: TypeAlias = (
    Sequence[int] | Mapping[Relation | str, Sequence[int]] | RelationFanouts | CollectiveFanouts | str
)


@near_keywords
def collective(fanouts: Sequence[int]) -> CollectiveFanouts:
    """Return collective fan-outs: in each hop, a node draws its in-edges from all relations together. Pure.

    Parameters
    ----------
    fanouts : in-edges per node, one integer per hop, the hop next to the seeds first; -1 takes all

    Raises
    ------
    ConfigError
        ``fanouts`` is empty, or an entry is not an integer >= -1.
    """
    return CollectiveFanouts(checked_hops(fanouts, noun="collective fan-outs"))


def checked_fanouts(fanouts: FanoutsLike) -> Fanouts:
    """Return ``fanouts`` in a normal form: equal fan-outs have equal forms. Pure.

    Parameters
    ----------
    fanouts : one of these forms. A sequence has one integer per hop, for every relation. A mapping has such a sequence
        for each relation. Its keys are tuples, or texts such as "source:name:destination"; "*" stands for all other
        relations. Other forms are a result of `collective`, and the command line's text

    Raises
    ------
    ConfigError
        ``fanouts`` has no such form, names no relation, repeats a relation, or has different numbers of hops.
    """
    match fanouts:
        case str():
            return parse_fanouts(fanouts)
        case CollectiveFanouts():
            return collective(fanouts.fanouts)
        case RelationFanouts():
            return _by_relation(fanouts.by_relation)
        case Mapping():
            return _by_relation(fanouts.items())
    return checked_hops(fanouts)


def checked_hops(fanouts: Any, *, noun: str = _FANOUTS) -> tuple[int, ...]:
    """Return ``fanouts`` as a tuple of integers, empty without hops. Messages call the setting ``noun``. Pure.

    Raises
    ------
    ConfigError
        ``fanouts`` is no list, or an entry is not an integer >= -1. Or it is empty, and not the setting as a whole.
    """
    if isinstance(fanouts, RelationFanouts | CollectiveFanouts | Mapping):
        raise ConfigError(
            f"{noun} is {str(fanouts)!r}, and this graph has one node type and one relation; pass one integer per "
            "hop, such as [15, 10, 5]"
        )
    if isinstance(fanouts, (str, bytes)) or not hasattr(fanouts, "__iter__"):
        raise ConfigError(f"{noun} is {fanouts!r}; pass one integer per hop, such as [15, 10, 5]")
    checked = tuple(fanouts)
    if not checked and noun != _FANOUTS:  # fan-outs of a part of the relations, which another part may have
        raise ConfigError(f"{noun} is empty; pass one integer per hop, such as [15, 10, 5]")
    for hop, fanout in enumerate(checked):
        if isinstance(fanout, (bool, np.bool_)) or not isinstance(fanout, (int, np.integer)):
            raise ConfigError(f"{noun}[{hop}] is {fanout!r}; it must be an integer, -1 for all neighbours")
        if fanout > _MAX_FANOUT:
            raise ConfigError(
                f"{noun}[{hop}] is {fanout}; -1 takes all neighbours, and {_MAX_FANOUT:,} is the most"
            )
        if fanout < -1:
            raise ConfigError(f"{noun}[{hop}] is {fanout}; it must be at least 0, or -1 for all neighbours")
    return tuple(int(fanout) for fanout in checked)


def largest_fanout(fanouts: Fanouts) -> int:
    """Return the largest fan-out over all hops and relations. Return -1 if any fan-out takes all neighbours. Pure."""
    match fanouts:
        case CollectiveFanouts():
            hops = fanouts.fanouts
        case RelationFanouts():
            hops = tuple(chain.from_iterable(relation_hops for _, relation_hops in fanouts.by_relation))
        case _:
            hops = fanouts
    return -1 if min(hops, default=0) < 0 else max(hops, default=0)


def plain_fanouts(fanouts: Fanouts) -> list[int] | str:
    """Return ``fanouts`` as a list or the command line's text, both of which `checked_fanouts` accepts. Pure."""
    return list(fanouts) if isinstance(fanouts, tuple) else str(fanouts)


def parse_fanouts(text: str) -> Fanouts:
    """Return the fan-outs for a text such as "15,10", "a:writes:b=25,20;*=10,5" or "collective:25,20". Pure.

    Raises
    ------
    ConfigError
        The text has none of these forms.
    """
    if "=" in text:
        parts = [part.partition("=") for part in text.split(";") if part.strip()]
        return _by_relation((name.strip(), parse_fanout(hops)) for name, _, hops in parts)
    if text.strip().startswith(_COLLECTIVE):
        return collective(parse_fanout(text.strip().removeprefix(_COLLECTIVE)))
    return parse_fanout(text)


def parse_fanout(text: str) -> tuple[int, ...]:
    """Return the fan-outs, one per hop, for a list without relations, such as "15,10,5", "[15, 10]" or "-1". Pure.

    Raises
    ------
    ConfigError
        The text is not a list of whole numbers >= -1.
    """
    parts = [part for part in re.split(r"[\s,]+", text.strip().strip("[]()")) if part]
    try:
        fanout = tuple(int(part) for part in parts)
    except ValueError:
        fanout = ()
    if not fanout or min(fanout) < -1 or max(fanout) > MAX_COUNT:
        raise ConfigError(
            f"{shown(text)} is not a fan-out; write one whole number per layer, the hop next to the seeds first, "
            f"such as 15,10,5 (-1 takes all neighbours); each is at most {MAX_COUNT:,}; for several relations, "
            f"write {_EXAMPLE} or 'collective:25,20'"
        )
    return fanout


def parse_relation(name: object) -> Relation:
    """Return the relation for ``name``, a relation or a text such as "author:writes:paper". Pure.

    Raises
    ------
    ConfigError
        The relation is neither three texts nor a text with two colons.
    """
    parts = tuple(name.split(":")) if isinstance(name, str) else name
    if isinstance(parts, tuple) and len(parts) == 3 and all(isinstance(part, str) and part for part in parts):
        return (parts[0], parts[1], parts[2])
    raise ConfigError(
        f"{shown(name)} names no relation; write source:name:destination, such as author:writes:paper, or * for all "
        "other relations"
    )


def _by_relation(given: Any) -> Fanouts:
    """Return the checked fan-outs for pairs (relation, fan-outs). In the result, the pair of "*" is the last one."""
    by_relation: dict[Relation | str, tuple[int, ...]] = {}
    for name, hops in given:
        relation = ANY_RELATION if name == ANY_RELATION else parse_relation(name)
        text = relation if isinstance(relation, str) else ":".join(relation)
        if relation in by_relation:
            raise ConfigError(f"fanouts name {text} twice; each relation has one list")
        by_relation[relation] = checked_hops(hops, noun=f"fanouts[{text}]")
    if not by_relation:
        raise ConfigError(f"fanouts is empty; pass one integer per hop, such as [15, 10, 5], or {_EXAMPLE}")
    lengths = {  # number of hops by relation, for the message
        ":".join(name) if isinstance(name, tuple) else name: len(hops) for name, hops in by_relation.items()
    }
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise ConfigError(
            f"fanouts have different numbers of hops: {listed}; write equally many for each relation"
        )
    # Fan-outs that give equal draws have one form: relations are sorted, and "*" alone becomes a plain list.
    named = sorted((name, hops) for name, hops in by_relation.items() if isinstance(name, tuple))
    others = by_relation.get(ANY_RELATION)
    if not named and others is not None:
        return others
    return RelationFanouts((*named, *(() if others is None else ((ANY_RELATION, others),))))
