"""A link batch's seeds: the ends of pairs, with labels and excluded edges.

A link table holds the edges to predict, one per row. A batch takes some rows, its positives, and adds negatives: pairs
that are drawn, see `link_draws`. The ends of these pairs are the seeds. A hop must not take the edges that the batch
predicts; `LinkExclusion` finds these edges. A duplicate is another edge with the same ends. `LinkSeeds.of` makes a
batch's seeds before the batch is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np

from gloader.config import Exclude
from gloader.core.flag_values import require_choice
from gloader.core.negatives import Binary, Table, Uniform
from gloader.errors import ConfigError
from gloader.samplers.arguments import checked_seed
from gloader.samplers.edge_lookup import edges_between, lookup_bytes
from gloader.samplers.graph import HeteroGraph
from gloader.samplers.link_draws import EndNumbers, NegativeDraws, without_negatives
from gloader.samplers.rng import layer_key
from gloader.types import NO_EDGE, BatchSeeds, Links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.core.negatives import Negatives
    from gloader.samplers.graph import Topology
    from gloader.types import BatchId, IdArray, LinkReader, LinkRows, Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkExclusion:
    """Finds a link batch's excluded edges. Pure and thread-safe. Made by `of_table`."""

    topologies: Sequence[Topology]  # K topologies, by relation
    own: int | None  # number of the table's relation; None if no edge is excluded
    reverse: int | None  # number of the reverse relation; None if its edges are not excluded
    duplicates: bool  # True excludes all edges with the same ends as a positive

    @classmethod
    def of_table(
        cls,
        topologies: Sequence[Topology],
        numbers: tuple[int | None, int | None],
        *,
        relation: Relation,
        exclude: Exclude,
        duplicates: bool,
    ) -> LinkExclusion:
        """Return a link table's exclusion.

        Parameters
        ----------
        topologies : K topologies, by relation
        numbers : number of the table's relation, and number of its reverse. None for a relation that is not there
        relation : the table's relation, for messages
        exclude, duplicates : as in `LinkSeeds`

        Raises
        ------
        ConfigError
            The graph lacks the relation or its reverse, ``duplicates`` lacks exclusion, or ``exclude`` is an unknown
            word.
        """
        require_choice("exclude", exclude, get_args(Exclude))
        if duplicates and exclude == "none":
            raise ConfigError(
                "duplicates are excluded together with the edges themselves: pass exclude='self' or 'reverse' as well"
            )
        own, reverse = numbers
        if exclude != "none" and own is None:
            raise ConfigError(
                f"exclude={exclude!r}: the graph has no edges of {':'.join(relation)} to leave out; pass exclude='none'"
            )
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
        """Peak bytes that a lookup of duplicates holds; see the function `edge_lookup.lookup_bytes`."""
        if not self.duplicates:
            return 0
        numbers = [number for number in (self.own, self.reverse) if number is not None]
        return max(lookup_bytes(self.topologies[number]) for number in numbers)

    def of(self, found: LinkRows) -> tuple[IdArray, ...]:
        """Return the positions of the excluded edges: for each of the K relations (X,) positions, ascending.

        Returns () if the batch excludes no edge. A positive has the position -1 (`NO_EDGE`) if it is not in the graph,
        and the same holds for its reverse edge. Such a position excludes nothing. With `duplicates`, edges with the
        same ends are excluded even then.

        Parameters
        ----------
        found : a batch's positives

        Raises
        ------
        GraphError, StoreError
            See `edges_between`.
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
        if not any(map(len, (array for of_relation in parts for array in of_relation))):
            return ()
        # A relation may have no parts, and `np.concatenate` needs at least one array.
        empty = np.empty(0, dtype=np.int64)
        return tuple(np.unique(np.concatenate([empty, *of_relation])) for of_relation in parts)


# `layer_key` makes random keys by layer; a sampler's layers are its hops. Negatives have this number as their layer,
# which no hop has, so that they are drawn independently of the hops.
NEGATIVES_LAYER: Final = int.from_bytes(b"negative", "big")

_PAIR_BYTES: Final = 256  # per pair: ends, indices, ranks and sorted keys; at most 160 bytes were measured


class LinkSeeds:
    """Makes a batch's seeds from its rows in a link table. Pure and thread-safe.

    Draws do not depend on the order of calls: a negative is a hash of (seed, epoch, batch index, row, its number for
    the row, attempt). A strict negative is not an edge in ``graph``; it is drawn again, in the next attempt, if it is
    one. It may be a held-out edge, as in OGB's uniform negatives. Strict negatives and ``duplicates`` are looked up in
    their destinations' lists of in-edges in ``graph``, which may be on the SSD.

    Parameters
    ----------
    graph : the graph to sample from, with one node type or several
    table : the link table, with the edges to predict
    negatives : the kind of negatives; None draws no negatives, and labels come from the table
    exclude : edges that no hop may take: "none"; "self", the positives in the graph; "reverse", also their reverse
        edges
    duplicates : exclude also all edges with the same ends, even for positives that are not in the graph
    seed : any integer; taken modulo 2**64
    has_times : True makes each end of a pair a seed with the row's time. False makes each distinct end one seed,
        without a time
    negative_table : another link table, whose rows are the negatives; only used if ``negatives`` is a `Table`. None
        means that the link table has a column with negatives

    Raises
    ------
    ConfigError
        The graph lacks the reverse relation, or the relation of strict negatives or of excluded edges. Negatives come
        from a type without nodes or a table without rows. The table lacks the required negatives, labels or times.
    StoreError
        The first row of ``table`` cannot be read.
    """

    def __init__(
        self,
        graph: Topology | HeteroGraph,
        table: LinkReader,
        *,
        negatives: Negatives | None,
        exclude: Exclude = "none",
        duplicates: bool = False,
        seed: int = 0,
        has_times: bool = False,
        negative_table: LinkReader | None = None,
    ) -> None:
        typed, relation, reverse = HeteroGraph.of(graph), table.relation, None
        # A table may be of a relation that is only predicted, such as a purchase in the future.
        own = list(typed.relations).index(relation) if relation in typed.relations else None
        topologies = tuple(typed.relations.values())
        self._table, self._seed = table, checked_seed(seed)
        is_shared = isinstance(negatives, Uniform) and negatives.shared
        if is_shared and has_times:
            raise ConfigError(
                f"{negatives}: negatives that all edges of a batch share have no time, and each seed needs one; leave "
                "shared out, or sample without times"
            )
        # Shared negatives are in no pair, so that pairs keep the labels of the table.
        self._draws_pairs, self._has_times = negatives is not None and not is_shared, has_times
        self._has_negatives = negatives is not None
        if exclude == "reverse" and table.reverse_relation is not None:
            reverse = _number_of(typed, table.reverse_relation, "the reverse relation of the link table is")
        self._exclusion = LinkExclusion.of_table(
            topologies, (own, reverse), relation=relation, exclude=exclude, duplicates=duplicates
        )
        self._numbers = EndNumbers.of(typed, relation)
        # Negatives of the kind `Table` come from another link table, ``given``, or from a column of the link table.
        given = negative_table if isinstance(negatives, Table) else None
        num_ends = (typed.num_nodes[relation[0]], typed.num_nodes[relation[2]])
        if own is None and isinstance(negatives, Uniform | Binary) and negatives.strict:
            raise ConfigError(
                f"{negatives}: strict negatives are no edges of {':'.join(relation)}, and the graph has no such "
                "relation; leave strict out"
            )
        self._draws = NegativeDraws(
            negatives=negatives,
            graph=None if own is None else topologies[own],
            num_ends=num_ends,
            relation=relation,
            has_times=has_times,
            given=given,
        )
        _check_drawn_types(negatives, num_ends, relation)
        _check_given(given, relation)
        self._num_given = 0  # negatives per row in the column of ``table``
        if table.num_rows:  # all rows have the same columns
            first = table.read(np.zeros(1, dtype=np.int64))
            self._check_columns(first)
            if isinstance(negatives, Table) and given is None and first.negatives is not None:
                self._num_given = first.negatives.shape[1]

    def call_bytes(self, num_rows: int) -> int:
        """Return the approximate peak bytes that `of` holds for ``num_rows`` rows, with its result."""
        num_pairs = self._draws.most_pairs(num_rows) + num_rows * self._num_given
        # A row counts twice: as a pair, and in the lookup of excluded edges.
        return _PAIR_BYTES * (num_rows + num_pairs) + max(
            self._draws.lookup_bytes, self._exclusion.lookup_bytes
        )

    def of(self, batch_id: BatchId, rows: IdArray) -> BatchSeeds:
        """Return the seeds, pairs, labels and excluded edges for the table's ``rows`` (B,), in any order.

        Pairs are the positives in the order of ``rows``, then the negatives. Without times the seeds are the distinct
        ends, ascending in the numbering of all nodes. With times, equal nodes are separate seeds: first the sources,
        then the destinations, of all positives and of all drawn ends. A negative that keeps its positive's source has
        no source seed of its own: it shares the positive's seed.

        Raises
        ------
        ConfigError
            The batch has too many pairs. Strict negatives are required, but all possible pairs are edges.
        GraphError, StoreError
            A list or a row cannot be read, or is damaged.
        """
        # A new plain array: the kernels are compiled for this kind only.
        rows = np.array(rows, dtype=np.int64)
        found = self._table.read(rows)
        key = layer_key(self._seed, batch_id.epoch, batch_id.index, NEGATIVES_LAYER)
        ends = self._draws.pairs(key, rows, found)
        times = shared = None
        if self._has_times and found.times is not None:
            nodes, pairs, times = self._numbers.own_seeds(ends, found.times)
        else:
            nodes, pairs, shared = self._numbers.distinct_seeds(ends)
        edge_ids = np.full(len(pairs), NO_EDGE, dtype=np.int64)
        edge_ids[: len(rows)] = rows
        links = Links(
            pairs=pairs,
            labels=self._labels(found, len(pairs)),
            edge_ids=edge_ids,
            num_positives=len(rows),
            times=found.times if times is not None else None,
            shared=shared,
        )
        return BatchSeeds(nodes=nodes, excluded=self._exclusion.of(found), times=times, links=links)

    def _labels(self, found: LinkRows, num_pairs: int) -> NDArray[Any]:
        """Return the pairs' labels (P,): the table's labels, or with negatives 1 for positives and 0 for negatives."""
        if not self._draws_pairs and found.labels is not None:
            return np.array(found.labels)
        labels = np.zeros(num_pairs, dtype=np.float32)
        labels[: len(found.sources)] = 1
        return labels

    def _check_columns(self, found: LinkRows) -> None:
        """Raise ConfigError if the table lacks a required column."""
        name = ":".join(self._table.relation)
        if not self._has_negatives and found.labels is None:
            raise ConfigError(
                f"the link table of {name} has no labels, and no negatives are drawn, so that every pair is right: "
                "pass negatives such as Uniform(1), or prepare it with labels"
            )
        if self._has_times and found.times is None:
            raise ConfigError(
                f"the link table of {name} has no times, and sampling by time needs a time for each pair: prepare it "
                "with --edge-time"
            )
        draws = self._draws
        if isinstance(draws.negatives, Table) and draws.given is None and found.negatives is None:
            raise ConfigError(without_negatives(self._table.relation))


def _number_of(graph: HeteroGraph, relation: Relation, subject: str) -> int:
    """Return the relation's number in the graph; ``subject`` begins the error message if there is none."""
    if relation not in graph.relations:
        allowed = ", ".join(map(":".join, graph.relations))
        raise ConfigError(f"{subject} {':'.join(relation)}, which the graph does not have; it has {allowed}")
    return list(graph.relations).index(relation)


