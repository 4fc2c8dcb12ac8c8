"""Attention over in-edges as Triton kernels, one forward and two backward, without atomic additions.

`gloader.models.attention.attend` describes the result, and calls `attend_by_kernels` on a GPU. A Triton kernel runs as
many programs (instances), each on its part of the result. A loop is an edge from a destination to itself; the adjacency
does not list it. A tile is the block of edges and columns that a program loads together. ``lane * 0`` makes an array of
a tile's size from one number. Rows are own (``IS_OWN``) if each head has separate rows, otherwise all heads share them.

- `_forward_kernel`: for each destination and head, the softmax of its edges' scores, then the weighted mean row.
- `_edges_kernel`: for each destination and head, the weight and the score gradient of each edge.
- `_sources_kernel`: for each source row, the gradient of the row and of its score, as sums over the row's out-edges.

Each result is written by one program, which adds its terms in a fixed order: every run gives the same bits.

Arguments that several kernels share: ``rows``, ``scores`` and ``importance`` as in `attend`; ``indptr`` and ``indices``
of the adjacency; ``grad`` (D, HEADS, WIDTH), the gradient of the result, with the strides ``step_dst`` and
``step_head``. A node's position for a head is node * HEADS + head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import triton
import triton.language as tl

from gloader.models.adjacency import by_source

if TYPE_CHECKING:
    from gloader.models.adjacency import Adjacency

# 16 edges are a common fan-out. With 128 columns a tile has 16 elements for each of its 128 threads.
_EDGES: Final = 16  # edges of a tile
_MOST_COLUMNS: Final = 128  # maximum number of columns of a tile
_WARPS: Final = 4  # warps of a program, 32 threads each
_SLOPE = tl.constexpr(0.2)  # `gloader.models.attention.NEGATIVE_SLOPE`
# A number below every score. Unlike -inf, its difference with itself is 0.
_LOWEST = tl.constexpr(-3.0e38)
_TINY = tl.constexpr(1.17549435e-38)  # the smallest normal number
# Arguments for which Triton compiles no special kernels: they differ between batches.
_SIZES: Final = ("num_dst", "num_edges", "step_dst", "step_head")


@triton.jit
def _score(scores, source, destination, is_edge):  # type: ignore[no-untyped-def]
    """Return the edges' scores before and after the leaky ReLU. Lanes without an edge get -inf after it.

    ``source`` and ``destination`` are positions in ``scores`` (nodes, HEADS, 2). A lane is one element of a tile.
    """
    total = tl.load(scores + source * 2, mask=is_edge, other=0.0) + tl.load(scores + destination * 2 + 1)
    return total, tl.where(is_edge, tl.where(total > 0, total, total * _SLOPE), float("-inf"))


@triton.jit
def _edge(scores, indices, edge, end, dst_head, head, HEADS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return four values per ``edge``: whether it is before ``end``, its source, and both results of `_score`.

    ``end`` is the end of the destination's edges, and ``dst_head`` the destination's position for this head.
    """
    is_edge = edge < end
    source = tl.load(indices + edge, mask=is_edge, other=0).to(tl.int64)
    total, slope = _score(scores, source * HEADS + head, dst_head, is_edge)
    return is_edge, source, total, slope


