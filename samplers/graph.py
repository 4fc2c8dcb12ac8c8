"""Graphs: one topology in compressed sparse column form for each relation between node types.

A relation is an edge type, with a source type and a destination type. Each destination node has a list: its in-edges,
one after another. A position is an edge's index among all edges of its relation, in the same order for each kind of
value (sources, weights, times). A place is an index in a smaller array that a call returned.

Samplers read a graph by the protocols `Topology` (a relation's edges) and `EdgeValues` (one value per edge). This
module has the kinds in memory, `CscGraph` and `HeldValues`; the kinds on the SSD are in `gloader.dataset.topology`. A
`HeteroGraph` joins the topologies of all relations.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from gloader.core.offsets import Offsets, plain_offsets
from gloader.core.value_kernels import first_bad_weight, first_descent, first_outside
from gloader.errors import GraphError
from gloader.samplers.pick_kernels import count_in_edges
from gloader.samplers.time_kernels import first_descent_in_lists
from gloader.types import EDGE, NODE, ByShapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray, Relation

CHUNK: Final = 1 << 22  # entries per kernel call, so that an interrupt is noticed between two calls


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLists:
    """The lists of some nodes in a batch, with one value per edge, for kernels.

    The list of the batch's node i is ``values[starts[i] : starts[i] + degrees[i]]``, with ``degrees`` from the request.
    """

    values: NDArray[Any]
    starts: IdArray  # the place in ``values`` at which each node's list begins; undefined for nodes outside the request
    # The position at which each node's list begins; None if ``values`` has all edges, so that places are positions.
    origins: IdArray | None = None

    def to_positions(self, places: IdArray, indptr: IdArray | LocalArray, first: int = 0) -> None:
        """Replace places in ``values`` by positions in the graph.

        Parameters
        ----------
        places : (M,) places in the lists, node after node; overwritten
        indptr : (D + 1,) the index in ``places`` at which each node begins
        first : index in the batch of the first of the D nodes
        """
        if self.origins is not None:
            nodes = slice(first, first + len(indptr) - 1)
            places += np.repeat(self.origins[nodes] - self.starts[nodes], np.diff(indptr))


class ListScan(Protocol):
    """Reads the values in many lists, with few large reads if they are on the SSD. For one thread."""

    def lists(self, starts: IdArray, counts: IdArray) -> NDArray[Any]:
        """Return ``counts[i]`` values from ``starts[i]`` on, for every i, list after list.

        Lists requested in file order take one pass over the file. The result may be a read-only view of the graph.

        Parameters
        ----------
        starts, counts : (M,) int64, each list's first position and length
        """
        ...


class EdgeValues(Protocol):
    """One value for each graph edge, in memory or on the SSD. Thread-safe.

    Reads from the SSD are verified. They raise ChecksumError, StoreReadError or TruncatedStoreError, with file and
    page.
    """

    def at(self, positions: IdArray) -> tuple[NDArray[Any], IdArray]:
        """Return an array, and for each of ``positions`` (M,) int64 the place of its value in the array.

        So values in memory need no copy: the array is the one with all values, and the places are the positions.
        """
        ...

    def lists(self, starts: IdArray, degrees: IdArray, first: int, last: int) -> EdgeLists:
        """Return the lists of a batch's nodes ``first:last``.

        Parameters
        ----------
        starts, degrees : (>= last,) each node's first position in the graph and its number of in-edges
        first, last : the range of nodes, as indices in the batch
        """
        ...

    def scan(self) -> ListScan:
        """Return a scan, for callers that need nearly all lists."""
        ...

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield the values of all edges in order, cut into arrays; an array is valid until the next one."""
        ...

    def fetch_bytes(self, num_edges: int) -> int:
        """Return the peak bytes that `at` holds for ``num_edges`` edges."""
        ...

    def list_bytes(self, num_edges: int) -> int:
        """Return the peak bytes that `lists` holds for ``num_edges`` edges."""
        ...


