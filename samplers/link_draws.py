"""A link batch's pairs: its edges and their negatives.

A link batch predicts whether pairs of nodes are edges. A pair has two ends, a source and a destination. A positive is
an edge from the link table. A negative is a drawn pair that belongs to one positive; a strict negative is no edge of
the graph. `NegativeDraws` makes a batch's pairs, and `EndNumbers` makes seeds from their ends; `LinkSeeds` calls both.

Every draw is a hash of (seed, epoch, batch index, row of the link table, number of the negative, attempt). An attempt
is one try to find a strict negative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.negatives import Binary, InBatch, Table, Uniform
from gloader.errors import ConfigError
from gloader.samplers import link_kernels
from gloader.samplers.arguments import MAX_LOCAL
from gloader.samplers.edge_lookup import FreePairs, are_edges, free_destinations, lookup_bytes

if TYPE_CHECKING:
    from gloader.core.negatives import Negatives
    from gloader.samplers.graph import HeteroGraph, Topology
    from gloader.types import IdArray, LinkReader, LinkRows, LocalArray, Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEnds:
    """A batch's pairs. A pair is an index in ``sources`` and an index in ``destinations``. Positives come first."""

    sources: IdArray  # (S,) ids within the source type, repeats allowed
    destinations: IdArray  # (D,) ids within the destination type, repeats allowed
    source_places: IdArray  # (P,) each pair's index in ``sources``
    destination_places: IdArray  # (P,) each pair's index in ``destinations``
    owners: IdArray  # (P,) the index of each pair's positive, which also gives the pair's time
    num_shared: int = (
        0  # k, the last ends on each side, which are in no pair: all positives share them as negatives
    )

    @classmethod
    def of(cls, found: LinkRows) -> PairEnds:
        """Return the positives ``found`` (B,), without negatives."""
        places = np.arange(len(found.sources))
        return cls(
            sources=found.sources,
            destinations=found.destinations,
            source_places=places,
            destination_places=places,
            owners=places,
        )

    def with_destinations(self, destinations: IdArray, owners: IdArray) -> PairEnds:
        """Return these pairs and Q more: the sources of ``owners`` (Q,) with ``destinations`` (Q,)."""
        return PairEnds(
            sources=self.sources,
            destinations=np.concatenate([self.destinations, destinations]),
            source_places=np.concatenate([self.source_places, owners]),
            destination_places=np.arange(len(self.owners) + len(owners)),
            owners=np.concatenate([self.owners, owners]),
        )

    def with_pairs(self, sources: IdArray, destinations: IdArray, owners: IdArray) -> PairEnds:
        """Return these pairs and Q more: ``sources`` (Q,) with ``destinations`` (Q,), for positives ``owners`` (Q,)."""
        places = np.arange(len(self.owners) + len(owners))
        return PairEnds(
            sources=np.concatenate([self.sources, sources]),
            destinations=np.concatenate([self.destinations, destinations]),
            source_places=places,
            destination_places=places,
            owners=np.concatenate([self.owners, owners]),
        )

    def with_shared(self, sources: IdArray, destinations: IdArray) -> PairEnds:
        """Return these pairs, with k wrong ``sources`` (k,) and ``destinations`` (k,) for all of them."""
        return replace(
            self,
            sources=np.concatenate([self.sources, sources]),
            destinations=np.concatenate([self.destinations, destinations]),
            num_shared=len(sources),
        )

    def crossed(self, times: IdArray | None) -> PairEnds:
        """Return the positives, and each source with the destinations of the other positives, in their order.

        No pair repeats, and no negative is a positive in the batch. A source's negatives belong to its first positive;
        with ``times`` (B,) they belong to its first positive at each time.
        """
        # Distinct ends in the order of their first pair: ``*_firsts`` are indices of pairs, ``*_ranks`` number ends.
        source_firsts, source_ranks = _first_seen(self.sources)
        destination_firsts, destination_ranks = _first_seen(self.destinations)
        is_positive = np.zeros((len(source_firsts), len(destination_firsts)), dtype=np.bool_)
        is_positive[source_ranks, destination_ranks] = True
        firsts = source_firsts
        if times is not None:
            _, firsts = np.unique(np.stack([self.sources, times], axis=1), axis=0, return_index=True)
            firsts.sort()
        rows, columns = np.nonzero(~is_positive[source_ranks[firsts]])
        owners, others = firsts[rows], destination_firsts[columns]
        if times is not None:  # each negative has its owner's time
            return self.with_destinations(self.destinations[others], owners)
        return PairEnds(
            sources=self.sources,
            destinations=self.destinations,
            source_places=np.concatenate([self.source_places, owners]),
            destination_places=np.concatenate([self.destination_places, others]),
            owners=np.concatenate([self.owners, owners]),
        )


