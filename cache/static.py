"""Static caches, which hold the same rows for a whole run: hot sets, inclusion probabilities, device plans.

A row is one node's features. A slot is a row's place in the cache, and a slot map gives each node's slot. The hot set
is the rows worth caching: those with the largest scores. A node's score is one of three numbers: its degree, its
accesses in presampled batches, or its inclusion probability. Batches are presampled before the run to count accesses.
The inclusion probability is a node's chance to be in a batch; it follows from the graph only.

A loader calls these functions when it opens. Scores come from `access_counts` or `inclusion_by_type`.
`automatic_bytes` gives the cache's memory. With several node types, `divide_device_bytes` divides it among their
feature tables, so that the fewest bytes cross the link from the host. `plan_device_cache` lists the rows that the GPU
holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache.trace import NO_ROWS
from gloader.core.kernels import njit
from gloader.core.offsets import Offsets, degrees_between, offset_at
from gloader.errors import ConfigError, PlanError
from gloader.types import CacheStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from gloader.config import DeviceHotness
    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def _count_occurrences(ids: NDArray[np.integer], counts: IdArray) -> None:
    """Add the number of occurrences of each id to ``counts`` (N,)."""
    for i in range(ids.shape[0]):
        counts[ids[i]] += 1


def hottest_by_degree(degrees: IdArray, num_rows: int) -> IdArray:
    """Return the ``num_rows`` nodes with the largest out-degree (PaGraph, SoCC'20, section 4.2), ascending. Pure.

    A node that is many nodes' in-neighbour is sampled often. Nodes without an out-edge are left out, even if the result
    is then shorter. If degrees are equal, the smaller id goes first.

    Parameters
    ----------
    degrees : (N,) int64 out-degrees
    num_rows : maximum number of nodes to return

    Returns
    -------
    (min(num_rows, nodes with an out-edge),) int64
    """
    return np.sort(hottest_first(degrees, num_rows))


def hottest_first(scores: NDArray[np.integer] | NDArray[np.floating], num_rows: int | None = None) -> IdArray:
    """Return at most ``num_rows`` nodes with the largest scores above zero, hottest first. Pure.

    ``scores`` is (N,). If ``num_rows`` is None, all nodes with a score above zero are returned. If scores are equal,
    the smaller id goes first. Scores are out-degrees (PaGraph), presampled access counts (GNNLab, EuroSys'22,
    section 6.3) or inclusion probabilities (SALIENT++, MLSys'23).
    """
    candidates = np.flatnonzero(scores > 0)
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order if num_rows is None else order[: max(num_rows, 0)]]


def access_counts(accesses: Iterable[NDArray[np.integer]], num_nodes: int) -> IdArray:
    """Count each node's occurrences in ``accesses``, in O(N) memory. Pure.

    Parameters
    ----------
    accesses : arrays of int32 or int64 ids in 0..num_nodes-1: the batches of a presampled trace, or the sources of all
        edges, cut into several arrays, which gives out-degrees
    num_nodes : N, the number of nodes

    Returns
    -------
    (N,) int64
    """
    counts = np.zeros(num_nodes, dtype=np.int64)
    for nodes in accesses:
        _count_occurrences(np.ascontiguousarray(nodes), counts)
    return counts


class SlotMap:
    """The nodes in a static cache: slot i holds the row of ``cached[i]``. Thread-safe.

    Costs 4 bytes per node.

    Parameters
    ----------
    num_nodes : N, the number of nodes
    cached : (C,) unique node ids

    Raises
    ------
    PlanError
        A cached id is out of range or repeats.
    """

    def __init__(self, num_nodes: int, cached: IdArray) -> None:
        if len(cached) and (cached.min() < 0 or cached.max() >= num_nodes):
            raise PlanError(f"cached ids must be in 0..{num_nodes - 1}, got {cached.min()}..{cached.max()}")
        self._slot_of = np.full(num_nodes, -1, dtype=np.int32)
        self._slot_of[cached] = np.arange(len(cached), dtype=np.int32)
        if np.count_nonzero(self._slot_of >= 0) != len(cached):
            raise PlanError("a node has two slots: cached ids must not repeat")
        self._cached = cached

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes."""
        return len(self._slot_of)

    @property
    def slot_of(self) -> NDArray[np.int32]:
        """(N,) each node's slot, -1 without a slot."""
        return self._slot_of

    def look_up(self, nodes: NDArray[np.integer], slots: NDArray[np.int32]) -> None:
        """Write the slots of ``nodes`` (U,) to ``slots`` (U,), with -1 for nodes without a slot. Checks no ids."""
        np.take(self._slot_of, nodes, out=slots, mode="clip")  # this mode writes without a buffer

    def split(self, nodes: IdArray) -> CacheStep:
        """Return the step for ``nodes`` (U,): the positions and slots of hits, and the positions and ids of misses.

        Raises
        ------
        PlanError
            A hit's slot does not hold its node.
        """
        n = len(nodes)
        hit_pos, hit_slot, miss_pos, miss_row = np.empty((4, n), dtype=np.int64)
        hits = _split(nodes, self._slot_of, hit_pos, hit_slot, miss_pos, miss_row)
        step = CacheStep(
            hit_pos=hit_pos[:hits],
            hit_slot=hit_slot[:hits],
            miss_pos=miss_pos[: n - hits],
            miss_row=miss_row[: n - hits],
            admit_pos=NO_ROWS,
            admit_slot=NO_ROWS,
        )
        # The map and the list of cached ids are two arrays. A hit is accepted only if they agree.
        if not np.array_equal(self._cached[step.hit_slot], nodes[step.hit_pos]):
            raise PlanError("a hit's slot holds another node: the slot map is corrupted")
        return step


@njit(cache=True, nogil=True)
def _split(
    nodes: NDArray[np.int64],
    slot_of: NDArray[np.int32],
    hit_pos: NDArray[np.int64],
    hit_slot: NDArray[np.int64],
    miss_pos: NDArray[np.int64],
    miss_row: NDArray[np.int64],
) -> int:
    """Write the positions and slots of hits, and the positions and nodes of misses; return the number of hits."""
    hits = 0
    misses = 0
    for position in range(nodes.shape[0]):
        slot = slot_of[nodes[position]]
        if slot >= 0:
            hit_pos[hits] = position
            hit_slot[hits] = slot
            hits += 1
        else:
            miss_pos[misses] = position
            miss_row[misses] = nodes[position]
            misses += 1
    return hits


_TINY: Final = 1e-300  # stands for the probability zero, which has no logarithm
# For `_reach`, this empty array of in-degrees stands for each node's in-degree in the relation itself.
_RELATION_DEGREES: Final = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationEdges:
    """A relation's edges, with each hop's fan-out."""

    source: int  # number of the source type
    destination: int  # number of the destination type
    offsets: Offsets  # (destinations + 1,) the first edge of each destination
    # Returns the sources of all edges, in edge order, cut into several arrays ("pieces"). Called once per hop.
    pieces: Callable[[], Iterable[NDArray[np.integer]]]
    fanouts: Sequence[int]  # the hop next to the seeds first; -1 takes all neighbours


def inclusion_probabilities(
    offsets: Offsets,
    pieces: Callable[[], Iterable[NDArray[np.integer]]],
    *,
    seeds: IdArray,
    batch_size: int,
    fanouts: Sequence[int],
) -> NDArray[np.float64]:
    """Return each node's probability to be in a batch, from the graph only. O(E L). Pure.

    Vertex inclusion probability analysis (Kaler et al., "SALIENT++", MLSys'23, section 4): if u is in the batch, each
    in-neighbour is drawn by u with probability min(1, fan-out / in-degree(u)). The draws are treated as independent. As
    in `NeighborSampler.sample`, every node in the batch so far samples again in each hop.

    Parameters
    ----------
    offsets : (N + 1,) the first in-edge of each node
    pieces : returns the sources of all E edges, in edge order, cut into several arrays; called once per hop
    seeds : (n,) the seeds' distinct ids
    batch_size : B, seeds per batch
    fanouts : the hop next to the seeds first; -1 takes all neighbours

    Returns
    -------
    (N,) float64 in [0, 1]
    """
    edges = RelationEdges(source=0, destination=0, offsets=offsets, pieces=pieces, fanouts=fanouts)
    (probabilities,) = inclusion_by_type(
        [len(offsets.low) - 1], [edges], seeds=[seeds], batch_size=batch_size
    )
    return probabilities


def inclusion_by_type(
    num_nodes: Sequence[int],
    relations: Sequence[RelationEdges],
    *,
    seeds: Sequence[IdArray],
    batch_size: int,
    is_collective: bool = False,
) -> tuple[NDArray[np.float64], ...]:
    """Return each node's probability to be in a batch, for several types, like `inclusion_probabilities`. Pure.

    Parameters
    ----------
    num_nodes : N of each node type
    relations : the edges of each relation (edge type)
    seeds : for each type, the seeds' distinct ids (n,)
    batch_size : B, seeds per batch over all types
    is_collective : True if a node draws its fan-out from the in-edges of all relations together, False if from each
        relation separately

    Returns
    -------
    (N,) float64 in [0, 1] for each type
    """
    # The probability of each node not to be in the batch, by type.
    absent = [np.ones(count, dtype=np.float64) for count in num_nodes]
    for of_type, ids in zip(absent, seeds, strict=True):
        of_type[ids] = 1 - min(batch_size / max(sum(map(len, seeds)), 1), 1.0)
    degrees = _degrees_of_all(num_nodes, relations) if is_collective else [_RELATION_DEGREES] * len(num_nodes)
    for hop in range(max((len(edges.fanouts) for edges in relations), default=0)):
        # A node is absent if no out-edge draws it. The probability of absence is a product over the out-edges, computed
        # as a sum of logarithms.
        logarithms = [np.log(np.maximum(of_type, _TINY)) for of_type in absent]
        for edges in relations:
            node = first = 0  # the destination and the number of the next piece's first edge
            for piece in edges.pieces():
                node = _reach(
                    edges.offsets,
                    piece,
                    first,
                    node,
                    edges.fanouts[hop],
                    degrees[edges.destination],
                    absent[edges.destination],
                    logarithms[edges.source],
                )
                first += len(piece)
        absent = [np.exp(of_type) for of_type in logarithms]
    return tuple(1 - of_type for of_type in absent)


def _degrees_of_all(num_nodes: Sequence[int], relations: Sequence[RelationEdges]) -> list[IdArray]:
    """Return each type's in-degrees (N,), over all relations."""
    degrees = [np.zeros(count, dtype=np.int64) for count in num_nodes]
    for edges in relations:
        degrees[edges.destination] += degrees_between(edges.offsets, 0, num_nodes[edges.destination])
    return degrees


@njit(cache=True, nogil=True)
def _reach(
    offsets: Offsets,
    piece: NDArray[np.integer],
    first: int,
    node: int,
    fanout: int,
    degrees: IdArray,
    absent: NDArray[np.float64],
    log_absent: NDArray[np.float64],
) -> int:
    """Lower each source's absence probability by one hop's draws along the edges in ``piece``.

    A source is absent if it is not in the batch.

    Parameters
    ----------
    offsets : the first edge of each destination
    piece : sources of consecutive edges
    first : number of the piece's first edge
    node : the destination of that edge
    fanout : the hop's fan-out; -1 takes all edges
    degrees : (N,) number of edges that each destination draws from; empty means its edges in this relation
    absent : (N,) each destination's absence probability before the hop
    log_absent : each source's logarithm of the absence probability; changed

    Returns
    -------
    int
        The destination at which the next piece begins.
    """
    last = first + piece.shape[0]
    while node < offsets.low.shape[0] - 1:
        begin, end = offset_at(offsets, node), offset_at(offsets, node + 1)
        degree = end - begin if degrees.shape[0] == 0 else degrees[node]
        if degree > 0 and fanout != 0 and absent[node] < 1.0:
            share = 1.0 if fanout < 0 else min(1.0, fanout / degree)
            drawn = share * (1.0 - absent[node])
            missed = np.log(max(1.0 - drawn, _TINY))
            for edge in range(max(begin, first), min(end, last)):
                log_absent[piece[edge - first]] += missed
        # The rest of this node's edges is in the next piece.
        if end > last:
            break
        node += 1
    return node


_MAP_BYTES: Final = 4  # bytes of a node's int32 entry in the slot map
_SCALE_BYTES: Final = 4  # bytes of the float32 factor of an int8 row
_STEP_MARGIN: Final = 1.2  # factor on the measured step's bytes, because later batches may be larger
# The cache's share of the free memory without a trial step. It is a guess that leaves the other half to the model.
_UNTRIED_SHARE: Final = 0.5
_SLACK_BYTES: Final = 512 << 20  # bytes left free for library workspaces and fragmentation
# The slack with several ranks, in bytes: NCCL takes 0.5 to 1.6 GB, partly only at the first transfer.
_SLACK_OF_RANKS_BYTES: Final = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceCachePlan:
    """The rows in a static device cache (in GPU memory): slot i holds the row of ``rows[i]``."""

    num_nodes: int  # N
    rows: IdArray  # (D,) distinct node ids, ascending
    expected_hit_rate: float | None = None  # share of accesses that these rows serve; None if not counted

    @property
    def holds_all(self) -> bool:
        """True if every row is on the device, so that the host gathers none."""
        return 0 < self.num_nodes == len(self.rows)

    def slot_map(self) -> NDArray[np.int32]:
        """Return each node's slot (N,), -1 without a slot.

        Raises
        ------
        PlanError
            A row is out of range or repeats.
        """
        return SlotMap(self.num_nodes, self.rows).slot_of

    def holds(self) -> NDArray[np.bool_]:
        """Return a node mask (N,) for rows on the device."""
        held = np.zeros(self.num_nodes, dtype=np.bool_)
        held[self.rows] = True
        return held


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceShare:
    """The rows that the device serves without the host. The host's stages gather only the other rows."""

    # True if the device reads the rows that it does not hold from host memory itself, so that the host gathers none.
    reaches_all: bool = False
    # (N,) mask of held rows; None if the device holds no rows or all rows.
    held: NDArray[np.bool_] | None = None
    holds_all: bool = False  # True if the device holds every row

    def num_held(self, nodes: IdArray) -> int:
        """Return the number of ``nodes`` (U,) whose rows the device holds."""
        if self.holds_all:
            return len(nodes)
        return 0 if self.held is None else int(np.count_nonzero(self.held[nodes]))

    def positions_left(self, nodes: IdArray) -> IdArray | None:
        """Return the positions (M,) in ``nodes`` (U,) whose rows the device lacks. None means all positions."""
        return None if self.held is None else np.flatnonzero(~self.held[nodes])


def rows_that_fit(
    num_bytes: int, *, num_nodes: int, row_bytes: int, has_scale: bool = False, has_all_scales: bool = False
) -> int:
    """Return the number of rows in a device cache of ``num_bytes``. Pure.

    The result is N, or as many rows as fit next to the slot map.

    Parameters
    ----------
    num_bytes : device memory
    num_nodes : N, the number of nodes
    row_bytes : R, a row's bytes in its stored dtype; cached rows are widened only when a batch needs them
    has_scale : True if rows are int8, each with a float32 factor
    has_all_scales : True if the device holds all N rows' factors, for rows that the host gathers in stored form
    """
    each_row = row_bytes + (_SCALE_BYTES if has_scale else 0)
    if each_row * num_nodes <= num_bytes:
        return num_nodes  # no map: a row's slot is its id
    per_node = (_MAP_BYTES + (_SCALE_BYTES if has_all_scales else 0)) * num_nodes
    return min(max(num_bytes - per_node, 0) // each_row, num_nodes)


def cache_bytes(
    num_rows: int, *, num_nodes: int, row_bytes: int, has_scale: bool = False, has_all_scales: bool = False
) -> int:
    """Return a device cache's bytes, with its map. Pure.

    Parameters
    ----------
    num_rows : rows in the cache
    num_nodes : N; a cache with all N rows has no map
    row_bytes : R, a row's bytes in its stored dtype
    has_scale : True if rows are int8, each with a float32 factor
    has_all_scales : True if the device holds all N rows' factors, for rows that the host gathers in stored form
    """
    each_node = _MAP_BYTES + (_SCALE_BYTES if has_all_scales else 0)
    per_node = each_node * num_nodes if 0 < num_rows < num_nodes else 0
    return per_node + num_rows * (row_bytes + (_SCALE_BYTES if has_scale else 0))


def automatic_bytes(
    free_bytes: int,
    *,
    step_bytes: int | None,
    batch_bytes: int,
    batches_ahead: int,
    has_other_ranks: bool = False,
) -> int:
    """Return the device bytes that a cache may take. Pure.

    The result is the free memory less three parts: the model's peak in one trial step (a training step that is run to
    measure its memory), the other batches on the device, and a slack. Without a trial step it is half of the free
    memory, less the batches.

    Parameters
    ----------
    free_bytes : free memory before the step, after the model's parameters
    step_bytes : a step's peak, with its batch, above the memory before it. None without a trial step.
    batch_bytes : one batch's features and blocks
    batches_ahead : batches on the device besides the step's own
    has_other_ranks : True if the device communicates with other ranks' devices
    """
    slack = _SLACK_OF_RANKS_BYTES if has_other_ranks else _SLACK_BYTES
    ahead = batches_ahead * batch_bytes
    if step_bytes is None:
        return max(int(_UNTRIED_SHARE * free_bytes) - ahead - batch_bytes, 0)
    return max(free_bytes - int(_STEP_MARGIN * (step_bytes + ahead)) - slack, 0)


def plan_device_cache(
    scores: NDArray[np.integer] | NDArray[np.floating],
    num_rows: int,
    *,
    tail: NDArray[np.integer] | None = None,
    accesses: NDArray[np.integer] | None = None,
) -> DeviceCachePlan:
    """Return the plan for the ``num_rows`` nodes with the largest scores. Pure.

    Parameters
    ----------
    scores : (N,) accesses counted in presampled batches, inclusion probabilities or out-degrees
    num_rows : rows to hold; N or more means all rows
    tail : (N,) second scores, which rank the nodes whose first score is 0 for the remaining slots. None leaves these
        nodes out.
    accesses : (N,) access counts, from which the expected hit rate follows. None leaves the hit rate unknown.
    """
    num_nodes = len(scores)
    if num_rows >= num_nodes:
        return whole_device_cache(num_nodes)
    rows = hottest_first(scores, num_rows)
    if tail is not None and len(rows) < num_rows:
        rest = np.where(scores > 0, 0, tail)
        rows = np.concatenate([rows, hottest_first(rest, num_rows - len(rows))])
    total = 0 if accesses is None else int(accesses.sum())
    served = None if accesses is None or not total else int(accesses[rows].sum()) / total
    return DeviceCachePlan(num_nodes=num_nodes, rows=np.sort(rows), expected_hit_rate=served)


def whole_device_cache(num_nodes: int) -> DeviceCachePlan:
    """Return the plan for a device that holds every row. Pure."""
    return DeviceCachePlan(
        num_nodes=num_nodes, rows=np.arange(num_nodes, dtype=np.int64), expected_hit_rate=1.0
    )


def no_device_cache(num_nodes: int) -> DeviceCachePlan:
    """Return the plan for a device that holds no rows. Pure."""
    return DeviceCachePlan(num_nodes=num_nodes, rows=NO_ROWS)


def parse_hotness(name: str) -> DeviceHotness:
    """Return ``name`` as a ranking for device rows. Pure.

    Raises
    ------
    ConfigError
        ``name`` is not a ranking.
    """
    if name == "presampled":
        return "presampled"
    if name == "vip":
        return "vip"
    if name == "degree":
        return "degree"
    raise ConfigError(f"device_hotness={name!r} is not one of 'presampled', 'vip', 'degree'")


# A level is a group of rows with nearly equal scores, counted together. There are sixteen levels per factor of two,
# down to 2**-64 of the largest score.
_STEPS: Final = 16
_OCTAVES: Final = 64
# A row below all levels has this share of the lowest level's score.
_UNSEEN: Final = 1e-6
_BISECTIONS: Final = 100  # halvings of the price's range, more than a float's precision needs


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceShelf:
    """One node type's feature table, with the numbers that `divide_device_bytes` compares."""

    # (N,) accesses or inclusion probabilities, in the same unit for all tables
    scores: NDArray[np.integer] | NDArray[np.floating]
    row_bytes: int  # R, as stored
    saved_bytes: int  # bytes saved over the link, for each access to a cached row
    has_scale: bool = False  # rows are int8, each with a float32 factor
    has_all_scales: bool = False  # the device holds all N rows' factors
    levels: _Levels = field(init=False)  # row counts by score, made from ``scores``

    def __post_init__(self) -> None:
        """Count the rows of each level."""
        object.__setattr__(self, "levels", _Levels.of(self.scores))

    def num_bytes(self, num_rows: int) -> int:
        """Return the bytes for ``num_rows`` cached rows, with the slot map unless all rows are cached."""
        return cache_bytes(
            num_rows,
            num_nodes=len(self.scores),
            row_bytes=self.row_bytes,
            has_scale=self.has_scale,
            has_all_scales=self.has_all_scales,
        )

    @cached_property
    def row_cost(self) -> int:
        """One row's bytes."""
        return self.num_bytes(len(self.scores)) // max(len(self.scores), 1)

    @cached_property
    def map_cost(self) -> int:
        """Bytes for the slot map and scales of a partly cached table."""
        return self.num_bytes(1) - self.row_cost if len(self.scores) > 1 else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Levels:
    """Row counts by level, hottest first. The last level holds the rows without a score."""

    scores: NDArray[np.float64]  # (V,) mean score of each level's rows, descending
    counts: NDArray[np.int64]  # (V,) number of rows in each level

    @classmethod
    def of(cls, scores: NDArray[np.integer] | NDArray[np.floating]) -> _Levels:
        """Group rows by their ``scores`` (N,)."""
        most = float(scores.max()) if len(scores) else 0.0
        if most <= 0:
            return cls(scores=np.zeros(1), counts=np.array([len(scores)]))
        # A level spans a factor of 2**(1/16). Small access counts (1, 2, 3, ...) differ by more, so each has a level.
        edges = most * 2.0 ** (np.arange(-_OCTAVES * _STEPS, 2) / _STEPS - 0.5 / _STEPS)
        # `np.histogram` counts in pieces, so a table has no second array with all its rows.
        counts, _ = np.histogram(scores, bins=edges)
        sums, _ = np.histogram(scores, bins=edges, weights=scores)
        filled = np.flatnonzero(counts)[::-1]
        means = sums[filled] / counts[filled]
        unseen = len(scores) - int(counts.sum())
        return cls(scores=np.append(means, _UNSEEN * means[-1]), counts=np.append(counts[filled], unseen))


def divide_device_bytes(num_bytes: int, shelves: Sequence[DeviceShelf]) -> tuple[int, ...]:
    """Return each table's share of a device's bytes. `rows_that_fit` turns a share into rows. Pure.

    A price is the number of link bytes that a device byte must save, the same for all tables. Each table caches the
    rows that save more than they cost. Bisection finds the lowest price at which all chosen rows fit. A table that is
    cached in part also pays for its slot map; a table whose savings do not cover the map caches nothing.

    Parameters
    ----------
    num_bytes : bytes for all tables together
    shelves : the tables
    """
    if len(shelves) == 1:
        return (num_bytes,)
    tables = [_TableSavings(shelf) for shelf in shelves]
    if sum(table.whole_bytes for table in tables) <= num_bytes:
        return tuple(table.whole_bytes for table in tables)
    # At this price no table caches a row, because no byte saves more than the hottest row's.
    low, high = 0.0, 1.0 + max(table.most_gain for table in tables)
    for _ in range(_BISECTIONS):
        price = (low + high) / 2
        if sum(table.at_price(price) for table in tables) <= num_bytes:
            high = price
        else:
            low = price
    held = [table.at_price(high) for table in tables]
    _spend(num_bytes - sum(held), held, tables)
    return tuple(held)


def _spend(left: int, held: list[int], tables: Sequence[_TableSavings]) -> None:
    """Spend the last ``left`` bytes, which are left over at the best price, on the largest savings. Changes ``held``.

    Each turn gives one table as many of these bytes as it can use.
    """
    for _ in range(2 * len(tables)):
        options = [table.most_within(num_bytes + left) for table, num_bytes in zip(tables, held, strict=True)]
        gains = [
            table.saved(option) - table.saved(num_bytes)
            for table, option, num_bytes in zip(tables, options, held, strict=True)
        ]
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            return
        left -= options[best] - held[best]
        held[best] = options[best]


class _TableSavings:
    """The link bytes that a table saves, depending on the device bytes that it gets.

    ``whole_bytes`` caches all rows. ``most_gain`` is the largest number of link bytes that a device byte saves.
    """

    def __init__(self, shelf: DeviceShelf) -> None:
        self._shelf = shelf
        levels = shelf.levels
        # (V + 1,) rows, and link bytes saved, if the hottest 0, 1, ... V levels are cached.
        self._rows = np.concatenate([[0], np.cumsum(levels.counts)])
        per_row = levels.scores * shelf.saved_bytes
        self._saved = np.concatenate([[0.0], np.cumsum(per_row * levels.counts)])
        self._gains = per_row / max(shelf.row_cost, 1)  # (V,) link bytes saved per device byte, descending
        self.most_gain = float(self._gains[0])
        self.whole_bytes = shelf.num_bytes(len(shelf.scores))

    def at_price(self, price: float) -> int:
        """Return the device bytes for which savings less cost is largest, at ``price`` per device byte."""
        paying = int(np.searchsorted(-self._gains, -price, side="left"))
        some = self._shelf.num_bytes(int(self._rows[paying]))
        options = (self.whole_bytes, some, 0)
        return max(options, key=lambda num_bytes: (self.saved(num_bytes) - price * num_bytes, -num_bytes))

    def most_within(self, num_bytes: int) -> int:
        """Return the device bytes of the rows that fit in ``num_bytes``."""
        if num_bytes >= self.whole_bytes:
            return self.whole_bytes
        rows = max(num_bytes - self._shelf.map_cost, 0) // max(self._shelf.row_cost, 1)
        return self._shelf.num_bytes(rows)

    def saved(self, num_bytes: int) -> float:
        """Return the link bytes that ``num_bytes`` device bytes save."""
        if num_bytes >= self.whole_bytes:
            return float(self._saved[-1])
        rows = max(num_bytes - self._shelf.map_cost, 0) // max(self._shelf.row_cost, 1)
        return float(np.interp(rows, self._rows, self._saved))