class Topology(Protocol):
    """Every node's in-neighbours, in memory or on the SSD. Thread-safe."""

    @property
    def offsets(self) -> Offsets:
        """Position of each node's first in-edge, in memory. The list of node v ends at the first in-edge of v + 1."""
        ...

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        ...

    @property
    def num_sources(self) -> int:
        """Number of source nodes: N, or the source type's number of nodes in a relation between two types."""
        ...

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        ...

    @property
    def sources(self) -> EdgeValues:
        """Each edge's source, int32 or int64."""
        ...

    @property
    def weights(self) -> EdgeValues | None:
        """Each edge's weight, float32 or float64; None without weights."""
        ...

    @property
    def times(self) -> EdgeValues | None:
        """Each edge's time, int64 seconds, ascending in each node's list; None without times."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the topology holds."""
        ...

    def in_degrees(self, nodes: IdArray) -> IdArray:
        """Return each node's number of in-neighbours, (M,) int64, for ``nodes`` (M,)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CscGraph(ByShapes):
    """Every node's in-neighbours; node v has ``indices[indptr[v] : indptr[v + 1]]``.

    A `Topology` in memory. Parallel edges and self loops are kept. The arrays are used in place, never copied, and must
    not change while the graph is in use. Thread-safe.

    Parameters
    ----------
    indptr : (N + 1,) int64, not decreasing, from 0 to E
    indices : (E,) int32 or int64, node ids in 0..N-1, or below ``num_sources``
    edge_weight : (E,) float32 or float64, finite and not negative, optional
    edge_time : (E,) int64 seconds, ascending in each node's list, optional
    num_sources : number of source nodes, if they have another type; -1 means the N nodes themselves
    validate : check every entry; pass False only for arrays that were checked before

    Raises
    ------
    GraphError
        An array has a wrong dtype, shape or entry; the message names the position and the value.
    """

    indptr: IdArray
    indices: NDArray[np.int32] | NDArray[np.int64]
    edge_weight: NDArray[np.float32] | NDArray[np.float64] | None = None
    edge_time: NDArray[np.int64] | None = None
    num_sources: int = -1
    validate: InitVar[bool] = True

    def __post_init__(self, validate: bool) -> None:
        """Check the arrays and keep read-only views of them."""
        _store(self, "indptr", _plain("indptr", self.indptr, (np.int64,)))
        _store(self, "indices", _plain("indices", self.indices, (np.int32, np.int64)))
        # This check always runs: it costs almost nothing, and kernels rely on the lengths.
        _check_ends(self.indptr, self.num_edges)
        if self.num_sources < 0:
            _store(self, "num_sources", self.num_nodes)
        if self.edge_weight is not None:
            _store(self, "edge_weight", _plain("edge_weight", self.edge_weight, (np.float32, np.float64)))
            _check_length("edge_weight", self.edge_weight, self.num_edges)
        if self.edge_time is not None:
            _refuse_float_times(self.edge_time)
            _store(self, "edge_time", _plain("edge_time", self.edge_time, (np.int64,)))
            _check_length("edge_time", self.edge_time, self.num_edges)
        if validate:
            _check_indptr(self.indptr)
            _check_indices(self.indices, self.num_nodes, self.num_sources)
            _check_weights(self.edge_weight)
            if self.edge_time is not None and (wrong := describe_unsorted_time(self.indptr, self.edge_time)):
                raise GraphError(wrong)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.indptr.shape[0]) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return int(self.indices.shape[0])

    @property
    def offsets(self) -> Offsets:
        """``indptr`` in the form for kernels."""
        return plain_offsets(self.indptr)

    @property
    def sources(self) -> HeldValues:
        """Each edge's source: ``indices``."""
        return HeldValues(array=self.indices)

    @property
    def weights(self) -> HeldValues | None:
        """Each edge's weight: ``edge_weight``."""
        return None if self.edge_weight is None else HeldValues(array=self.edge_weight)

    @property
    def times(self) -> HeldValues | None:
        """Each edge's time: ``edge_time``."""
        return None if self.edge_time is None else HeldValues(array=self.edge_time)

    @property
    def held_bytes(self) -> int:
        """Bytes in the arrays."""
        arrays = (self.indptr, self.indices, self.edge_weight, self.edge_time)
        return sum(array.nbytes for array in arrays if array is not None)

    def in_degrees(self, nodes: IdArray) -> IdArray:
        """Return each node's number of in-neighbours, (M,) int64, for ``nodes`` (M,). Pure.

        Raises
        ------
        GraphError
            An id is not a graph node.
        """
        return in_degrees(self.offsets, nodes)


