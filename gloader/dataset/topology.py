"""A dataset's topology: in memory if it fits, otherwise read page by page. It is never memory-mapped.

The topology is stored in lists: a node's in-edges are consecutive, and `Offsets` has the start of each node's list. An
edge's position is its index in the arrays of edges: sources, weights and times. A page is 4096 bytes of a file, with a
checksum of its own. A topology on the SSD reads the pages that one batch needs, and keeps the most recently used pages
in memory. (Passes over the edges, which serve many batches, are in `gloader.dataset.edge_passes`.) A *lane* is a read
queue with an aligned buffer. Loaders call `open_topology` or `open_hetero_topology`, and samplers read the result.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from gloader.core.kernels import njit
from gloader.core.offsets import Offsets, compact_bytes, compact_offsets
from gloader.core.units import format_bytes
from gloader.dataset.values import ValueCheck, wrong_value
from gloader.errors import BudgetError
from gloader.samplers.graph import EdgeLists, HeteroGraph, in_degrees
from gloader.ssd_store.format.array_reader import array_pieces
from gloader.ssd_store.read.columns import ArrayFile, Rule
from gloader.ssd_store.read.lane import ReadLane
from gloader.ssd_store.read.paged_array import KeptPages, PagedArray, PagedScan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.dataset.dataset import Dataset
    from gloader.dataset.tables import EdgeTable
    from gloader.dataset.values import ValueLimits
    from gloader.samplers import Topology
    from gloader.types import IdArray, Relation


# ``max_bytes`` of `open_topology` for callers that read at most a few batches.
FEW_BYTES: Final = 64 * 2**20
# Share of the allowed memory that keeps pages of a large topology. Features make better use of the rest.
_PAGED_SHARE: Final = 1 / 2
_BOUNCE_BYTES: Final = 2 * 2**20  # bytes of the aligned read buffer: 512 requests of one page
# Plain names of the arrays that a topology opens, if they exist. Times are opened on request.
_EDGES: Final = ("indices", "edge_weight")
_TIMES: Final = "edge_time"
_LIST_EDGES: Final = 1 << 18  # edges that `PagedValues.lists` reads per request


@contextmanager
def open_topology(
    dataset: AnyEdges, *, max_bytes: int, io: IoMode = "auto", times: bool = False
) -> Iterator[Topology]:
    """Open a topology for the length of a ``with`` block.

    A topology that fits into ``max_bytes`` is read into memory and verified once. A larger topology keeps only its
    offsets in memory, in a quarter of their bytes (see `Offsets`). Its edges are read page by page when a batch needs
    them, and each page is verified at every read. Up to half of ``max_bytes`` keeps the most recently used pages.
    Batches are the same in either case.

    Parameters
    ----------
    dataset : a dataset with one type, or a relation
    max_bytes : memory for the topology; node offsets and page checksums are held in any case
    io : the I/O mode for pages
    times : open edge times too, if there are any

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError, FormatError, StoreReadError
        A file is missing, cannot be read, or does not have the recorded length. Or the dataset was replaced.
    ChecksumError, GraphError
        The bytes differ from the written bytes, or are not a valid graph.
    """
    if _size(dataset, times=times) <= max_bytes:
        yield dataset.load_graph(times=times)
        return
    names = [*_EDGES, _TIMES] if times else _EDGES
    with ExitStack() as stack:
        with dataset.as_opened():
            topology = _open_paged(dataset, int(_PAGED_SHARE * max_bytes), io, stack, names=names)
        yield topology


@contextmanager
def open_hetero_topology(
    dataset: Dataset, *, max_bytes: int, io: IoMode = "auto", times: bool = False
) -> Iterator[HeteroGraph]:
    """Open all relations' topologies for the length of a ``with`` block.

    `held_relations` chooses relations that are read into memory and verified once. The others are read page by page, as
    in `open_topology`. They divide the rest of ``max_bytes`` in proportion to their edge bytes, so that every page is
    equally likely to be in memory. Batches are the same in any case.

    Parameters
    ----------
    dataset : the dataset, with one relation or several
    max_bytes : memory for the topologies; node offsets and page checksums are held in any case
    io : the I/O mode for pages
    times : see `open_topology`

    Raises
    ------
    GloaderError
        As `open_topology`.
    """
    tables = dataset.edge_tables
    sizes = {relation: _size(table, times=times) for relation, table in tables.items()}
    held = held_relations(sizes, max_bytes=max_bytes)
    left = max_bytes - sum(sizes[relation] for relation in held)
    paged_bytes = sum(size for relation, size in sizes.items() if relation not in held)
    with ExitStack() as stack:
        topologies = {}
        for relation, table in tables.items():
            # The share of a relation that is not held is smaller than its topology, so `open_topology` reads it page by
            # page.
            share = sizes[relation] if relation in held else left * sizes[relation] // paged_bytes
            topologies[relation] = stack.enter_context(
                open_topology(table, max_bytes=share, io=io, times=times)
            )
        num_nodes = {name: nodes.num_nodes for name, nodes in dataset.node_tables.items()}
        yield HeteroGraph(num_nodes=num_nodes, relations=topologies)


def held_relations(sizes: Mapping[Relation, int], *, max_bytes: int) -> frozenset[Relation]:
    """Return the smallest relations that fit into memory together. Pure.

    A hop takes about equally many edges from each relation. So each byte of a small relation is used more often than a
    byte of a large one.

    Parameters
    ----------
    sizes : each topology's bytes
    max_bytes : memory for all held topologies
    """
    held, left = set(), max_bytes
    for relation in sorted(sizes, key=lambda each: sizes[each]):
        left -= sizes[relation]
        if left < 0:
            break
        held.add(relation)
    return frozenset(held)


def _size(dataset: AnyEdges, *, times: bool) -> int:
    """Return the bytes of a topology in memory, with its edge times on request."""
    return dataset.topology_bytes + (dataset.time_bytes if times else 0)


def require_offsets(dataset: Dataset, *, budget_bytes: int, times: bool = False) -> None:
    """Raise BudgetError if a budget is too small for node offsets and page checksums, before they are read.

    Parameters
    ----------
    dataset : the dataset, with one relation or several
    budget_bytes : the memory budget for everything
    times : True if edge times are read

    Raises
    ------
    BudgetError
        The budget is too small. The message gives needed and allowed bytes.
    """
    tables = dataset.edge_tables.values()
    num_nodes = sum(table.num_nodes for table in tables)
    offset_bytes = sum(compact_bytes(table.num_nodes) for table in tables)
    names = [*_EDGES, _TIMES] if times else _EDGES
    page_bytes = sum(  # a page's checksum has 8 bytes
        8 * table.arrays[name].num_pages for table in tables for name in names if name in table.arrays
    )
    needed = offset_bytes + page_bytes
    if needed > budget_bytes:
        raise BudgetError(
            f"{dataset.location}: the offsets of {num_nodes:,} nodes need {format_bytes(offset_bytes)} and the "
            f"page checksums of their edges {format_bytes(page_bytes)}, which stay in memory even if the edges are on "
            f"the SSD; the memory budget is {format_bytes(budget_bytes)}. Raise it to {format_bytes(2 * needed)} or "
            "more, which leaves room for batches and features",
            short_bytes=needed - budget_bytes,
        )


class PagedTopology:
    """A `Topology` with its edges on the SSD. Thread-safe. Made by `open_topology`, which owns its files.

    Parameters
    ----------
    offsets : each node's first in-edge, verified
    sources : each edge's source node
    weights : each edge's weight, or None
    kept : the pages that are kept in memory
    num_sources : number of source nodes
    times : each edge's time, or None
    """

    def __init__(
        self,
        offsets: Offsets,
        sources: PagedArray,
        weights: PagedArray | None,
        kept: KeptPages,
        *,
        num_sources: int,
        times: PagedArray | None = None,
    ) -> None:
        self.num_sources = num_sources
        self.offsets = offsets
        self.sources = PagedValues(sources)
        self.weights = None if weights is None else PagedValues(weights)
        self.times = None if times is None else PagedValues(times)
        self.kept_bytes = kept.num_bytes  # memory for the kept pages
        # ``held_bytes`` is all memory of the topology. An array's part is its page checksums and small buffers.
        arrays = sum(array.num_bytes for array in (sources, weights, times) if array is not None)
        self.held_bytes = offsets.num_bytes + self.kept_bytes + _BOUNCE_BYTES + arrays
        self._num_edges = sources.length

    @property
    def num_nodes(self) -> int:
        """N, the number of destinations."""
        return len(self.offsets.low) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return self._num_edges

    @property
    def indices(self) -> NDArray[Any]:
        """Not available, because the edges are not in memory.

        Raises
        ------
        BudgetError
            Always.
        """
        raise BudgetError(
            f"the {self.num_edges:,} edges of this graph are on the SSD, because they exceed their share of the memory "
            "budget: raise the budget to at least twice the bytes of the edges, or load them with Dataset.load_graph()"
        )

    def in_degrees(self, nodes: IdArray) -> IdArray:
        """Return the number of in-neighbours (M,) int64 for ``nodes`` (M,); see `CscGraph.in_degrees`."""
        return in_degrees(self.offsets, nodes)


class PagedValues:
    """`EdgeValues` on the SSD: one value per edge. The methods return copies."""

    def __init__(self, array: PagedArray) -> None:
        self._array = array

    def at(self, positions: IdArray) -> tuple[NDArray[Any], IdArray]:
        """Return the values (n,) at ``positions`` (n,), and for each position the index (n,) of its value there."""
        return self._array.take(positions), np.arange(len(positions))

    def lists(self, starts: IdArray, degrees: IdArray, first: int, last: int) -> EdgeLists:
        """Return the lists of in-edges for a batch's nodes ``first:last``.

        Parameters
        ----------
        starts, degrees, first, last : see `EdgeValues.lists`
        """
        # The lists are joined in ``values``. ``offsets`` has each list's start in it, for the nodes ``first:last``.
        offsets = np.zeros(last - first + 1, dtype=np.int64)
        np.cumsum(degrees[first:last], out=offsets[1:])
        list_starts = np.zeros(len(starts), dtype=np.int64)
        list_starts[first:last] = offsets[:-1]
        num_edges = int(offsets[-1])
        values = np.empty(num_edges, dtype=self._array.dtype)
        positions = np.empty(min(num_edges, _LIST_EDGES), dtype=np.int64)
        for begin in range(0, num_edges, _LIST_EDGES):
            chunk = positions[: num_edges - begin]
            _list_positions(starts[first:last], offsets, begin, chunk)
            values[begin : begin + len(chunk)] = self._array.take(chunk)
        values.flags.writeable = False
        return EdgeLists(values=values, starts=list_starts, origins=starts)

    def scan(self) -> PagedScan:
        """Return a scan, which reads long runs of edges without the kept pages; see `PagedScan`."""
        return self._array.scan()

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield all edge values, read and verified in file order."""
        return self._array.pieces()

    def fetch_bytes(self, num_edges: int) -> int:
        """Return the peak bytes of an `at` call for ``num_edges`` edges."""
        return self._array.take_bytes(num_edges)

    def list_bytes(self, num_edges: int) -> int:
        """Return the peak bytes of a `lists` call with ``num_edges`` edges."""
        chunk = min(num_edges, _LIST_EDGES)
        return self._array.dtype.itemsize * num_edges + 8 * chunk + self._array.take_bytes(chunk)


