"""The allowed in-edges of nodes in a batch: entire lists, or each list's part before a time.

A node's list is its in-edges; a position is an edge's index in the graph. If seeds have times, each seed grows its own
tree, so a node may be in several trees with different times. The batch then has *entries* in place of nodes: in a type
with N nodes, node v in the tree of seed t is the entry t * N + v. Lists are sorted by time, so an entry's allowed edges
are one range in a list, and samplers draw from a range as from a list.

A batch may also have excluded edges. Then draws are ranks among the remaining edges, and `pass_over` turns the ranks
into positions. `HopFrame` makes an `AllEdges` or an `EdgesBefore` for each relation of a batch (see `EdgeRanges`). The
latter searches the times with `TimeRule.narrow` and `rank_bounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from gloader.config import require_window
from gloader.core.ids import as_ids
from gloader.errors import ConfigError, SeedError
from gloader.samplers import exclusion_kernels, graph_errors, pick_kernels, time_kernels
from gloader.samplers.exclusion import degrees_without
from gloader.samplers.graph import HeldValues
from gloader.samplers.graph_errors import bad_time
from gloader.types import BatchSeeds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.config import TimeBound
    from gloader.core.offsets import Offsets
    from gloader.samplers.exclusion import Excluded
    from gloader.samplers.graph import EdgeValues, Topology
    from gloader.samplers.workspace import Picked, RelationSpace
    from gloader.types import AnySeeds, IdArray, LocalArray


MAX_ENTRY = 2**63 - 1  # entries are int64
# The number of times in two pages. A list up to this length is read entirely: a binary search would read a page for
# each page that it saves, and its reads would wait for each other. In a longer list each step reads a page and saves
# half of the rest.
_READ_WHOLE: Final = 1024
# Times per read, over many lists. The number bounds the memory, and gives the disk enough requests.
_AT_A_TIME: Final = 1 << 18
# Bytes per searched list, in addition to its times: ends, bound, neighbouring times and rank, and copies of them for
# the lists in one step of the search.
_LIST_BYTES: Final = 160
_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max  # the range of int64 times


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRule:
    """The rule for a node's edges, if the node is in the tree of a seed with time t.

    Edges before t are allowed, and with the bound "<=" also edges at time t. A window of w seconds allows only
    t - w <= time < t, or t - w < time <= t. Times are int64 and never rounded.

    Raises
    ------
    ConfigError
        A value is not allowed.
    """

    # Draw among the allowed edges, or take the latest ones in order.
    strategy: Literal["uniform", "last"] = "uniform"
    bound: TimeBound = "<"  # "<" or "<=": how an allowed edge's time compares with t
    window: int | None = None  # w, at least 1; None allows any earlier time
    replace: bool = False  # draw with replacement; only for "uniform"

    def __post_init__(self) -> None:
        """Check the values."""
        if self.strategy not in ("uniform", "last"):
            raise ConfigError(f"time_strategy is {self.strategy!r}; allowed: 'uniform', 'last'")
        if self.bound not in ("<", "<="):
            raise ConfigError(f"time_bound is {self.bound!r}; allowed: '<', '<='")
        require_window(self.window)
        if self.replace and self.strategy == "last":
            raise ConfigError(
                "time_strategy='last' takes the latest edges without draws, so replace=True has no meaning; use "
                "replace=False, or time_strategy='uniform'"
            )

    def narrow(self, times: EdgeValues, seed_times: IdArray, starts: IdArray, degrees: IdArray) -> None:
        """Narrow lists to their allowed ranges.

        Parameters
        ----------
        times : edge times
        seed_times : (D,) for each list, the time t of the seed
        starts, degrees : (D,) each list's first position and length; overwritten

        Raises
        ------
        GloaderError
            See `rank_bounds`.
        """
        is_inclusive = self.bound == "<="
        if self.window is None:
            degrees[:] = rank_bounds(times, starts, degrees, seed_times, is_inclusive=is_inclusive)
            return
        # The two ends of a range are adjacent queries, so that a page which they share is read once.
        bounds, counts = np.repeat(seed_times, 2), np.repeat(degrees, 2)
        bounds[::2] -= self.window
        # If t - w is below int64, the bound has wrapped around. An empty list then gives rank 0.
        counts[::2] *= seed_times >= _EARLIEST + self.window
        ranks = rank_bounds(times, np.repeat(starts, 2), counts, bounds, is_inclusive=is_inclusive)
        starts += ranks[::2]
        degrees[:] = ranks[1::2] - ranks[::2]


def rank_bounds(
    times: EdgeValues, starts: IdArray, counts: IdArray, bounds: IdArray, *, is_inclusive: bool
) -> IdArray:
    """Return the ranks (M,) int64: how many entries of each list of times are below the list's bound. Thread-safe.

    In memory this is a binary search. On the SSD a list of up to 1,024 times is read entirely, and a longer list is
    halved until it is that short: at most log2(d / 1024) + 3 pages for d edges.

    Parameters
    ----------
    times : all edges' times, ascending in each list
    starts, counts : (M,) int64, each list's first position and length
    bounds : (M,) int64 times
    is_inclusive : True if a time equal to the bound counts

    Raises
    ------
    GraphError
        A time on the SSD is below its predecessor in the list; the message names the position.
    GloaderError
        See `EdgeValues`.
    """
    if isinstance(times, HeldValues):
        ranks = np.empty(len(starts), dtype=np.int64)
        time_kernels.rank_bounds(times.array, starts, counts, bounds, is_inclusive, ranks)
        return ranks
    search = _Search(times, starts, counts, bounds, is_inclusive=is_inclusive)
    search.halve()
    return search.finish(starts)


def search_bytes(times: EdgeValues, *, num_lists: int, num_edges: int) -> int:
    """Return the peak bytes that `rank_bounds` holds for lists with ``num_edges`` edges in total. Pure."""
    ranks = 8 * num_lists
    if isinstance(times, HeldValues):
        return ranks
    read_bytes = max(times.list_bytes(min(num_edges, _AT_A_TIME)), times.fetch_bytes(num_lists))
    return ranks + _LIST_BYTES * num_lists + read_bytes


class _Search:
    """A binary search in many lists on the SSD. Each step reads one time of every long list, in one request.

    In each list the entries below the bound end at a position in ``left..right``, which each step narrows.
    """

    def __init__(
        self, times: EdgeValues, starts: IdArray, counts: IdArray, bounds: IdArray, *, is_inclusive: bool
    ) -> None:
        self._times = times
        self._left = starts.copy()
        self._right = starts + counts
        self._bounds = bounds
        self._is_inclusive = is_inclusive
        # The times before ``left`` and at ``right``. Every time that is read must lie between them, otherwise the list
        # is unsorted.
        self._floors = np.full(len(starts), _EARLIEST)
        self._ceilings = np.full(len(starts), _LATEST)

    def halve(self) -> None:
        """Read the middle times of long lists, until no list is long."""
        while len(wide := np.flatnonzero(self._right - self._left > _READ_WHOLE)):
            middle = (self._left[wide] + self._right[wide]) >> 1
            values, places = self._times.at(middle)
            middle_times, bounds = values[places], self._bounds[wide]
            wrong = (middle_times < self._floors[wide]) | (middle_times > self._ceilings[wide])
            if wrong.any():
                first = int(np.argmax(wrong))
                raise bad_time(int(middle[first]), int(middle_times[first]))
            is_before = middle_times <= bounds if self._is_inclusive else middle_times < bounds
            before, after = wide[is_before], wide[~is_before]
            self._left[before], self._floors[before] = middle[is_before] + 1, middle_times[is_before]
            self._right[after], self._ceilings[after] = middle[~is_before], middle_times[~is_before]

    def finish(self, starts: IdArray) -> IdArray:
        """Read the remaining parts of the lists; return each bound's rank in its list, which begins at ``starts``."""
        counts = self._right - self._left
        ends = np.cumsum(counts)
        ranks = np.empty(len(counts), dtype=np.int64)
        first = 0
        while first < len(counts):
            done = int(ends[first - 1]) if first else 0  # times that were read before
            # The slice has at least one list, because no remaining part is longer than a read.
            last = int(np.searchsorted(ends, done + _AT_A_TIME, side="right"))
            self._finish(slice(first, last), counts, ranks)
            first = last
        return ranks + self._left - starts

    def _finish(self, group: slice, counts: IdArray, ranks: IdArray) -> None:
        """Read the remaining parts of a group of lists, check their order, and write the bounds' ranks in them."""
        lists = self._times.lists(self._left[group], counts[group], 0, group.stop - group.start)
        parts = lists.values, lists.starts, counts[group]
        bad, rank = time_kernels.first_unsorted(*parts, self._floors[group], self._ceilings[group])
        if bad >= 0:
            value = int(lists.values[lists.starts[bad] + rank])
            raise bad_time(int(self._left[group][bad]) + rank, value)
        time_kernels.rank_bounds(*parts, self._bounds[group], self._is_inclusive, ranks[group])


