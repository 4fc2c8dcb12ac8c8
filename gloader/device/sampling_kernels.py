"""Triton kernels for neighbour sampling on a device: the same draws as `gloader.samplers`, bit for bit.

A kernel runs as programs with `_LANES` lanes each. A lane handles one item: one destination node, or one edge of the
hop. A hop runs these kernels in order:

1. count (per destination): label the destination, and count its sampled edges
2. draw (per edge): draw a random number for the edge
3. repeat (per edge): test whether an earlier draw of the same destination was equal
4. find (per edge): apply Floyd's rule, and look up the edge's position and its source
5. first (per edge): test whether this edge is the first to find its source
6. label (per edge): write the source's label, and append new nodes

Floyd's rule draws without replacement: a draw that repeats an earlier pick is replaced by its top, the last position
that the draw could have. A label is a node's local id: its index among the batch's nodes in first-seen order. If
several edges of a hop have the same new source, the edge with the least number finds it first. ``IS_MERGED`` means that
a hop's destinations are only the nodes that the previous hop found. ``IS_REPLACED`` means that draws are with
replacement.

No result depends on the order in which lanes run. A lane reads only results of earlier kernels, a minimum does not
depend on the order, and a draw depends only on (seed, epoch, batch, hop, node, draw).

The counts of nodes and edges stay on the device, see `Sampling`. Each array has room for the maximum, and lanes beyond
the count do nothing. The graph's and the hop's arrays are passed as pointers. `DeviceSampler` calls `launch_count`
(kernel 1), `launch_pick` (2 to 4) and `launch_relabel` (5 and 6) for each hop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
import triton
import triton.language as tl

from gloader.core import hashing

if TYPE_CHECKING:
    from gloader.device.tier import DeviceTopology

# The array `labels` has one int32 entry per node of the graph. For a labelled node, the entry is the label minus
# `_KNOWN`, which is negative. For a node that the current hop found, it is the least number, within the hop, of an edge
# from the node. For all other nodes, it is `UNSEEN`, which exceeds all edge numbers.
UNSEEN: Final = 2**31 - 1
_KNOWN = tl.constexpr(2**31)

_GOLDEN = tl.constexpr(int(hashing.GOLDEN))
_MUL_1, _MUL_2 = tl.constexpr(int(hashing.MUL_1)), tl.constexpr(int(hashing.MUL_2))
_LOW_32 = tl.constexpr(0xFFFFFFFF)
# A word is a random 64-bit number. If the word of draw d is rejected, words d + _RETRY, d + 2 * _RETRY, ... follow.
_RETRY = tl.constexpr(1 << 40)

_LANES: Final = 256  # lanes per program: two for each of its 128 threads
# Arguments that differ between batches. Triton must not compile a kernel for each of their values.
_SIZES: Final = ("capacity", "fanout", "hop", "num_rows", "num_lanes")


@triton.jit
def mix64(x):  # type: ignore[no-untyped-def]
    """Compute `gloader.core.hashing.mix64`."""
    x = (x ^ (x >> 30)) * _MUL_1
    x = (x ^ (x >> 27)) * _MUL_2
    return x ^ (x >> 31)


@triton.jit
def node_key(key, node):  # type: ignore[no-untyped-def]
    """Compute `gloader.samplers.rng.node_key`."""
    return mix64(key ^ (node.to(tl.uint64) * _GOLDEN + 1))


@triton.jit
def word(key, index):  # type: ignore[no-untyped-def]
    """Compute `gloader.samplers.rng.word`."""
    return mix64(key + (index + 1) * _GOLDEN)


@triton.jit
def bounded_64(bits, bound):  # type: ignore[no-untyped-def]
    """Compute `gloader.samplers.rng.bounded_64`."""
    low = (bits & _LOW_32) * (bound & _LOW_32)
    mid_1 = (bits >> 32) * (bound & _LOW_32) + (low >> 32)
    mid_2 = (bits & _LOW_32) * (bound >> 32) + (mid_1 & _LOW_32)
    return (bits >> 32) * (bound >> 32) + (mid_1 >> 32) + (mid_2 >> 32)


@triton.jit
def bounded(key, draw, bound, is_drawn):  # type: ignore[no-untyped-def]
    """Compute `gloader.samplers.rng.bounded`: a number in 0..bound-1, as uint64. Undefined in lanes without a draw.

    Two draws share a word, each with 32 bits of it. The number is the upper half of (bits * bound). Bits whose product
    has too small a lower half would make some numbers more likely: they are rejected. The loop ends when no lane has
    rejected bits. A bound above 32 bits takes a whole word of its own.
    """
    bits = word(key, draw >> 1)
    product = tl.where(draw & 1 != 0, bits >> 32, bits & _LOW_32) * bound
    number = product >> 32
    is_wide = bound > _LOW_32
    narrow = tl.where(is_wide, 1, bound).to(tl.uint64)
    threshold = (_LOW_32 + 1 - narrow) % narrow
    is_open = is_drawn & (is_wide | ((product & _LOW_32) < threshold))
    index = draw + _RETRY
    while tl.max(is_open.to(tl.int32), axis=0) > 0:
        again = word(key, index)
        product = (again >> 32) * narrow
        number = tl.where(is_open, tl.where(is_wide, bounded_64(again, bound), product >> 32), number)
        is_open = is_open & (is_wide == 0) & ((product & _LOW_32) < threshold)
        index += _RETRY
    return number


@triton.jit(do_not_specialize=_SIZES)
def _count_kernel(  # type: ignore[no-untyped-def]
    nodes,
    ends,
    graph_indptr,
    labels,
    starts,
    degrees,
    counts,
    hop,
    capacity,
    fanout,
    IS_MERGED: tl.constexpr,
    IS_REPLACED: tl.constexpr,
    LANES: tl.constexpr,
):
    """Handle one destination per lane: write its label and the number of its sampled in-edges.

    A negative fan-out takes all in-edges. Lanes beyond the last destination write 0 edges. ``nodes`` has the batch's
    global ids, ``ends`` is `Sampling.ends`. ``hop``, ``capacity`` and ``fanout`` are as in `launch_count`. The kernel
    writes ``labels`` (N,), and ``starts``, ``degrees`` and ``counts``, each (capacity,).
    """
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)  # the lanes' numbers over all programs
    label = row + (tl.load(ends + hop) if IS_MERGED else 0)
    is_row = row < capacity
    is_node = is_row & (label < tl.load(ends + hop + 1))
    node = tl.load(nodes + label, mask=is_node, other=0)
    start = tl.load(graph_indptr + node, mask=is_node, other=0)
    degree = tl.load(graph_indptr + node + 1, mask=is_node, other=0) - start
    tl.store(labels + node, (label - _KNOWN).to(tl.int32), mask=is_node)
    limit = tl.zeros_like(degree) + fanout
    if IS_REPLACED:
        count = tl.where((limit < 0) | (degree == 0), degree, limit)
    else:
        count = tl.where(limit < 0, degree, tl.minimum(degree, limit))
    tl.store(starts + row, start, mask=is_row)
    tl.store(degrees + row, degree, mask=is_row)
    tl.store(counts + row, count, mask=is_row)


@triton.jit(do_not_specialize=_SIZES)
def _draw_kernel(  # type: ignore[no-untyped-def]
    keys,
    hop,
    nodes,
    ends,
    rows,
    offsets,
    degrees,
    draws,
    num_rows,
    IS_MERGED: tl.constexpr,
    IS_REPLACED: tl.constexpr,
    LANES: tl.constexpr,
):
    """Handle one edge per lane: write its draw into ``draws``, before Floyd's rule.

    A draw is a position in the destination's list. If the destination takes all its in-edges, edge i takes position i.
    ``rows`` has the index of each edge's destination among the hop's ``num_rows`` destinations, and ``offsets`` has
    each destination's first edge. The later kernels have the same arguments.
    """
    edge = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    num_edges = tl.load(offsets + num_rows)
    is_edge = edge < num_edges
    row = tl.load(rows + edge, mask=is_edge, other=0)
    begin = tl.load(offsets + row, mask=is_edge, other=0)
    degree = tl.load(degrees + row, mask=is_edge, other=1)
    first = tl.load(ends + hop) if IS_MERGED else 0
    node = tl.load(nodes + first + row, mask=is_edge, other=0)
    draw = edge - begin
    if IS_REPLACED:
        bound = degree
        is_drawn = is_edge
    else:
        count = tl.load(offsets + row + 1, mask=is_edge, other=0) - begin
        bound = degree - count + draw + 1  # one more than the draw's top
        is_drawn = is_edge & (count < degree)
    bound = tl.where(is_drawn, bound, 1).to(tl.uint64)
    key = node_key(tl.load(keys + hop).to(tl.uint64), node)
    drawn = bounded(key, draw.to(tl.uint64), bound, is_drawn).to(tl.int64)
    tl.store(draws + edge, tl.where(is_drawn, drawn, draw), mask=is_edge)


@triton.jit(do_not_specialize=_SIZES)
def _repeat_kernel(  # type: ignore[no-untyped-def]
    rows,
    offsets,
    degrees,
    draws,
    repeats,
    num_rows,
    LANES: tl.constexpr,
):
    """Handle one edge per lane: write True into ``repeats`` if an earlier draw of its destination was equal."""
    edge = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    num_edges = tl.load(offsets + num_rows)
    is_edge = edge < num_edges
    row = tl.load(rows + edge, mask=is_edge, other=0)
    begin = tl.load(offsets + row, mask=is_edge, other=0)
    count = tl.load(offsets + row + 1, mask=is_edge, other=0) - begin
    is_drawn = is_edge & (count < tl.load(degrees + row, mask=is_edge, other=0))
    num_before = tl.where(is_drawn, edge - begin, 0)
    this_draw = tl.load(draws + edge, mask=is_edge, other=-1)
    repeated = edge < 0  # False in every lane
    for number in range(tl.max(num_before, axis=0)):
        earlier = tl.load(draws + begin + number, mask=number < num_before, other=-1)
        repeated = repeated | (earlier == this_draw)
    tl.store(repeats + edge, (repeated & is_drawn).to(tl.int8), mask=is_edge)


@triton.jit(do_not_specialize=_SIZES)
def _find_kernel(  # type: ignore[no-untyped-def]
    rows,
    offsets,
    starts,
    degrees,
    draws,
    repeats,
    graph_indices,
    labels,
    edge_ids,
    sources,
    num_rows,
    IS_DRAWN: tl.constexpr,
    IS_REPLACED: tl.constexpr,
    LANES: tl.constexpr,
):
    """Handle one edge per lane: write its position in the graph and its source.

    A new node's entry in ``labels`` becomes the least number of an edge from the node.

    Draw d of a destination is a position p in 0..top, where top = degree - count + d. If an earlier draw has taken p,
    Floyd's rule replaces draw d by its top. An earlier draw has taken p in one of two ways. Its own value was p; then
    ``repeats`` is True for draw d. Or p was its top, and the earlier draw was itself replaced. Position p is the top of
    one draw only, number p - (degree - count). So the loop goes from a draw to the draw whose top equals its value,
    until a draw is known to be replaced, or no such draw is left.
    """
    edge = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    num_edges = tl.load(offsets + num_rows)
    is_edge = edge < num_edges
    row = tl.load(rows + edge, mask=is_edge, other=0)
    begin = tl.load(offsets + row, mask=is_edge, other=0)
    place = edge - begin  # position in the destination's list
    if IS_DRAWN:
        place = tl.load(draws + edge, mask=is_edge, other=0)
    if IS_DRAWN and not IS_REPLACED:
        draw = edge - begin
        count = tl.load(offsets + row + 1, mask=is_edge, other=0) - begin
        # The top of draw 0; draw d has the top ``tops`` + d.
        tops = tl.load(degrees + row, mask=is_edge, other=0) - count
        is_taken = tl.load(repeats + edge, mask=is_edge, other=0) != 0
        number, drawn = draw, place  # the draw that is tested, and its value
        is_open = is_edge & (tops > 0) & (is_taken == 0) & (drawn >= tops) & (drawn - tops < number)
        while tl.max(is_open.to(tl.int32), axis=0) > 0:
            number = tl.where(is_open, drawn - tops, number)
            drawn = tl.load(draws + begin + number, mask=is_open, other=-1)
            is_taken = is_taken | (tl.load(repeats + begin + number, mask=is_open, other=0) != 0)
            is_open = is_open & (is_taken == 0) & (drawn >= tops) & (drawn - tops < number)
        place = tl.where(is_taken, tops + draw, place)
    edge_id = tl.load(starts + row, mask=is_edge, other=0) + place
    source = tl.load(graph_indices + edge_id, mask=is_edge, other=0)
    tl.store(edge_ids + edge, edge_id, mask=is_edge)
    tl.store(sources + edge, source, mask=is_edge)
    # The entry of a labelled node is negative, so that the minimum leaves it unchanged.
    tl.atomic_min(labels + source, edge.to(tl.int32), mask=is_edge, sem="relaxed")


@triton.jit(do_not_specialize=_SIZES)
def _first_kernel(  # type: ignore[no-untyped-def]
    sources,
    labels,
    is_first,
    offsets,
    num_rows,
    num_lanes,
    LANES: tl.constexpr,
):
    """Handle one edge per lane: write 1 into ``is_first`` if the edge is the first to find its source, else 0."""
    edge = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    num_edges = tl.load(offsets + num_rows)
    is_edge = edge < num_edges
    source = tl.load(sources + edge, mask=is_edge, other=0)
    entry = tl.load(labels + source, mask=is_edge, other=-1)
    tl.store(is_first + edge, (is_edge & (entry == edge)).to(tl.int32), mask=edge < num_lanes)


@triton.jit(do_not_specialize=_SIZES)
def _label_kernel(  # type: ignore[no-untyped-def]
    sources,
    labels,
    num_first,
    nodes,
    ends,
    totals,
    indices,
    offsets,
    hop,
    num_rows,
    num_lanes,
    LANES: tl.constexpr,
):
    """Handle one edge per lane: write its source's label into ``indices``, and append new nodes to ``nodes``.

    ``num_first`` is the running sum of ``is_first``. The first program writes the new counts of nodes and edges.
    """
    edge = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    num_edges = tl.load(offsets + num_rows)
    is_edge = edge < num_edges
    source = tl.load(sources + edge, mask=is_edge, other=0)
    entry = tl.load(labels + source, mask=is_edge, other=-1)
    is_new = is_edge & (entry >= 0)
    # ``entry`` is the edge that found the node. The running sum at this edge is k for the hop's k-th new node.
    rank = tl.load(num_first + entry, mask=is_new, other=1).to(tl.int64)
    last = tl.load(ends + hop + 1)
    label = tl.where(is_new, last + rank - 1, entry.to(tl.int64) + _KNOWN)
    tl.store(indices + edge, label.to(tl.int32), mask=is_edge)
    tl.store(nodes + label, source.to(tl.int64), mask=is_new & (entry == edge))
    if tl.program_id(0) == 0:
        tl.store(ends + hop + 2, last + tl.load(num_first + num_lanes - 1))
        tl.store(totals + hop, num_edges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The state of a batch during sampling, on the device: topology, keys, labels and counts."""

    graph: DeviceTopology  # offsets and in-neighbours of all nodes
    labels: torch.Tensor  # (N,) int32, see `UNSEEN`
    ends: torch.Tensor  # (L + 2,) int64: 0, the number of seeds, and the number of nodes after each hop
    totals: torch.Tensor  # (L,) int64, number of edges of each hop; 0 until the hop is sampled
    keys: torch.Tensor  # (L,) int64, each hop's random key
    # True if a hop's destinations are only the nodes that the last hop found, False if all nodes so far.
    is_merged: bool
    is_replaced: bool  # True if draws are with replacement, False if Floyd's rule applies