def in_degrees(offsets: Offsets, nodes: IdArray) -> IdArray:
    """Return each node's number of in-neighbours, (M,) int64, for ``nodes`` (M,). Pure.

    Raises
    ------
    GraphError
        An id is not a graph node.
    """
    return _in_degrees(offsets, nodes, np.empty(np.shape(nodes), dtype=np.int64))


def float_in_degrees(offsets: Offsets, nodes: IdArray) -> NDArray[np.float32]:
    """Return the result of `in_degrees` as float32, for message passing; errors are the same. Pure.

    These degrees count all edges of the graph. In contrast, `SampledBatch.in_degrees` counts only edges that the batch
    may take.
    """
    return _in_degrees(offsets, nodes, np.empty(np.shape(nodes), dtype=np.float32))


def _in_degrees(offsets: Offsets, nodes: IdArray, counts: NDArray[Any]) -> NDArray[Any]:
    """Write the in-degrees of ``nodes`` to ``counts`` and return it; for errors see `in_degrees`."""
    ids, num_nodes = np.asarray(nodes), len(offsets.low) - 1
    if ids.dtype.kind not in "iu":
        raise GraphError(f"node ids have dtype {ids.dtype}; in_degrees takes integers")
    # All ids get one dtype and layout, so the kernel compiles only once for each dtype of ``counts``.
    if count_in_edges(offsets, np.ascontiguousarray(ids, dtype=np.int64), counts) >= 0:
        bad = ids[(ids < 0) | (ids >= num_nodes)][:5].tolist()
        raise GraphError(f"node ids {bad} are not in 0..{num_nodes - 1}")
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldValues:
    """Edge values in memory, without copies."""

    array: NDArray[Any]

    def at(self, positions: IdArray) -> tuple[NDArray[Any], IdArray]:
        """Return the array itself; its places are the ``positions``."""
        return self.array, positions

    def lists(self, starts: IdArray, degrees: IdArray, first: int, last: int) -> EdgeLists:  # noqa: ARG002
        """Return the lists within the array."""
        return EdgeLists(values=self.array, starts=starts)

    def scan(self) -> HeldScan:
        """Return a scan of the array."""
        return HeldScan(array=self.array)

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield views of the array."""
        for start in range(0, len(self.array), CHUNK):
            yield self.array[start : start + CHUNK]

    def fetch_bytes(self, num_edges: int) -> int:  # noqa: ARG002 - see `EdgeValues`
        """Return 0: the method copies nothing."""
        return 0

    def list_bytes(self, num_edges: int) -> int:  # noqa: ARG002 - see `EdgeValues`
        """Return 0: the method copies nothing."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldScan:
    """A `ListScan` of values in memory. Thread-safe."""

    array: NDArray[Any]

    def lists(self, starts: IdArray, counts: IdArray) -> NDArray[Any]:
        """Return a view of consecutive lists, or a copy of scattered lists.

        Parameters
        ----------
        starts, counts : (M,) int64, each list's first position and length
        """
        if (starts[1:] == (starts + counts)[:-1]).all():
            first = int(starts[0]) if len(starts) else 0
            return self.array[first : first + int(counts.sum())]
        # Value j of the result has the position j + (start of its list) - (number of values in earlier lists).
        before = np.cumsum(counts) - counts
        values: NDArray[Any] = self.array[
            np.repeat(starts - before, counts) + np.arange(counts.sum(), dtype=np.int64)
        ]
        return values


def _store(graph: CscGraph, field: str, value: object) -> None:
    """Set a field of a frozen graph; only for its constructor."""
    object.__setattr__(graph, field, value)


