"""The ends of a batch's pairs, those of its edges and of its negatives, and the seeds that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.samplers import link_kernels

if TYPE_CHECKING:
    from gloader.types import IdArray, LinkRows, LocalArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEnds:
    """The pairs of a batch: each is a place in ``sources`` and one in ``destinations``. Positives come first."""

    sources: IdArray  # (S,) ids within the source type, repeats allowed
    destinations: IdArray  # (D,) ids within the destination type, likewise
    source_places: IdArray  # (P,)
    destination_places: IdArray  # (P,)
    owners: IdArray  # (P,) the positive that each pair is, or is beside: it asks at its time

    @classmethod
    def of(cls, found: LinkRows) -> PairEnds:
        """Return the positives ``found`` (B,) alone."""
        places = np.arange(len(found.sources))
        return cls(
            sources=found.sources,
            destinations=found.destinations,
            source_places=places,
            destination_places=places,
            owners=places,
        )

    def with_destinations(self, destinations: IdArray, owners: IdArray) -> PairEnds:
        """Return the positives and pairs of the sources of ``owners`` (Q,) and ``destinations`` (Q,)."""
        return PairEnds(
            sources=self.sources,
            destinations=np.concatenate([self.destinations, destinations]),
            source_places=np.concatenate([self.source_places, owners]),
            destination_places=np.arange(len(self.owners) + len(owners)),
            owners=np.concatenate([self.owners, owners]),
        )

    def with_pairs(self, sources: IdArray, destinations: IdArray, owners: IdArray) -> PairEnds:
        """Return the positives and pairs of ``sources`` (Q,) and ``destinations`` (Q,), beside ``owners`` (Q,)."""
        places = np.arange(len(self.owners) + len(owners))
        return PairEnds(
            sources=np.concatenate([self.sources, sources]),
            destinations=np.concatenate([self.destinations, destinations]),
            source_places=places,
            destination_places=places,
            owners=np.concatenate([self.owners, owners]),
        )

    def crossed(self, times: IdArray | None) -> PairEnds:
        """Return the positives and, for each, its source with the destinations of the others, in their order.

        No pair is there twice, nor as a negative one that is a positive of the batch: what a source has as negatives
        comes with the first positive that has it, or with ``times`` (B,) with the first that has it at its time.
        """
        source_firsts, source_ranks = _first_seen(self.sources)
        destination_firsts, destination_ranks = _first_seen(self.destinations)
        is_positive = np.zeros((len(source_firsts), len(destination_firsts)), dtype=np.bool_)
        is_positive[source_ranks, destination_ranks] = True
        firsts = source_firsts
        if times is not None:
            _, firsts = np.unique(np.stack([self.sources, times], axis=1), axis=0, return_index=True)
            firsts.sort()
        owners, wrong = np.nonzero(~is_positive[source_ranks[firsts]])
        beside, others = firsts[owners], destination_firsts[wrong]
        if times is not None:  # each is asked at the time of its owner
            return self.with_destinations(self.destinations[others], beside)
        return PairEnds(
            sources=self.sources,
            destinations=self.destinations,
            source_places=np.concatenate([self.source_places, beside]),
            destination_places=np.concatenate([self.destination_places, others]),
            owners=np.concatenate([self.owners, beside]),
        )


def _first_seen(values: IdArray) -> tuple[IdArray, IdArray]:
    """Return where each distinct value is first seen, ascending, and the rank (n,) of every value among them. Pure."""
    _, firsts, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return firsts[order], ranks[inverse.reshape(-1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndNumbers:
    """The numbers of the ends' types, where all nodes are numbered through: makes seeds of the ends of pairs."""

    source_start: int  # number of the first node of the source type
    destination_start: int
    num_nodes: int  # of all types

    def distinct_seeds(self, ends: PairEnds) -> tuple[IdArray, LocalArray]:
        """Return the distinct ends, ascending by their numbers, and the pairs (P, 2) as positions of their types."""
        numbers = np.concatenate(
            [ends.sources + self.source_start, ends.destinations + self.destination_start]
        )
        nodes, ranks = distinct(numbers, self.num_nodes)
        places = (ends.source_places, len(ends.sources) + ends.destination_places)
        pairs = np.empty((len(ends.owners), 2), dtype=np.int32)
        for end, (place, start) in enumerate(zip(places, self._starts, strict=True)):
            # Seeds of types before it come first.
            pairs[:, end] = ranks[place] - np.searchsorted(nodes, start)
        return nodes, pairs

    def own_seeds(self, ends: PairEnds, times: IdArray) -> tuple[IdArray, LocalArray, IdArray]:
        """Return all ends, sources first, each for itself, the pairs (P, 2) likewise, and when each end asks.

        Parameters
        ----------
        ends : each of them of one positive and the negatives beside it
        times : (B,) of the positives
        """
        sources, destinations = ends.sources + self.source_start, ends.destinations + self.destination_start
        pairs = np.empty((len(ends.owners), 2), dtype=np.int32)
        pairs[:, 0], pairs[:, 1] = ends.source_places, ends.destination_places
        if self.source_start == self.destination_start:  # of one type, whose seeds the sources are, too
            pairs[:, 1] += len(sources)
        owners = np.empty(len(sources) + len(destinations), dtype=np.int64)
        owners[ends.source_places] = owners[len(sources) + ends.destination_places] = ends.owners
        return np.concatenate([sources, destinations]), pairs, times[owners]

    @property
    def _starts(self) -> tuple[int, int]:
        return self.source_start, self.destination_start


def distinct(ids: IdArray, limit: int) -> tuple[IdArray, IdArray]:
    """Return the distinct ``ids``, ascending, and the rank (n,) of each of them. Pure.

    Parameters
    ----------
    ids : (n,) in 0..limit-1
    limit : at least 1
    """
    width = len(ids).bit_length()
    if limit.bit_length() + width > 63:
        nodes, inverse = np.unique(ids, return_inverse=True)
        return nodes, inverse.reshape(-1)
    # Sorted with their positions in the lowest bits: a fifth of the time of a sort that says where each came from.
    packed = (ids << width) | np.arange(len(ids))
    packed.sort()
    nodes, ranks = np.empty_like(packed), np.empty_like(packed)
    count = link_kernels.rank_packed(packed, width, nodes, ranks)
    return nodes[:count].copy(), ranks