@dataclass(frozen=True, slots=True, kw_only=True)
class Destinations:
    """A hop's destinations and their edges. D is the room in the arrays; unused entries have no edges."""

    starts: torch.Tensor  # (D,) int64, start of each destination's in-edges in the graph
    degrees: torch.Tensor  # (D,) int64, each destination's in-degree in the graph
    offsets: torch.Tensor  # (D + 1,) int64, start of each destination's edges in the hop

    def cut(self, count: int) -> Destinations:
        """Return the first ``count`` destinations. Pure."""
        return Destinations(
            starts=self.starts[:count], degrees=self.degrees[:count], offsets=self.offsets[: count + 1]
        )


def launch_count(
    state: Sampling, nodes: torch.Tensor, *, hop: int, fanout: int, capacity: int
) -> Destinations:
    """Label a hop's destinations, and count their sampled edges. Does not wait for the device.

    Parameters
    ----------
    state : the batch's state; its labels are written
    nodes : int64, the batch's nodes so far, in first-seen order
    hop, fanout : this hop's number and fan-out
    capacity : maximum number of destinations
    """
    starts, degrees, taken = (nodes.new_empty(capacity) for _ in range(3))
    offsets = nodes.new_zeros(capacity + 1)
    if capacity:
        _count_kernel[_grid(capacity)](
            nodes,
            state.ends,
            state.graph.indptr,
            state.labels,
            starts,
            degrees,
            taken,
            hop,
            capacity,
            fanout,
            IS_MERGED=state.is_merged,
            IS_REPLACED=state.is_replaced,
            LANES=_LANES,
        )
        torch.cumsum(taken, 0, out=offsets[1:])
    return Destinations(starts=starts, degrees=degrees, offsets=offsets)


