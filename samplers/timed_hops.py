"""A hop of seeds that ask at a time: which edges of a list each node may take, and which of them it takes.

A node of such a batch is an *entry*: a node in the tree of a seed, which is tree * N + node. Lists are sorted by time,
so that what an entry may take of one is a range of positions, and what it takes of that is picked as from a whole list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from gloader.config import require_window
from gloader.core.ids import as_ids
from gloader.errors import ConfigError, SeedError
from gloader.samplers import graph_errors, pick_kernels, time_kernels
from gloader.samplers.arguments import MAX_LOCAL
from gloader.samplers.hops import checked_total, taken_block
from gloader.samplers.time_search import rank_bounds
from gloader.types import BatchSeeds

if TYPE_CHECKING:
    from gloader.config import TimeBound
    from gloader.samplers.graph import EdgeValues, Topology
    from gloader.samplers.workspace import Workspace
    from gloader.types import AnySeeds, BatchId, Block, IdArray, Links, LocalArray

MAX_ENTRY = 2**63 - 1  # entries are int64
_EARLIEST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRule:
    """Which edges a node may take that is asked for at time t, and which of them it takes.

    Those before t; with the bound "<=" those of time t too. With a window of w seconds those of the w seconds up to the
    bound alone: t - w <= time < t, or t - w < time <= t. Times are int64; nothing is rounded.

    Raises
    ------
    ConfigError
        A value is not allowed.
    """

    strategy: Literal["uniform", "last"] = (
        "uniform"  # drawn among these edges, or the latest of them, in order
    )
    bound: TimeBound = "<"
    window: int | None = None  # w, at least 1; None: edges may lie any time back
    replace: bool = False  # draw with replacement; for "uniform" alone

    def __post_init__(self) -> None:
        """Check the values."""
        if self.strategy not in ("uniform", "last"):
            raise ConfigError(f"time_strategy is {self.strategy!r}; allowed: 'uniform', 'last'")
        if self.bound not in ("<", "<="):
            raise ConfigError(f"time_bound is {self.bound!r}; allowed: '<', '<='")
        require_window(self.window)
        if self.replace and self.strategy == "last":
            raise ConfigError(
                "time_strategy='last' takes the latest edges and draws none, so that there is nothing to replace; use "
                "replace=False, or time_strategy='uniform'"
            )

    def narrow(self, times: EdgeValues, asked: IdArray, starts: IdArray, degrees: IdArray) -> None:
        """Make whole lists the ranges that may be taken.

        Parameters
        ----------
        times : of the edges
        asked : (D,) the time that is asked at of each list
        starts, degrees : (D,) of whole lists; written

        Raises
        ------
        GloaderError
            As of `rank_bounds`.
        """
        is_inclusive = self.bound == "<="
        if self.window is None:
            degrees[:] = rank_bounds(times, starts, degrees, asked, is_inclusive=is_inclusive)
            return
        # Both ends of a range side by side, so that what they share of a page is read once.
        bounds, counts = np.repeat(asked, 2), np.repeat(degrees, 2)
        bounds[::2] -= self.window
        counts[::2] *= (
            asked >= _EARLIEST + self.window
        )  # else it begins before all times, and its bound has wrapped
        ranks = rank_bounds(times, np.repeat(starts, 2), counts, bounds, is_inclusive=is_inclusive)
        starts += ranks[::2]
        degrees[:] = ranks[1::2] - ranks[::2]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedHops:
    """The hops of a relation, for entries of trees that ask at a time. Thread-safe.

    Parameters
    ----------
    graph : the topology; one without times gives all its edges at any time
    fanouts : hop next to the seeds first
    rule : which edges are taken
    """

    graph: Topology
    fanouts: tuple[int, ...]
    rule: TimeRule

    def fetch(self, work: Workspace, destinations: range, asked: IdArray, excluded: IdArray) -> None:
        """Write the range of edges that each of ``destinations`` may take.

        Parameters
        ----------
        work : the batch so far, of entries; ``starts`` and ``degrees`` of ``destinations`` are written, but for those
            that an earlier hop fetched: the edges that an entry may take, without the excluded ones
        destinations : positions in ``work.nodes``
        asked : (B,) the time of each tree
        excluded : (X,) ascending positions that nobody takes

        Raises
        ------
        GraphError
            The in-edges of a node do not lie within the graph's, or are not sorted by time.
        """
        first, last = max(work.fetched, destinations.start), destinations.stop
        if first >= last:
            return
        graph = self.graph
        work.reserve_degrees(last)
        trees, nodes = np.divmod(work.nodes[first:last], graph.num_nodes)
        starts, degrees = work.starts[first:last], work.degrees[first:last]
        bad = pick_kernels.fetch_degrees(
            graph.offsets, graph.num_edges, nodes, 0, len(nodes), starts, degrees
        )
        if bad >= 0:
            raise graph_errors.bad_degree(graph, int(nodes[bad]))
        if graph.times is not None:
            self.rule.narrow(graph.times, asked[trees], starts, degrees)
        if len(excluded):
            time_kernels.lower_degrees(excluded, starts, degrees)
        work.fetched = last

    def sample_hop(
        self,
        work: Workspace,
        batch_id: BatchId,
        hop: int,
        destinations: range,
        key: np.uint64,
        excluded: IdArray,
    ) -> Block:
        """Sample one hop of a batch; what it finds joins ``work.sources``, in the trees of those that found it.

        Parameters
        ----------
        work : the batch so far, with the ranges of ``destinations``
        batch_id, hop : the address
        destinations : positions in ``work.nodes``
        key : of the draws, which are hashed with it and the entry
        excluded : as of `fetch`

        Raises
        ------
        ConfigError
            The hop would have 2**31 edges or more, or the batch as many entries.
        GraphError
            A source is no node.
        """
        graph, fanout, rule = self.graph, self.fanouts[hop], self.rule
        first, last = destinations.start, destinations.stop
        indptr = np.empty(len(destinations) + 1, dtype=np.int32)
        num_edges = int(
            pick_kernels.count_uniform(work.degrees, first, last, fanout, rule.replace, MAX_LOCAL, indptr)
        )
        is_too_many = work.sources.count + num_edges > MAX_LOCAL
        checked_total(-1 if is_too_many else num_edges, hop, batch_id, self.fanouts)
        # An array of the batch's own, written in place: it is handed out, and ``work`` goes to another call.
        picked = np.empty(num_edges + pick_kernels.SLACK, dtype=np.int64)
        rows = (work.starts, work.degrees, first, last)
        if fanout == 0:
            pass
        elif rule.strategy == "last":
            time_kernels.pick_last(*rows, indptr, picked)
        elif rule.replace:
            pick_kernels.pick_with_replacement(work.nodes, *rows, fanout < 0, key, indptr, picked)
        else:
            pick_kernels.pick_uniform(work.nodes, *rows, key, indptr, picked, work.scratch.bits)
        edge_ids = picked[:num_edges]
        if len(excluded):
            time_kernels.pass_over(excluded, work.starts, first, last, indptr, edge_ids)
        sources = self._entries(work, destinations, indptr, edge_ids)
        places = np.arange(num_edges, dtype=np.int64)
        return taken_block(graph, work, destinations, indptr, edge_ids, sources=(sources, places))

    def _entries(
        self, work: Workspace, destinations: range, indptr: LocalArray, edge_ids: IdArray
    ) -> IdArray:
        """Return the entry of the source of each edge."""
        graph, first = self.graph, destinations.start
        values, places = graph.sources.at(edge_ids)
        entries = np.empty(len(edge_ids), dtype=np.int64)
        bad = time_kernels.enter_trees(
            values, places, indptr, work.nodes, first, graph.num_nodes, graph.num_sources, entries
        )
        if bad >= 0:
            nodes = work.nodes[first : destinations.stop] % graph.num_nodes
            source = int(values[places[bad]])
            raise graph_errors.bad_neighbor(graph, nodes, indptr, edge_ids, bad, source=source)
        return entries


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSeeds:
    """Seeds that ask at a time, which was checked."""

    nodes: IdArray  # (B,) as they were given
    times: IdArray  # (B,) int64 seconds
    excluded: tuple[IdArray, ...]  # as of `BatchSeeds`
    links: Links | None


def timed_seeds(seeds: AnySeeds) -> TimedSeeds:
    """Return ``seeds`` after a look at their times. Pure.

    Raises
    ------
    SeedError
        They have no times, or not one each, or these are no integers.
    """
    if not isinstance(seeds, BatchSeeds) or seeds.times is None:
        raise SeedError(
            "the seeds have no times, and this sampler takes the edges before the time of each seed"
        )
    kind = np.asarray(seeds.times).dtype
    if kind.kind == "f" and len(seeds.times):
        raise SeedError(
            f"times of seeds have dtype {kind}; they are int64 seconds, as floats round them (float32 those of our "
            "days to 128 s)"
        )
    times = as_ids(seeds.times, noun="times of seeds", error=SeedError)
    if len(times) != len(seeds.nodes):
        raise SeedError(
            f"{len(times)} times for {len(seeds.nodes)} seeds; each seed asks at a time of its own"
        )
    return TimedSeeds(nodes=seeds.nodes, times=times, excluded=seeds.excluded, links=seeds.links)


def require_entries(num_trees: int, num_nodes: int) -> None:
    """Raise ConfigError where ``num_trees`` trees of a type of ``num_nodes`` nodes have entries beyond int64. Pure."""
    if num_trees * num_nodes > MAX_ENTRY:
        raise ConfigError(
            f"{num_trees} seeds of a graph of {num_nodes:,} nodes have more pairs of a seed and a node than int64 can "
            "number; lower the batch size"
        )