@triton.jit
def _importance(importance, edge, is_edge, IS_WEIGHTED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return each edge's weight in the softmax: the number of edges that it stands for."""
    if IS_WEIGHTED:  # noqa: SIM108 - the branch is decided at compile time
        weight = tl.load(importance + edge, mask=is_edge, other=0.0)
    else:
        weight = is_edge.to(tl.float32)
    return weight


@triton.jit
def _dot(rows, place, is_edge, upstream, WIDTH: tl.constexpr, EDGES: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the scalar products (EDGES,) of the rows with the numbers ``place`` (EDGES,) and one gradient row.

    ``upstream`` points to this gradient row, (WIDTH,).
    """
    products = tl.zeros((EDGES,), tl.float32)
    for start in range(0, WIDTH, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        is_column = column < WIDTH
        row = tl.load(
            rows + place[:, None] * WIDTH + column[None, :],
            mask=is_edge[:, None] & is_column[None, :],
            other=0.0,
        )
        other = tl.load(upstream + column, mask=is_column, other=0.0)
        products += tl.sum(row.to(tl.float32) * other.to(tl.float32)[None, :], axis=1)
    return products


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    rows,
    scores,
    indptr,
    indices,
    importance,
    result,
    tops,
    totals,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_OWN: tl.constexpr,
    HAS_LOOPS: tl.constexpr,
    IS_WEIGHTED: tl.constexpr,
):
    """Compute one destination's mean row for one head, in two scans over its edges.

    The first scan finds the scores' maximum and the sum of their exponentials. The second one adds the weighted rows.
    ``result`` (D, HEADS, WIDTH); ``tops`` and ``totals`` (D, HEADS) receive the maximum and the sum.
    """
    dst_head = tl.program_id(0).to(tl.int64)  # one program per destination and head
    node = dst_head // HEADS
    head = dst_head % HEADS
    begin = tl.load(indptr + node).to(tl.int64)
    end = tl.load(indptr + node + 1).to(tl.int64)
    lane = tl.arange(0, EDGES)
    # Before each tile, `top` is the maximum of the earlier scores, and `total` the sum of exp(score - top). A tile with
    # a larger score scales down the sum of earlier tiles.
    if HAS_LOOPS:
        # The loop is a tile with one edge.
        _, loop_slope = _score(scores, dst_head + lane * 0, dst_head, lane < 1)
        loop = tl.max(loop_slope, axis=0)
        top = loop
        total = tl.full((), 1.0, tl.float32)
    else:
        top = tl.full((), _LOWEST, tl.float32)
        total = tl.full((), 0.0, tl.float32)
    for start in range(begin, end, EDGES):
        edge = start + lane
        is_edge, _, _, slope = _edge(scores, indices, edge, end, dst_head, head, HEADS)
        before = top
        top = tl.maximum(before, tl.max(slope, axis=0))
        power = tl.exp(slope - top) * _importance(importance, edge, is_edge, IS_WEIGHTED)
        total = total * tl.exp(before - top) + tl.sum(power, axis=0)
    # Without edges and loop the sum is zero. This gives 0 / tiny = 0, not NaN.
    total = tl.maximum(total, _TINY)
    tl.store(tops + dst_head, top)
    tl.store(totals + dst_head, total)
    for first in range(0, WIDTH, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        is_column = column < WIDTH
        sums = tl.zeros((COLUMNS,), tl.float32)
        if HAS_LOOPS:
            loop_place = dst_head if IS_OWN else node
            loop_row = tl.load(rows + loop_place * WIDTH + column, mask=is_column, other=0.0)
            sums += loop_row.to(tl.float32) * tl.exp(loop - top)
        for start in range(begin, end, EDGES):
            edge = start + lane
            is_edge, source, _, slope = _edge(scores, indices, edge, end, dst_head, head, HEADS)
            power = tl.exp(slope - top) * _importance(importance, edge, is_edge, IS_WEIGHTED)
            place = source * HEADS + head if IS_OWN else source
            row = tl.load(
                rows + place[:, None] * WIDTH + column[None, :],
                mask=is_edge[:, None] & is_column[None, :],
                other=0.0,
            )
            sums += tl.sum(row.to(tl.float32) * power[:, None], axis=0)
        tl.store(result + dst_head * WIDTH + column, sums / total, mask=is_column)


@triton.jit(do_not_specialize=_SIZES)
def _edges_kernel(  # type: ignore[no-untyped-def]
    rows,
    scores,
    indptr,
    indices,
    importance,
    tops,
    totals,
    grad,
    step_dst,
    step_head,
    num_edges,
    weights,
    grad_edges,
    ends,
    grad_scores,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_OWN: tl.constexpr,
    HAS_LOOPS: tl.constexpr,
    IS_WEIGHTED: tl.constexpr,
):
    """Compute the weights and score gradients of one destination's edges and its loop, for one head.

    An edge's product is the scalar product of its source row and the gradient row. The first scan over the edges adds
    the weighted products. The second one subtracts this sum from each product, as the derivative of a softmax does, and
    stores the results. ``tops`` and ``totals`` come from the forward kernel.

    In ``weights`` and ``grad_edges`` (E + D, HEADS), the loops follow all edges. ``ends`` (E,) receives each edge's
    destination, and ``grad_scores`` (U, HEADS, 2) the gradient of the destination's score.
    """
    dst_head = tl.program_id(0).to(tl.int64)
    node = dst_head // HEADS
    head = dst_head % HEADS
    begin = tl.load(indptr + node).to(tl.int64)
    end = tl.load(indptr + node + 1).to(tl.int64)
    top = tl.load(tops + dst_head)
    total = tl.load(totals + dst_head)
    upstream = grad + node * step_dst + head * step_head
    lane = tl.arange(0, EDGES)
    is_first = lane < 1
    # The gradient of the softmax's denominator: the weighted mean of the edges' products.
    common = tl.full((), 0.0, tl.float32)
    if HAS_LOOPS:
        # The loop is a tile with one edge.
        loop_score, loop_slope = _score(scores, dst_head + lane * 0, dst_head, is_first)
        loop_weight = tl.exp(loop_slope - top) / total
        loop_place = (dst_head if IS_OWN else node) + lane * 0
        loop_product = _dot(rows, loop_place, is_first, upstream, WIDTH, EDGES, COLUMNS)
        common += tl.sum(loop_weight * loop_product, axis=0)
    for start in range(begin, end, EDGES):
        edge = start + lane
        is_edge, source, score, slope = _edge(scores, indices, edge, end, dst_head, head, HEADS)
        weight = tl.exp(slope - top) * _importance(importance, edge, is_edge, IS_WEIGHTED) / total
        place = source * HEADS + head if IS_OWN else source
        common += tl.sum(weight * _dot(rows, place, is_edge, upstream, WIDTH, EDGES, COLUMNS), axis=0)
    grad_dst = tl.full((), 0.0, tl.float32)
    if HAS_LOOPS:
        loop_grad = loop_weight * (loop_product - common)
        loop_grad = tl.where(is_first, tl.where(loop_score > 0, loop_grad, loop_grad * _SLOPE), 0.0)
        grad_dst += tl.sum(loop_grad, axis=0)
        loop_index = (num_edges + node) * HEADS + head + lane
        tl.store(weights + loop_index, loop_weight, mask=is_first)
        tl.store(grad_edges + loop_index, loop_grad, mask=is_first)
    # Rereading the rows from the cache is faster than storing their products in memory.
    for start in range(begin, end, EDGES):
        edge = start + lane
        is_edge, source, score, slope = _edge(scores, indices, edge, end, dst_head, head, HEADS)
        weight = tl.exp(slope - top) * _importance(importance, edge, is_edge, IS_WEIGHTED) / total
        place = source * HEADS + head if IS_OWN else source
        product = _dot(rows, place, is_edge, upstream, WIDTH, EDGES, COLUMNS)
        grad_edge = weight * (product - common)
        grad_edge = tl.where(score > 0, grad_edge, grad_edge * _SLOPE)
        grad_dst += tl.sum(grad_edge, axis=0)
        tl.store(weights + edge * HEADS + head, weight, mask=is_edge)
        tl.store(grad_edges + edge * HEADS + head, grad_edge, mask=is_edge)
        tl.store(ends + edge, tl.zeros((EDGES,), tl.int64) + node, mask=is_edge & (head == 0))
    tl.store(grad_scores + dst_head * 2 + 1, grad_dst)


@triton.jit(do_not_specialize=_SIZES)
def _sources_kernel(  # type: ignore[no-untyped-def]
    order,
    bounds,
    weights,
    grad_edges,
    ends,
    grad,
    step_dst,
    step_head,
    num_edges,
    num_dst,
    grad_scores,
    grad_rows,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_OWN: tl.constexpr,
    HAS_LOOPS: tl.constexpr,
    HAS_ROWS: tl.constexpr,
):
    """Compute the gradients of one row and of its source scores: sums over the row's out-edges.

    ``order`` (E,) lists the edges sorted by source, and ``bounds`` (U + 1,) each source's first position there. The
    edges' weights, gradients and destinations ``ends`` come from `_edges_kernel`. Without ``HAS_ROWS`` only the scores'
    gradients are computed.
    """
    # One program per row: per source and head for own rows, else per source.
    place = tl.program_id(0).to(tl.int64)
    node = place // HEADS if IS_OWN else place
    # Shared rows add the gradients of all heads.
    first_head = place % HEADS if IS_OWN else 0
    last_head = first_head + 1 if IS_OWN else HEADS
    begin = tl.load(bounds + node).to(tl.int64)
    end = tl.load(bounds + node + 1).to(tl.int64)
    lane = tl.arange(0, EDGES)
    is_dst = node < num_dst
    for head in range(first_head, last_head):
        score = tl.full((), 0.0, tl.float32)
        for start in range(begin, end, EDGES):
            is_edge = start + lane < end
            edge = tl.load(order + start + lane, mask=is_edge, other=0)
            score += tl.sum(tl.load(grad_edges + edge * HEADS + head, mask=is_edge, other=0.0), axis=0)
        if HAS_LOOPS:
            score += tl.load(grad_edges + (num_edges + node) * HEADS + head, mask=is_dst, other=0.0)
        score_index = (node * HEADS + head) * 2
        tl.store(grad_scores + score_index, score)
        # The destinations' gradients come from the previous kernel.
        tl.store(grad_scores + score_index + 1, 0.0, mask=node >= num_dst)
    if HAS_ROWS:
        for first in range(0, WIDTH, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            is_column = column < WIDTH
            sums = tl.zeros((COLUMNS,), tl.float32)
            for head in range(first_head, last_head):
                if HAS_LOOPS:
                    loop_weight = tl.load(weights + (num_edges + node) * HEADS + head, mask=is_dst, other=0.0)
                    upstream = tl.load(
                        grad + node * step_dst + head * step_head + column, mask=is_column & is_dst, other=0.0
                    )
                    sums += upstream.to(tl.float32) * loop_weight
                for start in range(begin, end, EDGES):
                    is_edge = start + lane < end
                    edge = tl.load(order + start + lane, mask=is_edge, other=0)
                    weight = tl.load(weights + edge * HEADS + head, mask=is_edge, other=0.0)
                    destination = tl.load(ends + edge, mask=is_edge, other=0).to(tl.int64)
                    row = tl.load(
                        grad + (destination * step_dst + head * step_head)[:, None] + column[None, :],
                        mask=is_edge[:, None] & is_column[None, :],
                        other=0.0,
                    )
                    sums += tl.sum(row.to(tl.float32) * weight[:, None], axis=0)
            tl.store(grad_rows + place * WIDTH + column, sums, mask=is_column)


def attend_by_kernels(
    rows: torch.Tensor,
    scores: torch.Tensor,
    edges: Adjacency,
    importance: torch.Tensor | None,
    has_loops: bool,
) -> torch.Tensor:
    """Return the result of `gloader.models.attention.attend`.

    Parameters
    ----------
    rows, scores, edges, importance, has_loops : see `gloader.models.attention.attend`
    """
    result: torch.Tensor = _KernelAttention.apply(rows, scores.contiguous(), edges, importance, has_loops)  # type: ignore[no-untyped-call]
    return result.transpose(0, 1)


class _KernelAttention(torch.autograd.Function):
    """The kernels as an operation of autograd.

    The forward pass saves two numbers per destination and head, from which the backward pass recomputes the attention.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        scores: torch.Tensor,
        edges: Adjacency,
        importance: torch.Tensor | None,
        has_loops: bool,
    ) -> torch.Tensor:
        """Return the weighted means (D, heads, W)."""
        result, tops, totals = launch_forward(rows, scores, edges, importance, has_loops=has_loops)
        ctx.edges, ctx.has_loops = edges, has_loops
        ctx.save_for_backward(rows, scores, tops, totals, *(() if importance is None else (importance,)))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return a gradient or None for each parameter of `forward`, in their order."""
        grad = grads[0] if grads[0].stride(2) == 1 else grads[0].contiguous()
        edges: Adjacency = ctx.edges
        grad_rows, grad_scores = launch_backward(
            ctx.saved_tensors,
            edges,
            by_source(edges.indices, edges.num_src),
            grad,
            has_loops=ctx.has_loops,
            needs_rows=ctx.needs_input_grad[0],
        )
        return grad_rows, grad_scores, None, None, None


def launch_forward(
    rows: torch.Tensor,
    scores: torch.Tensor,
    edges: Adjacency,
    importance: torch.Tensor | None,
    *,
    has_loops: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the result (D, heads, W) with ``scores``' dtype, and each softmax's maximum and sum (D, heads).

    Parameters
    ----------
    rows, scores, edges, importance, has_loops : see `gloader.models.attention.attend`; contiguous
    """
    heads, width = scores.shape[1], rows.shape[-1]
    result = scores.new_empty(edges.num_dst, heads, width)
    # Two arrays are needed: halves of one array may not be aligned to 16 bytes, and Triton would compile both cases.
    tops, totals = (scores.new_empty(edges.num_dst, heads) for _ in range(2))
    if edges.num_dst:
        with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
            _forward_kernel[(edges.num_dst * heads,)](
                rows,
                scores,
                edges.indptr,
                edges.indices,
                scores if importance is None else importance,  # an unused pointer, if there is no importance
                result,
                tops,
                totals,
                IS_OWN=rows.dim() == 3,
                HAS_LOOPS=has_loops,
                IS_WEIGHTED=importance is not None,
                num_warps=_WARPS,
                **tile_shape(width, heads),
            )
    return result, tops, totals


def launch_backward(
    saved: tuple[torch.Tensor, ...],
    edges: Adjacency,
    sources: tuple[torch.Tensor, torch.Tensor],
    grad: torch.Tensor,
    *,
    has_loops: bool,
    needs_rows: bool,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the gradients for ``rows``, or None if not needed, and for ``scores``.

    Parameters
    ----------
    saved : rows, scores, each softmax's maximum and sum, and the importance if present
    edges : the forward pass's edges
    sources : result of `by_source` for these edges
    grad : (D, heads, W) gradient of the result; contiguous columns
    has_loops : whether each destination is also its own source
    needs_rows : whether ``rows`` need a gradient
    """
    rows, scores, tops, totals, *importance = saved
    num_edges, num_dst, heads, width = edges.num_edges, edges.num_dst, scores.shape[1], rows.shape[-1]
    weights, grad_edges = (scores.new_empty(num_edges + num_dst, heads) for _ in range(2))
    ends = torch.empty_like(edges.indices)
    grad_scores = torch.empty_like(scores)
    grad_rows = torch.empty_like(rows) if needs_rows else None
    shape = tile_shape(width, heads)
    is_own = rows.dim() == 3
    steps = grad.stride()[:2]
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        if num_dst:
            _edges_kernel[(num_dst * heads,)](
                rows,
                scores,
                edges.indptr,
                edges.indices,
                importance[0] if importance else scores,
                tops,
                totals,
                grad,
                *steps,
                num_edges,
                weights,
                grad_edges,
                ends,
                grad_scores,
                IS_OWN=is_own,
                HAS_LOOPS=has_loops,
                IS_WEIGHTED=bool(importance),
                num_warps=_WARPS,
                **shape,
            )
        if len(rows):
            _sources_kernel[(len(rows) * (heads if is_own else 1),)](
                *sources,
                weights,
                grad_edges,
                ends,
                grad,
                *steps,
                num_edges,
                num_dst,
                grad_scores,
                rows if grad_rows is None else grad_rows,
                IS_OWN=is_own,
                HAS_LOOPS=has_loops,
                HAS_ROWS=needs_rows,
                num_warps=_WARPS,
                **shape,
            )
    return grad_rows, grad_scores


def tile_shape(width: int, heads: int) -> dict[str, int]:
    """Return the kernels' compile-time sizes, for rows of ``width`` columns per head. Pure."""
    columns = min(int(triton.next_power_of_2(width)), _MOST_COLUMNS)
    return {"WIDTH": width, "HEADS": heads, "EDGES": _EDGES, "COLUMNS": columns}