def _plain(name: str, array: NDArray[Any], dtypes: tuple[type, ...]) -> NDArray[Any]:
    """Check ``array`` and return a read-only view of it, as a plain ndarray: kernels are compiled for this kind.

    Parameters
    ----------
    name : the array's name in messages
    array : the caller's array
    dtypes : the allowed dtypes

    Raises
    ------
    GraphError
        The array has a wrong type, shape, dtype or layout.
    """
    allowed = " or ".join(np.dtype(dtype).name for dtype in dtypes)
    if not isinstance(array, np.ndarray):
        raise GraphError(f"{name} is a {type(array).__name__}; it must be a numpy array of {allowed}")
    if array.ndim != 1:
        raise GraphError(f"{name} has shape {array.shape}; it must have one dimension")
    if not array.dtype.isnative or array.dtype.type not in dtypes:
        order = "" if array.dtype.isnative else " in foreign byte order"
        raise GraphError(
            f"{name} has dtype {array.dtype.name}{order} ({array.dtype.str}); it must be native {allowed}: check that "
            f"its values fit and convert with {name}.astype(np.{np.dtype(dtypes[-1]).name})"
        )
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise GraphError(f"{name} is strided or unaligned; pass np.ascontiguousarray({name}) or a fresh copy")
    view = np.asarray(array).view(np.ndarray)
    view.flags.writeable = False  # the caller's array stays writeable
    return view


def _check_ends(indptr: IdArray, num_edges: int) -> None:
    """Raise GraphError unless ``indptr`` begins with 0 and ends with ``num_edges``."""
    if indptr.shape[0] == 0:
        raise GraphError("indptr is empty; it must have N + 1 entries, [0] for a graph without nodes")
    if indptr[0] != 0:
        raise GraphError(f"indptr[0] is {indptr[0]}; it must be 0")
    if indptr[-1] != num_edges:
        last = indptr.shape[0] - 1
        raise GraphError(
            f"indptr[{last}], its end, is {indptr[-1]}; it must be the length of indices, {num_edges}"
        )


def _check_length(name: str, values: NDArray[Any], num_edges: int) -> None:
    if values.shape[0] != num_edges:
        raise GraphError(f"{name} has {values.shape[0]} entries; it must have one per edge, {num_edges}")