def launch_pick(
    state: Sampling,
    nodes: torch.Tensor,
    to: Destinations,
    edge_ids: torch.Tensor,
    *,
    hop: int,
    is_drawn: bool,
) -> torch.Tensor:
    """Write the destinations' sampled edges to ``edge_ids``, and return their sources. Does not wait for the device.

    Parameters
    ----------
    state : the batch's state; a new source's entry in the labels becomes the number of the first edge that found it
    nodes : int64, the batch's nodes so far
    to : the hop's destinations
    edge_ids : (M,) int64, M >= 1; written. The hop's edges may be fewer than M
    hop : this hop's number
    is_drawn : True if a destination may take fewer edges than its in-degree, so that it must draw
    """
    num_rows, grid = len(to.starts), _grid(len(edge_ids))
    # `rows` has each edge's destination. Lanes beyond the last edge ignore their entry.
    numbers = torch.arange(len(edge_ids), device=edge_ids.device)
    rows = torch.searchsorted(to.offsets[1:], numbers, right=True, out_int32=True)
    sources = state.graph.indices.new_empty(len(edge_ids))
    # Without draws, these pointers are passed and never read.
    draws, repeats = edge_ids, edge_ids
    if is_drawn:
        draws = torch.empty_like(edge_ids)
        _draw_kernel[grid](
            state.keys,
            hop,
            nodes,
            state.ends,
            rows,
            to.offsets,
            to.degrees,
            draws,
            num_rows,
            IS_MERGED=state.is_merged,
            IS_REPLACED=state.is_replaced,
            LANES=_LANES,
        )
    if is_drawn and not state.is_replaced:
        repeats = torch.empty(len(edge_ids), dtype=torch.int8, device=edge_ids.device)
        _repeat_kernel[grid](rows, to.offsets, to.degrees, draws, repeats, num_rows, LANES=_LANES)
    _find_kernel[grid](
        rows,
        to.offsets,
        to.starts,
        to.degrees,
        draws,
        repeats,
        state.graph.indices,
        state.labels,
        edge_ids,
        sources,
        num_rows,
        IS_DRAWN=is_drawn,
        IS_REPLACED=state.is_replaced,
        LANES=_LANES,
    )
    return sources