@njit(cache=True, nogil=True)
def _list_positions(starts: IdArray, offsets: IdArray, begin: int, positions: IdArray) -> None:
    """Write the positions of edges ``begin``, ``begin + 1``, ... of the joined lists into ``positions`` (n,).

    Parameters
    ----------
    starts : (m,) position of the first edge of each list
    offsets : (m + 1,) start of each list in the joined lists
    begin : number of the first edge in the joined lists
    positions : (n,) int64, written
    """
    node = np.searchsorted(offsets, begin, side="right") - 1
    for i in range(positions.shape[0]):
        while begin + i >= offsets[node + 1]:
            node += 1
        positions[i] = starts[node] + begin + i - offsets[node]


def _open_paged(
    dataset: AnyEdges, kept_bytes: int, io: IoMode, stack: ExitStack, *, names: Sequence[str]
) -> PagedTopology:
    """Return the topology with the existing arrays among ``names`` opened for reading; ``stack`` closes their files.

    All arrays share the kept pages and one lane. Their pages are numbered consecutively.
    """
    root, os_io = dataset.root, dataset.os_io
    offsets = compact_offsets(_offset_pieces(dataset), dataset.num_nodes)
    records = {name: dataset.arrays[name] for name in names if name in dataset.arrays}
    kept = KeptPages(sum(record.num_pages for record in records.values()), max_bytes=kept_bytes)
    lane: ReadLane | None = None
    arrays: dict[str, PagedArray] = {}
    first_page = 0
    for name, record in records.items():
        rule = element_rule(root / record.file, name, dataset.limits)
        file = ArrayFile(root, record, rule=rule, io=io, os_io=os_io)
        stack.callback(file.close)
        if lane is None:
            lane = ReadLane(
                _BOUNCE_BYTES,
                io=io,
                is_direct=file.is_direct,
                os_io=os_io,
                when_closed="the topology is closed; open it again",
            )
            stack.callback(lane.close)
        arrays[name] = PagedArray(file, lane=lane, kept=kept, first_page=first_page)
        first_page += record.num_pages
    return PagedTopology(
        offsets,
        arrays["indices"],
        arrays.get("edge_weight"),
        kept,
        num_sources=dataset.limits.num_sources,
        times=arrays.get(_TIMES),
    )


def _offset_pieces(dataset: AnyEdges) -> Iterator[IdArray]:
    """Yield verified and checked pieces of indptr."""
    record = dataset.arrays["indptr"]
    check = ValueCheck("indptr", dataset.limits)
    for piece in array_pieces(dataset.root, record, os_io=dataset.os_io):
        _raise_if(check.wrong(piece), dataset.root / record.file)
        yield piece
    _raise_if(check.wrong_end(), dataset.root / record.file)


def _raise_if(message: str | None, path: Path) -> None:
    """Raise the error for an invalid offset, if there is a message about one."""
    if message is not None:
        raise wrong_value(path, "indptr", message)


def element_rule(path: Path, name: str, limits: ValueLimits) -> Rule:
    """Return the rule that a reader applies to an array's elements: the range check, and the error. Pure.

    Parameters
    ----------
    path : the array's file, for messages
    name : the array's plain name
    limits : bounds for its values
    """

    def error(position: int, value: object) -> Exception:
        return wrong_value(path, name, limits.describe(name, position, value))

    return Rule(first_wrong=partial(limits.first_wrong, name), error=error)


# The edges of one relation: an edge table, or a homogeneous dataset, which has the same members.
AnyEdges: TypeAlias = "Dataset | EdgeTable"