def _first_seen(values: IdArray) -> tuple[IdArray, IdArray]:
    """Return the index at which each distinct value occurs first, ascending, and every value's rank (n,). Pure.

    A rank is an index in the first array.
    """
    _, firsts, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return firsts[order], ranks[inverse.reshape(-1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndNumbers:
    """Makes seeds from the ends of pairs, in one numbering of all nodes, see `HeteroGraph.type_starts`."""

    source_start: int  # number of the source type's first node
    destination_start: int  # number of the destination type's first node
    num_nodes: int  # nodes in all types

    @classmethod
    def of(cls, graph: HeteroGraph, relation: Relation) -> EndNumbers:
        """Return the numbers for the relation's end types."""
        starts = dict(zip(graph.node_types, graph.type_starts.tolist(), strict=False))
        return cls(
            source_start=starts[relation[0]],
            destination_start=starts[relation[2]],
            num_nodes=int(graph.type_starts[-1]),
        )

    def distinct_seeds(self, ends: PairEnds) -> tuple[IdArray, LocalArray, LocalArray | None]:
        """Return the distinct ends, ascending, and the pairs (P, 2) as indices among the seeds of their types.

        The last result is `Links.shared`.
        """
        numbers = np.concatenate(
            [ends.sources + self.source_start, ends.destinations + self.destination_start]
        )
        nodes, ranks = distinct(numbers, self.num_nodes)
        num_sources, k = len(ends.sources), ends.num_shared
        places = (ends.source_places, num_sources + ends.destination_places)
        pairs = np.empty((len(ends.owners), 2), dtype=np.int32)
        shared = np.empty((2, k), dtype=np.int32)
        for end, (place, start, stop) in enumerate(
            zip(places, self._starts, (num_sources, len(ranks)), strict=True)
        ):
            # The seeds of earlier types come first. Their number is subtracted.
            first = np.searchsorted(nodes, start)
            pairs[:, end] = ranks[place] - first
            shared[end] = ranks[stop - k : stop] - first
        return nodes, pairs, shared if k else None

    def own_seeds(self, ends: PairEnds, times: IdArray) -> tuple[IdArray, LocalArray, IdArray]:
        """Return every end as a seed of its own, the pairs (P, 2), and each seed's time.

        The sources come first. A pair's ends are indices among the seeds of their types.

        Parameters
        ----------
        ends : each end belongs to one positive and its negatives
        times : (B,) the positives' times
        """
        sources, destinations = ends.sources + self.source_start, ends.destinations + self.destination_start
        pairs = np.empty((len(ends.owners), 2), dtype=np.int32)
        pairs[:, 0], pairs[:, 1] = ends.source_places, ends.destination_places
        if self.source_start == self.destination_start:  # with one type, the sources are the first seeds
            pairs[:, 1] += len(sources)
        owners = np.empty(len(sources) + len(destinations), dtype=np.int64)
        owners[ends.source_places] = owners[len(sources) + ends.destination_places] = ends.owners
        return np.concatenate([sources, destinations]), pairs, times[owners]

    @property
    def _starts(self) -> tuple[int, int]:
        """The numbers of the first node of the source type, and of the destination type."""
        return self.source_start, self.destination_start


def distinct(ids: IdArray, limit: int) -> tuple[IdArray, IdArray]:
    """Return the distinct ``ids``, ascending, and each entry's rank (n,). Pure.

    Parameters
    ----------
    ids : (n,) in 0..limit-1
    limit : at least 1
    """
    width = len(ids).bit_length()
    if limit.bit_length() + width > 63:  # an id and an index do not fit one int64 together
        nodes, inverse = np.unique(ids, return_inverse=True)
        return nodes, inverse.reshape(-1)
    # Sorting with positions in the lowest bits takes a fifth of an argsort's time.
    packed = (ids << width) | np.arange(len(ids))
    packed.sort()
    nodes, ranks = np.empty_like(packed), np.empty_like(packed)
    count = link_kernels.rank_packed(packed, width, nodes, ranks)
    return nodes[:count].copy(), ranks


MAX_ATTEMPTS: Final = 64  # draws for a strict negative; afterwards all allowed ends are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class _NegativeSlots:
    """The addresses of a batch's Q negatives, from which their draws are hashed."""

    key: np.uint64  # random key for the batch's negatives
    rows: IdArray  # (B,) the positives' rows in the link table
    owners: IdArray  # (Q,) the index of each negative's positive
    numbers: IdArray  # (Q,) each negative's number among its positive's negatives

    def draw(self, number: int, bound: int, places: IdArray, out: IdArray) -> None:
        """Write draw ``number``, below ``bound``, into ``out`` (Q,) for the negatives at ``places``."""
        with np.errstate(over="ignore"):  # interpreted hashes wrap around
            link_kernels.draw_ends(self.key, self.rows, self.owners, self.numbers, places, number, bound, out)


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeDraws:
    """Draws the negatives for a batch's positives. Pure and thread-safe.

    In attempt a, draw 2a of a negative is its destination, and draw 2a + 1 its source if sources are drawn, too. Only
    strict negatives have attempts above 0.
    """

    negatives: Negatives | None  # the kind of negatives; None draws no negatives
    graph: Topology | None  # the edges of the table's relation; None if the graph has no such relation
    num_ends: tuple[int, int]  # nodes of the source type and of the destination type
    relation: Relation  # the table's relation
    has_times: bool = False  # True if a source at another time is another seed
    # The table of negatives for `Table`; None means a column in the positives' table.
    given: LinkReader | None = None

    def most_pairs(self, num_positives: int) -> int:
        """Return the largest number of pairs for ``num_positives``, without negatives from the positives' table."""
        match self.negatives:
            case Uniform(k, shared=True):
                return num_positives + k
            case Uniform(k):
                return num_positives * (1 + k)
            case Binary():
                return num_positives + self.negatives.num_pairs(num_positives)
            case InBatch():
                return num_positives * num_positives
            case Table() if self.given is not None:
                return 2 * num_positives
        return num_positives

    @property
    def lookup_bytes(self) -> int:
        """Peak bytes that a lookup of strict negatives among the edges holds."""
        is_strict = isinstance(self.negatives, Uniform | Binary) and self.negatives.strict
        return lookup_bytes(self._edges) if is_strict else 0

    @property
    def _edges(self) -> Topology:
        """The edges that strict negatives are not."""
        assert self.graph is not None  # noqa: S101 - `LinkSeeds` refuses strict negatives without them
        return self.graph

    def pairs(self, key: np.uint64, rows: IdArray, found: LinkRows) -> PairEnds:
        """Return a batch's pairs.

        Parameters
        ----------
        key : random key for the batch's negatives
        rows : (B,) rows in the link table
        found : the content of these rows

        Raises
        ------
        ConfigError
            There are 2**31 or more pairs, or a strict negative does not exist.
        GraphError, StoreError
            See `are_edges`. Another cause: the table of negatives cannot be read.
        """
        positives, count = PairEnds.of(found), len(rows)
        match self.negatives:
            case None:
                return positives
            case Uniform(k, shared=True):
                self._require_room(count, k)
                return positives.with_shared(*self._shared(key, k))
            case Uniform(k, strict):
                self._require_room(count, count * k)
                owners, numbers = np.repeat(np.arange(count), k), np.tile(np.arange(k), count)
                slots = _NegativeSlots(key=key, rows=rows, owners=owners, numbers=numbers)
                _, destinations = self._drawn(slots, found.sources[owners], strict=strict)
                return positives.with_destinations(destinations, owners)
            case Binary(_, strict):
                num_pairs = self.negatives.num_pairs(count)
                self._require_room(count, num_pairs)
                numbers, owners = np.divmod(np.arange(num_pairs), max(count, 1))
                slots = _NegativeSlots(key=key, rows=rows, owners=owners, numbers=numbers)
                return positives.with_pairs(*self._drawn(slots, None, strict=strict), owners)
            case InBatch():
                self._require_room(count, count * (count - 1))
                return positives.crossed(found.times if self.has_times else None)
            case Table():
                return self._from_table(key, rows, found, positives)

    def _shared(self, key: np.uint64, k: int) -> tuple[IdArray, IdArray]:
        """Return k drawn sources and k drawn destinations; the same nodes if both have one type.

        Their address has the row -1, which no table has, so that they do not depend on the rows of the batch.
        """
        places = np.arange(k)
        no_row, owners = np.full(1, -1), np.zeros(k, dtype=np.int64)
        slots = _NegativeSlots(key=key, rows=no_row, owners=owners, numbers=places)
        destinations = np.empty(k, dtype=np.int64)
        slots.draw(0, self.num_ends[1], places, destinations)
        if self.relation[0] == self.relation[2]:
            return destinations, destinations
        sources = np.empty(k, dtype=np.int64)
        slots.draw(1, self.num_ends[0], places, sources)
        return sources, destinations

    def _drawn(
        self, slots: _NegativeSlots, sources: IdArray | None, *, strict: bool
    ) -> tuple[IdArray, IdArray]:
        """Return the negatives' sources (Q,), which are ``sources`` or drawn, and their drawn destinations (Q,).

        A strict negative that is an edge is drawn again, up to `MAX_ATTEMPTS` times.
        """
        count = len(slots.owners)
        ends = (
            (np.empty(count, dtype=np.int64) if sources is None else sources),
            np.empty(count, dtype=np.int64),
        )
        # A given source may be drawn as its own destination, which is no strict negative.
        without_self = sources is not None and self.relation[0] == self.relation[2]
        places = np.arange(count)  # the negatives that still need a draw
        for attempt in range(MAX_ATTEMPTS if strict else 1):
            slots.draw(2 * attempt, self.num_ends[1], places, ends[1])
            if sources is None:
                slots.draw(2 * attempt + 1, self.num_ends[0], places, ends[0])
            if not strict:
                return ends
            new_sources, new_destinations = ends[0][places], ends[1][places]
            is_wrong = are_edges(self._edges, new_sources, new_destinations)
            if without_self:
                is_wrong |= new_sources == new_destinations
            places = places[is_wrong]
            if len(places) == 0:
                return ends
        # Few ends are allowed for the remaining negatives: list them all, and draw among them. This is uniform, too.
        if sources is None:
            self._draw_free_pairs(slots, places, *ends)
        else:
            self._draw_free(slots, places, *ends, without_self=without_self)
        return ends

    def _draw_free(
        self,
        slots: _NegativeSlots,
        places: IdArray,
        sources: IdArray,
        destinations: IdArray,
        *,
        without_self: bool,
    ) -> None:
        """Draw the destinations of the negatives at ``places`` among all allowed destinations of their sources."""
        distinct_sources = np.unique(sources[places])
        for source, free in free_destinations(self._edges, distinct_sources, without_self=without_self):
            if len(free) == 0:
                self._refuse_source(source, without_self=without_self)
            of_source = places[sources[places] == source]
            slots.draw(2 * MAX_ATTEMPTS, len(free), of_source, destinations)
            destinations[of_source] = free[destinations[of_source]]

    def _draw_free_pairs(
        self, slots: _NegativeSlots, places: IdArray, sources: IdArray, destinations: IdArray
    ) -> None:
        """Draw the negatives at ``places`` among all pairs without an edge."""
        free = FreePairs.of(self._edges)
        if len(free) == 0:
            raise ConfigError(
                f"every pair of nodes is an edge of {':'.join(self.relation)}, so that no negative can be strict: "
                "pass strict=False"
            )
        slots.draw(2 * MAX_ATTEMPTS, len(free), places, destinations)
        sources[places], destinations[places] = free.at(destinations[places])

    def _refuse_source(self, source: int, *, without_self: bool) -> None:
        """Raise ConfigError for a ``source`` with an edge to every destination."""
        other = "other " if without_self else ""
        raise ConfigError(
            f"node {source} of type {self.relation[0]!r} has an edge of {':'.join(self.relation)} to every {other}node "
            f"of type {self.relation[2]!r}, so that none of its negatives can be strict: pass strict=False"
        )

    def _from_table(self, key: np.uint64, rows: IdArray, found: LinkRows, positives: PairEnds) -> PairEnds:
        """Return the pairs with negatives from a column of the positives' table, or drawn from a table of negatives."""
        if self.given is None:
            if found.negatives is None:
                raise ConfigError(without_negatives(self.relation))
            self._require_room(len(rows), found.negatives.size)
            destinations = found.negatives.astype(np.int64, copy=False).reshape(-1)
            owners = np.repeat(positives.owners, found.negatives.shape[1])
            return positives.with_destinations(destinations, owners)
        owners, drawn = positives.owners, np.empty(len(rows), dtype=np.int64)
        slots = _NegativeSlots(key=key, rows=rows, owners=owners, numbers=np.zeros_like(owners))
        slots.draw(0, self.given.num_rows, owners, drawn)
        given = self.given.read(drawn)
        return positives.with_pairs(given.sources, given.destinations, owners)

    def _require_room(self, num_positives: int, num_negatives: int) -> None:
        """Raise ConfigError if the batch would have too many seeds: a pair's two ends may be separate seeds."""
        if 2 * (num_positives + num_negatives) > MAX_LOCAL:
            raise ConfigError(
                f"a batch of {num_positives:,} edges with {self.negatives} has {num_negatives:,} negatives, and may "
                f"have {MAX_LOCAL // 2:,} pairs: lower batch_size or the number of negatives"
            )


def without_negatives(relation: Relation) -> str:
    """Return the message for a link table without a negatives column. Pure."""
    return f"the link table of {':'.join(relation)} has no negatives of its own; name another table, or pass Uniform(k)"