def launch_relabel(
    state: Sampling,
    nodes: torch.Tensor,
    to: Destinations,
    sources: torch.Tensor,
    indices: torch.Tensor,
    *,
    hop: int,
) -> None:
    """Write the labels of ``sources``, append new nodes, and count nodes and edges. Does not wait for the device.

    Parameters
    ----------
    state : the batch's state; its counts are written
    nodes : int64, the batch's nodes so far, with room for all possible new nodes
    to : the hop's destinations
    sources : (M,) sources of the hop's edges, see `launch_pick`
    indices : (M,) int32, written
    hop : this hop's number
    """
    num_rows, num_lanes, grid = len(to.starts), len(sources), _grid(len(sources))
    is_first = torch.empty_like(indices)
    _first_kernel[grid](sources, state.labels, is_first, to.offsets, num_rows, num_lanes, LANES=_LANES)
    num_first = torch.cumsum(is_first, 0, dtype=torch.int32)
    _label_kernel[grid](
        sources,
        state.labels,
        num_first,
        nodes,
        state.ends,
        state.totals,
        indices,
        to.offsets,
        hop,
        num_rows,
        num_lanes,
        LANES=_LANES,
    )


def _grid(num_lanes: int) -> tuple[int]:
    """Return the number of programs that have ``num_lanes`` lanes or more."""
    return (int(triton.cdiv(num_lanes, _LANES)),)