def _check_drawn_types(negatives: Negatives | None, num_ends: tuple[int, int], relation: Relation) -> None:
    """Raise ConfigError if negatives would be drawn from a type without nodes."""
    # Nodes of each drawn end. The keys are indices in ``relation``: 0 is the source type, 2 the destination type.
    counts = {2: num_ends[1]} if isinstance(negatives, Uniform) else {}
    if isinstance(negatives, Binary) or (isinstance(negatives, Uniform) and negatives.shared):
        counts = {0: num_ends[0], 2: num_ends[1]}
    for end, count in counts.items():
        if count == 0:
            raise ConfigError(
                f"{negatives} draws negatives from an empty type: {relation[end]!r} of {':'.join(relation)} has no "
                "nodes"
            )


def _check_given(given: LinkReader | None, relation: Relation) -> None:
    """Raise ConfigError if a table of negatives is empty, or has other node types than ``relation``."""
    if given is None:
        return
    if given.relation[::2] != relation[::2]:  # the source type and the destination type
        raise ConfigError(
            f"the table of negatives is of {':'.join(given.relation)}, where edges of {':'.join(relation)} are "
            f"predicted; it must lead from {relation[0]!r} to {relation[2]!r}"
        )
    if given.num_rows == 0:
        raise ConfigError(
            f"the table of negatives of {':'.join(given.relation)} is empty; name one with rows, or pass Uniform(k)"
        )