def timed_seeds(seeds: AnySeeds) -> tuple[BatchSeeds, IdArray]:
    """Return ``seeds`` and each seed's time, (B,) int64 seconds. Pure.

    Raises
    ------
    SeedError
        Times are missing, differ in number from the seeds, or are not integers.
    """
    if not isinstance(seeds, BatchSeeds) or seeds.times is None:
        raise SeedError(
            "the seeds have no times, and this sampler takes the edges before the time of each seed"
        )
    kind = np.asarray(seeds.times).dtype
    if kind.kind == "f" and len(seeds.times):
        raise SeedError(
            f"times of seeds have dtype {kind}; they are int64 seconds, as floats round them (float32 rounds today's "
            "times to 128 s): pass the original integers"
        )
    times = as_ids(seeds.times, noun="times of seeds", error=SeedError)
    if len(times) != len(seeds.nodes):
        raise SeedError(f"{len(times)} times for {len(seeds.nodes)} seeds; pass one time for each seed")
    return seeds, times


def require_entries(num_trees: int, num_nodes: int) -> None:
    """Raise ConfigError if ``num_trees`` trees of up to ``num_nodes`` nodes need entries above int64. Pure."""
    if num_trees * num_nodes > MAX_ENTRY:
        raise ConfigError(
            f"{num_trees} seeds of a graph of {num_nodes:,} nodes have more pairs of a seed and a node than int64 can "
            "number; lower the batch size"
        )


