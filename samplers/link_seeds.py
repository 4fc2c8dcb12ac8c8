"""The seeds of a batch of links: pairs with labels, and the edges that no hop may take."""

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
    """Finds the edges that a batch of links excludes. Pure and thread-safe. Made by `of_table`."""

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


# In place of the number of a hop in the key of a draw: far from any.
NEGATIVES_LAYER: Final = int.from_bytes(b"negative", "big")

_PAIR_BYTES: Final = 256  # ends, places, ranks and keys that are sorted, of a pair: 160 at most were measured


class LinkSeeds:
    """Makes the seeds of a batch from its rows of a link table. Pure and thread-safe.

    Randomness is addressed: a negative is a hash of (seed, epoch, batch index, row, its number beside the row,
    attempt). Strict negatives and ``duplicates`` read the lists of destinations from ``graph``, in memory or page by
    page. Strict ones are no edges of ``graph``: edges that are held out of it may be drawn, as OGB's uniform negatives
    may.

    Parameters
    ----------
    graph : the edges that messages are passed over, of one type or of several
    table : the edges that are predicted
    negatives : what is drawn beside them; None: nothing, and labels are the table's own
    exclude : the edges that no hop may take: "none", "self" the positives that are in the graph, "reverse" those and
        the edges that lead back
    duplicates : exclude with each of them all edges that have the same ends, whether it is in the graph itself or not
    seed : any integer; taken modulo 2**64
    has_times : the ends of a pair ask at the time of its row; else the seeds are the distinct ends
    negative_table : whose rows are the negatives of `Table`; None: the ``negatives`` of ``table`` itself

    Raises
    ------
    ConfigError
        The graph has no such relation, negatives would be of a type without nodes or of a table without rows, the table
        has no negatives, labels or times where they are asked for, or its relation has no reverse.
    GloaderError
        What reading a row of ``table`` raises.
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
        relation, reverse = table.relation, table.reverse_relation if exclude == "reverse" else None
        own = _number_of(graph, relation, "the link table is of")
        topologies = tuple(graph.relations.values()) if isinstance(graph, HeteroGraph) else (graph,)
        self._table, self._seed = table, checked_seed(seed)
        self._has_negatives, self._has_times = negatives is not None, has_times
        self._exclusion = LinkExclusion.of_table(
            topologies,
            (
                own,
                None
                if reverse is None
                else _number_of(graph, reverse, "edges of the link table are led back by"),
            ),
            relation=relation,
            exclude=exclude,
            duplicates=duplicates,
        )
        self._numbers = _end_numbers(graph, relation)
        # Of the two ways of `Table`, `given` says which.
        given = negative_table if isinstance(negatives, Table) else None
        self._draws = NegativeDraws(
            negatives=negatives,
            graph=topologies[own],
            relation=relation,
            has_times=has_times,
            given=given,
        )
        _check_drawn_types(negatives, topologies[own], relation)
        _check_given(given, relation)
        self._num_given = 0  # negatives that each row of the table brings
        if table.num_rows:  # the first row tells what every row has
            first = table.read(np.zeros(1, dtype=np.int64))
            self._check_columns(first)
            if isinstance(negatives, Table) and given is None and first.negatives is not None:
                self._num_given = first.negatives.shape[1]

    def call_bytes(self, num_rows: int) -> int:
        """Return about the peak memory of a call of `of` for ``num_rows`` rows, its result included."""
        num_pairs = self._draws.most_pairs(num_rows) + num_rows * self._num_given
        # The rows once more: what is excluded is looked up.
        return _PAIR_BYTES * (num_rows + num_pairs) + max(
            self._draws.lookup_bytes, self._exclusion.lookup_bytes
        )

    def of(self, batch_id: BatchId, rows: IdArray) -> BatchSeeds:
        """Return the seeds of the batch of ``rows`` (B,) of the table, in any order, with its pairs and labels.

        Pairs are the positives in the order of ``rows``, then the negatives. Without times the seeds are the distinct
        ends, ascending as all nodes are numbered through; with them the sources, then the destinations, each end
        for itself: a positive and the negatives that have its source share it.

        Raises
        ------
        ConfigError
            The batch has too many pairs, or a strict negative does not exist.
        GraphError, StoreError
            A list or a row cannot be read, or is damaged.
        """
        rows = np.array(
            rows, dtype=np.int64
        )  # of the caller's own kind of array, kernels would be compiled once more
        found = self._table.read(rows)
        key = layer_key(self._seed, batch_id.epoch, batch_id.index, NEGATIVES_LAYER)
        ends = self._draws.pairs(key, rows, found)
        times = None
        if self._has_times and found.times is not None:
            nodes, pairs, times = self._numbers.own_seeds(ends, found.times)
        else:
            nodes, pairs = self._numbers.distinct_seeds(ends)
        edge_ids = np.full(len(pairs), NO_EDGE, dtype=np.int64)
        edge_ids[: len(rows)] = rows
        links = Links(
            pairs=pairs,
            labels=self._labels(found, len(pairs)),
            edge_ids=edge_ids,
            num_positives=len(rows),
            times=found.times if times is not None else None,
        )
        return BatchSeeds(nodes=nodes, excluded=self._exclusion.of(found), times=times, links=links)

    def _labels(self, found: LinkRows, num_pairs: int) -> NDArray[Any]:
        """Return the labels (P,) of the pairs."""
        if not self._has_negatives and found.labels is not None:
            return np.array(found.labels)
        labels = np.zeros(num_pairs, dtype=np.float32)
        labels[: len(found.sources)] = 1
        return labels

    def _check_columns(self, found: LinkRows) -> None:
        """Raise ConfigError where the table lacks a column that batches need."""
        name = ":".join(self._table.relation)
        if not self._has_negatives and found.labels is None:
            raise ConfigError(
                f"the link table of {name} has no labels, and no negatives are drawn, so that every pair is right: "
                "pass negatives such as Uniform(1), or prepare it with labels"
            )
        if self._has_times and found.times is None:
            raise ConfigError(
                f"the link table of {name} has no times, which batches that ask at a time take from it: prepare it "
                "with --edge-time"
            )
        draws = self._draws
        if isinstance(draws.negatives, Table) and draws.given is None and found.negatives is None:
            raise ConfigError(without_negatives(self._table.relation))


def _number_of(graph: Topology | HeteroGraph, relation: Relation, what: str) -> int:
    """Return the number of ``relation`` in the graph; 0 for a graph of one type."""
    if not isinstance(graph, HeteroGraph):
        return 0
    if relation not in graph.relations:
        allowed = ", ".join(map(":".join, graph.relations))
        raise ConfigError(f"{what} {':'.join(relation)}, which the graph does not have; it has {allowed}")
    return list(graph.relations).index(relation)


def _end_numbers(graph: Topology | HeteroGraph, relation: Relation) -> EndNumbers:
    """Return where the numbers of the types of ``relation`` begin."""
    if not isinstance(graph, HeteroGraph):
        return EndNumbers(source_start=0, destination_start=0, num_nodes=graph.num_nodes)
    starts = dict(zip(graph.node_types, graph.type_starts.tolist(), strict=False))
    return EndNumbers(
        source_start=starts[relation[0]],
        destination_start=starts[relation[2]],
        num_nodes=int(graph.type_starts[-1]),
    )


def _check_drawn_types(negatives: Negatives | None, graph: Topology, relation: Relation) -> None:
    """Raise ConfigError where negatives would be drawn from a type without nodes."""
    counts = {2: graph.num_nodes} if isinstance(negatives, Uniform) else {}
    if isinstance(negatives, Binary):
        counts = {0: graph.num_sources, 2: graph.num_nodes}
    for end, count in counts.items():
        if count == 0:
            raise ConfigError(
                f"{negatives} draws negatives from an empty type: {relation[end]!r} of {':'.join(relation)} has no "
                "nodes"
            )


def _check_given(given: LinkReader | None, relation: Relation) -> None:
    """Raise ConfigError where the rows of a table of negatives can not stand beside edges of ``relation``."""
    if given is None:
        return
    if given.relation[::2] != relation[::2]:
        raise ConfigError(
            f"the table of negatives is of {':'.join(given.relation)}, where edges of {':'.join(relation)} are "
            f"predicted; it must lead from {relation[0]!r} to {relation[2]!r}"
        )
    if given.num_rows == 0:
        raise ConfigError(
            f"the table of negatives of {':'.join(given.relation)} is empty; name one with rows, or pass Uniform(k)"
        )
