"""The edges that no hop of a batch of links may take: those that it predicts, and those that lead back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from gloader.config import Exclude
from gloader.core.flag_values import require_choice
from gloader.errors import ConfigError
from gloader.samplers.edge_lookup import edges_between, lookup_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.samplers.graph import Topology
    from gloader.types import IdArray, LinkRows, Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkExclusion:
    """Finds what a batch of links excludes. Pure and thread-safe. Made by `of_table`."""

    topologies: Sequence[Topology]  # of the K relations
    own: int | None  # the table's relation, a position in them; None: nothing is excluded
    reverse: int | None  # the one whose edges lead back; None: they are not excluded
    duplicates: bool  # all edges that have the same ends

    @classmethod
    def of_table(
        cls,
        topologies: Sequence[Topology],
        numbers: tuple[int, int | None],
        *,
        relation: Relation,
        exclude: Exclude,
        duplicates: bool,
    ) -> LinkExclusion:
        """Return the exclusion of a link table.

        Parameters
        ----------
        topologies : of the K relations
        numbers : the table's relation and, where it has one, its reverse, as positions in them
        relation : the table's, for messages
        exclude, duplicates : as of `LinkSeeds`

        Raises
        ------
        ConfigError
            The relation has no reverse, nothing is excluded whose duplicates could be, or ``exclude`` is another word.
        """
        require_choice("exclude", exclude, get_args(Exclude))
        if duplicates and exclude == "none":
            raise ConfigError(
                "duplicates of edges are excluded with those that are: pass exclude='self' or 'reverse' beside it"
            )
        own, reverse = numbers
        if exclude == "reverse" and reverse is None:
            raise ConfigError(
                f"exclude='reverse': the relation {':'.join(relation)} has no reverse; "
                "prepare it with --add-reverse, or pass exclude='self'"
            )
        return cls(
            topologies=topologies,
            own=None if exclude == "none" else own,
            reverse=reverse if exclude == "reverse" else None,
            duplicates=duplicates,
        )

    @property
    def lookup_bytes(self) -> int:
        """Most memory that a lookup of duplicates takes at its peak."""
        if not self.duplicates:
            return 0
        numbers = [number for number in (self.own, self.reverse) if number is not None]
        return max(lookup_bytes(self.topologies[number]) for number in numbers)

    def of(self, found: LinkRows) -> tuple[IdArray, ...]:
        """Return the positions (X,) of each of the K relations, ascending; () where there is none of any.

        An edge that is not in the graph is absent already: it excludes nothing.

        Parameters
        ----------
        found : the positives of a batch

        Raises
        ------
        GraphError, StoreError
            As of `edges_between`.
        """
        parts: list[list[IdArray]] = [[] for _ in self.topologies]
        ends = found.sources, found.destinations
        for number, positions, pairs in (
            (self.own, found.positions, ends),
            (self.reverse, found.reverses, ends[::-1]),
        ):
            if number is not None:
                parts[number].append(positions[positions >= 0])
                if self.duplicates:
                    parts[number].append(edges_between(self.topologies[number], *pairs))
        if not any(map(len, (array for of_one in parts for array in of_one))):
            return ()
        none = np.empty(0, dtype=np.int64)
        return tuple(np.unique(np.concatenate([none, *of_one])) for of_one in parts)
