"""Relations of link tables: the one that a table is of, and those that hold its edges the other way round."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.relation_rules import REVERSE_PREFIX, find_relation
from gloader.core.hashing import GOLDEN, mixed_words
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.convert.source import EdgeStream
    from gloader.types import Relation

_LOG = logging.getLogger(__name__)
# Of a sampled pair: its hash, those that are compared with it, and the sort of both; chunks have the larger share.
_BYTES_OF_PAIR: Final = 128
_MIN_PAIRS: Final = 1 << 12
_TOLD_SHARE: Final = 0.1  # of the pairs there the other way round, from which on it is said
_FULL_SHARE: Final = 0.9  # of all pairs that there can be: such a relation holds any pair


def reverse_of(
    relation: Relation,
    relations: Sequence[Relation],
    named: Mapping[Relation, Relation] = MappingProxyType({}),
) -> Relation | None:
    """Return the relation of ``relations`` whose edges lead back, as was named or as its name says; None: none. Pure.

    By its name it is (b, rev_r, a) for (a, r, b), and the other way round; a relation within one type may hold both
    directions.
    """
    if relation in named:
        return named[relation]
    source, name, destination = relation
    names = [REVERSE_PREFIX + name]
    if name.startswith(REVERSE_PREFIX):
        names.append(name.removeprefix(REVERSE_PREFIX))
    found = [(destination, each, source) for each in names if (destination, each, source) in relations]
    return found[0] if found else relation if source == destination else None


def reverses_by_pairs(
    relation: Relation,
    streams: Mapping[Relation, EdgeStream],
    *,
    counts: tuple[int, int],
    known: Sequence[Relation],
    budget_bytes: int,
    max_edges: int,
) -> list[Relation]:
    """Return the relations whose pairs are those of ``relation`` the other way round, under whatever name.

    Pairs are compared by hashes: all of them, or those of a sample that is the same of every relation. Relations that
    hold a part of the pairs are told of, with the flag that says that they lead back.

    Parameters
    ----------
    relation : whose edges are split
    streams : the edges of all relations; those of candidates are read once
    counts : of its source and destination nodes
    known : relations that are known to lead back, which are not looked at
    budget_bytes, max_edges : memory, and edges that are read at a time
    """
    source, _, destination = relation
    others = [
        each
        for each in streams
        if each[::2] == (destination, source) and each != relation and each not in known
    ]
    if not others:
        return []
    most_pairs = max(_MIN_PAIRS, budget_bytes // _BYTES_OF_PAIR)
    ours = PairSample(most_pairs=most_pairs)
    ours.fill(streams[relation], max_edges, is_turned=False)
    found = []
    for other in others:
        theirs = PairSample(most_pairs=most_pairs)
        theirs.fill(streams[other], max_edges, is_turned=True)
        num_ours, num_theirs, num_both = ours.compared(theirs)
        if not num_both:
            continue
        of_ours, of_theirs = num_both / num_ours, num_both / num_theirs
        # Of all pairs that there can be, it says nothing that it holds these.
        density = theirs.estimated() / max(counts[0] * counts[1], 1)
        said = (
            f"{relation_text(other)} holds {100 * of_ours:.3g}% of the pairs of {relation_text(relation)} the other "
            f"way round ({num_both:,} of {num_ours:,}{' in a sample' if ours.is_part or theirs.is_part else ''})"
        )
        is_reverse = of_ours == 1.0 or (of_theirs == 1.0 and of_ours > 1 / 2)
        if is_reverse and density < _FULL_SHARE:
            _LOG.info("%s: held-out edges are left out of it too", said)
            found.append(other)
        elif of_ours >= max(_TOLD_SHARE, 2 * density):
            _LOG.warning(
                "%s: held-out edges stay in the graph there; if it leads back, say --reverse %s=%s, in Python "
                "reverse={%r: %r}, and they are left out of it too",
                said,
                relation_text(relation),
                relation_text(other),
                relation_text(relation),
                relation_text(other),
            )
    return found


@dataclass(slots=True, kw_only=True)
class PairSample:
    """Hashes of the pairs of a relation: of all, or of those below a bound, which is the same for every relation."""

    most_pairs: int
    hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))  # ascending, each once
    bits: int = 0  # pairs whose hash begins with so many zeros are held

    @property
    def is_part(self) -> bool:
        """Whether not all pairs are held."""
        return self.bits > 0

    def fill(self, edges: EdgeStream, max_edges: int, *, is_turned: bool) -> None:
        """Take the pairs of ``edges``, source and destination exchanged where they are turned."""
        parts, size = [self.hashes], 0
        for chunk in edges.chunks(max_edges):
            first, second = (chunk.dst, chunk.src) if is_turned else (chunk.src, chunk.dst)
            hashes = self._below(mixed_words(mixed_words(_words(first) * GOLDEN) + _words(second)))
            parts.append(hashes)
            size += len(hashes)
            if size > self.most_pairs:
                self._shrink(parts)
                parts, size = [self.hashes], 0
        self._shrink(parts)

    def compared(self, other: PairSample) -> tuple[int, int, int]:
        """Return how many pairs of both samples are compared, and how many are in both."""
        bits = max(self.bits, other.bits)
        self.bits = other.bits = bits
        self.hashes, other.hashes = self._below(self.hashes), other._below(other.hashes)
        both = np.intersect1d(self.hashes, other.hashes, assume_unique=True)
        return len(self.hashes), len(other.hashes), len(both)

    def estimated(self) -> int:
        """Return the number of different pairs, as the sample has it."""
        return len(self.hashes) << self.bits

    def _shrink(self, parts: list[NDArray[np.uint64]]) -> None:
        self.hashes = np.unique(np.concatenate(parts))
        while len(self.hashes) > self.most_pairs // 2:
            self.bits += 1
            self.hashes = self._below(self.hashes)

    def _below(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return hashes[hashes >> np.uint64(64 - self.bits) == 0] if self.bits else hashes


def _words(ids: NDArray[Any]) -> NDArray[np.uint64]:
    return ids.view(np.uint64)


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