def _refuse_float_times(edge_time: object) -> None:
    """Raise GraphError for times as floats. The message of the general dtype check would suggest a conversion."""
    dtype = getattr(edge_time, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind == "f":
        raise GraphError(
            f"edge_time has dtype {dtype}; times are int64 seconds, as floats round them (float32 rounds today's times "
            "to 128 s): pass the original integers"
        )


def _check_indptr(indptr: IdArray) -> None:
    """Raise GraphError if ``indptr`` decreases."""
    for start in range(0, indptr.shape[0], CHUNK):
        # Consecutive chunks overlap by one entry, so that each entry is compared with its predecessor.
        node = start + first_descent(indptr[start : start + CHUNK + 1], indptr[start])
        if node >= start:
            raise GraphError(
                f"indptr is not monotone: indptr[{node}] = {indptr[node]} "
                f"is smaller than indptr[{node - 1}] = {indptr[node - 1]}"
            )


def _check_indices(indices: NDArray[Any], num_nodes: int, num_sources: int) -> None:
    """Raise GraphError if a source is not in 0..num_sources-1."""
    for start in range(0, indices.shape[0], CHUNK):
        position = start + first_outside(indices[start : start + CHUNK], 0, num_sources - 1)
        if position >= start:
            why = f"indptr describes {num_nodes}" if num_nodes == num_sources else f"there are {num_sources}"
            raise GraphError(
                f"indices[{position}] = {indices[position]} is not a node: ids must be in 0..{num_sources - 1}, "
                f"as {why} nodes"
            )


def _check_weights(edge_weight: NDArray[Any] | None) -> None:
    """Raise GraphError if a weight is negative or not finite."""
    if edge_weight is None:
        return
    for start in range(0, edge_weight.shape[0], CHUNK):
        position = start + first_bad_weight(edge_weight[start : start + CHUNK])
        if position >= start:
            raise GraphError(
                f"edge_weight[{position}] = {edge_weight[position]}; weights must be finite and not negative"
            )


def describe_unsorted_time(indptr: IdArray, times: NDArray[np.int64]) -> str | None:
    """Return a message about the first edge time that is less than the time before it in the list. Pure.

    The result is None if all lists are sorted. Edges with equal times may be in any order.

    Parameters
    ----------
    indptr : (N + 1,) checked
    times : (E,) the edges' times
    """
    num_nodes = indptr.shape[0] - 1
    for first in range(0, num_nodes, CHUNK):
        position = first_descent_in_lists(indptr, times, first, min(first + CHUNK, num_nodes))
        if position >= 0:
            node = int(np.searchsorted(indptr, position, side="right")) - 1
            return (
                f"edge_time[{position}] = {times[position]} is less than {times[position - 1]} before it, among the "
                f"in-edges of node {node}: the list of each node must be sorted by time"
            )
    return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class HeteroGraph(ByShapes):
    """A graph of node types and relations; each relation's topology holds the in-edges of its destination type.

    The order of types and relations matters: a relation's draws depend on its number. Thread-safe, as its
    topologies are.

    Parameters
    ----------
    num_nodes : number of nodes by type; ids count from 0 within each type
    relations : a topology by (source type, name, destination type), in memory or on the SSD. Its ``num_nodes`` counts
        the destinations, its ``num_sources`` the sources

    Raises
    ------
    GraphError
        There is no type, a relation names an unknown type, or its topology has another number of nodes.
    """

    num_nodes: Mapping[str, int]
    relations: Mapping[Relation, Topology]

    def __post_init__(self) -> None:
        """Check that types and relations match."""
        if not self.num_nodes:
            raise GraphError("num_nodes is empty; a graph needs at least one node type")
        for relation, topology in self.relations.items():
            source, _, destination = relation
            for node_type, count, end in (
                (source, topology.num_sources, "sources"),
                (destination, topology.num_nodes, "destinations"),
            ):
                if node_type not in self.num_nodes:
                    allowed = ", ".join(map(repr, self.num_nodes))
                    raise GraphError(
                        f"relation {':'.join(relation)} names the type {node_type!r}; there are {allowed}"
                    )
                if count != self.num_nodes[node_type]:
                    raise GraphError(
                        f"relation {':'.join(relation)} has {count} {end}; type {node_type!r} has "
                        f"{self.num_nodes[node_type]} nodes"
                    )

    @classmethod
    def of_one_type(cls, topology: Topology) -> HeteroGraph:
        """Return a one-type graph whose only relation is ``topology``."""
        return cls(num_nodes={NODE: topology.num_nodes}, relations={EDGE: topology})

    @classmethod
    def of(cls, graph: Topology | HeteroGraph) -> HeteroGraph:
        """Return a typed ``graph`` unchanged; wrap a topology by `of_one_type`."""
        return graph if isinstance(graph, HeteroGraph) else cls.of_one_type(graph)

    @property
    def is_one_type(self) -> bool:
        """True for a graph from `of_one_type`: messages then name no type."""
        return len(self.num_nodes) == 1 and tuple(self.relations) == (EDGE,)

    @property
    def node_types(self) -> tuple[str, ...]:
        """The types, in order."""
        return tuple(self.num_nodes)

    @property
    def type_starts(self) -> IdArray:
        """(T + 1,) int64: in one numbering for all nodes, node v of type t has the number ``type_starts[t] + v``.

        Seeds use these numbers, because an epoch's order mixes types.
        """
        return np.array([0, *accumulate(self.num_nodes.values())], dtype=np.int64)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the graph holds."""
        return sum(topology.held_bytes for topology in self.relations.values())


def unreachable_relations(
    relations: Sequence[Relation], seed_types: Iterable[str], num_hops: int
) -> tuple[Relation, ...]:
    """Return the relations from which no hop can take an edge, in order. Pure.

    Only types count, not the edges: a relation is unreachable if no hop's destinations can have its destination type.

    Parameters
    ----------
    relations : the graph's relations
    seed_types : the seeds' types
    num_hops : L
    """
    found_types = set(seed_types)
    reached: set[Relation] = set()
    for _ in range(num_hops):
        reached |= {relation for relation in relations if relation[2] in found_types}
        found_types |= {source for source, _, _ in reached}
    return tuple(relation for relation in relations if relation not in reached)