class AllEdges:
    """Entire lists, without the excluded edges: an `EdgeRanges`.

    Parameters
    ----------
    graph : the topology
    excluded : edges that no hop takes; None allows all
    """

    __slots__ = ("_excluded", "_graph", "_num_to_come", "_offsets", "_places")

    def __init__(self, graph: Topology, excluded: Excluded | None) -> None:
        self._graph = graph
        # Kept here, because a graph may build its offsets at each access.
        self._offsets: Offsets | None = None
        self._excluded = excluded
        # ``places`` has the local ids of the nodes with excluded edges, -1 for nodes that the batch has not found yet.
        # ``num_to_come`` counts the nodes with excluded edges that were no destination yet.
        self._num_to_come = 0 if excluded is None else len(excluded.nodes)
        self._places: IdArray = np.full(self._num_to_come, -1, dtype=np.int64)

    def fetch(self, space: RelationSpace, first: int, last: int) -> None:
        """Write the lists of destinations ``first:last`` to ``space``.

        Raises
        ------
        GraphError
            A node's in-edges do not lie within the graph's edges.
        """
        graph = self._graph
        if self._offsets is None:
            self._offsets = graph.offsets
        bad = pick_kernels.fetch_degrees(
            self._offsets, graph.num_edges, space.nodes, first, last, space.starts, space.degrees
        )
        if bad >= 0:
            raise graph_errors.bad_degree(graph, int(space.nodes[bad]))
        if self._excluded is not None and self._num_to_come:
            space.places_of(self._excluded.nodes, self._places)
            self._num_to_come = exclusion_kernels.lower_degrees(
                self._excluded, self._places, first, last, space.degrees
            )

    def pass_over(self, _: RelationSpace, destinations: range, indptr: LocalArray, edge_ids: IdArray) -> None:
        """Turn picks among the remaining edges into positions.

        Parameters
        ----------
        destinations : index range among the batch's nodes
        indptr : (D + 1,) the index in ``edge_ids`` at which each destination begins
        edge_ids : (M,) picks as if no edge were excluded; overwritten by positions
        """
        if self._excluded is not None:
            first, last = destinations.start, destinations.stop
            exclusion_kernels.pass_over(self._excluded, self._places, first, last, indptr, edge_ids)

    def nodes(self, space: RelationSpace, destinations: range) -> IdArray:
        """Return the ids (D,) of ``destinations`` in the graph."""
        return space.nodes[destinations.start : destinations.stop]

    def sources(
        self, _space: RelationSpace, _destinations: range, picked: Picked
    ) -> tuple[NDArray[Any], IdArray]:
        """Return the sources of ``picked``: an array, and (M,) places in it."""
        return picked.sources_of(self._graph)

    def in_degrees(self, _: RelationSpace, nodes: IdArray) -> NDArray[np.float32] | None:
        """Return the remaining in-degree of each of ``nodes``; None if no edge is excluded."""
        return degrees_without(self._excluded, self._graph, nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgesBefore:
    """Each list's part before the time of the destination's tree: an `EdgeRanges` for entries."""

    graph: Topology  # if it has no times, all its edges are allowed
    rule: TimeRule
    seed_times: IdArray  # (B,) the time of each tree's seed
    excluded: IdArray  # (X,) ascending positions that no entry takes

    def fetch(self, space: RelationSpace, first: int, last: int) -> None:
        """Write the ranges of the entries ``first:last`` to ``space``.

        Raises
        ------
        GraphError
            A node's in-edges do not lie within the graph's edges, or are not sorted by time.
        """
        graph = self.graph
        trees, nodes = np.divmod(space.nodes[first:last], graph.num_nodes)
        starts, degrees = space.starts[first:last], space.degrees[first:last]
        bad = pick_kernels.fetch_degrees(
            graph.offsets, graph.num_edges, nodes, 0, len(nodes), starts, degrees
        )
        if bad >= 0:
            raise graph_errors.bad_degree(graph, int(nodes[bad]))
        if graph.times is not None:
            self.rule.narrow(graph.times, self.seed_times[trees], starts, degrees)
        if len(self.excluded):
            time_kernels.lower_degrees(self.excluded, starts, degrees)

    def pass_over(
        self, space: RelationSpace, destinations: range, indptr: LocalArray, edge_ids: IdArray
    ) -> None:
        """Turn picks among the remaining edges in a range into positions; parameters as in `AllEdges`."""
        if len(self.excluded):
            first, last = destinations.start, destinations.stop
            time_kernels.pass_over(self.excluded, space.starts, first, last, indptr, edge_ids)

    def nodes(self, space: RelationSpace, destinations: range) -> IdArray:
        """Return the node of each entry."""
        return space.nodes[destinations.start : destinations.stop] % self.graph.num_nodes

    def sources(
        self, space: RelationSpace, destinations: range, picked: Picked
    ) -> tuple[NDArray[Any], IdArray]:
        """Return each source's entry in its destination's tree: an array, and (M,) places in it.

        Raises
        ------
        GraphError
            A source is no node.
        """
        graph, (values, places) = self.graph, picked.sources_of(self.graph)
        entries = np.empty(len(places), dtype=np.int64)
        trees = (picked.indptr, space.nodes, destinations.start, graph.num_nodes, graph.num_sources)
        bad = time_kernels.enter_trees(values, places, *trees, entries)
        if bad >= 0:
            raise picked.bad_source(graph, self.nodes(space, destinations), bad, int(values[places[bad]]))
        return entries, np.arange(len(places), dtype=np.int64)

    def in_degrees(self, space: RelationSpace, nodes: IdArray) -> NDArray[np.float32]:
        """Return the size of each entry's range. Entries that draw nothing are included: a model may use them."""
        space.fetch(range(len(nodes)))
        return space.degrees[: len(nodes)].astype(np.float32)
