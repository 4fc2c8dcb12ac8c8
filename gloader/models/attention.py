"""Attention-weighted sums over in-edges, for all heads at once, without a row per edge in memory.

Each edge has a score per head: its source's score plus its destination's score, through a leaky ReLU. A softmax over
a destination's in-edges turns scores into weights, and the result is the weighted mean of the source rows. A loop is
an edge from a destination to itself; the adjacency does not list it.

`gloader.models.gat` computes the scores and calls the functions here. `attend` computes a batch, with gradients: by
Triton kernels if the GPU runs them, otherwise by torch's operations. `RunningSoftmax` computes many in-edges piece by
piece, without gradients, for inference. Shapes: U source rows, D destinations, E edges, W columns of a head's row.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from gloader.models.adjacency import Adjacency, by_source, stay_eager, sum_neighbors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

NEGATIVE_SLOPE = 0.2  # of the leaky ReLU
_SUM_MODE = 0  # torch's number for the mode "sum" of an embedding bag


def attend(
    rows: torch.Tensor,
    scores: torch.Tensor,
    edges: Adjacency,
    *,
    importance: torch.Tensor | None = None,
    has_loops: bool = True,
    edge_terms: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mean of each destination's source rows, weighted by each head's softmax scores.

    No operation adds with atomics or waits for the device, so each run gives the same bits. Memory beyond the result
    and the gradients is O(E heads), never O(E F).

    Parameters
    ----------
    rows : (U, heads, W) with separate rows for each head, or (U, W) shared by all heads; float32, or bfloat16 that is
        summed in float32
    scores : (U, heads, 2) each node's score as a source, then its score as a destination
    edges : E edges; the destinations are the first D of the U nodes
    importance : (E,) each edge's weight in the softmax, as a number of edges; None means one
    has_loops : whether each destination is also its own source
    edge_terms : (E, heads) terms that are added to the edges' scores; with loops (E + D, heads), the loops' terms
        last; None means no terms

    Returns
    -------
    (heads, D, W), with ``scores``' dtype; zeros for a destination without sources
    """
    if not has_loops and not edges.num_edges:
        # torch's operations accept no empty edges. The sums are 0, and each input still gets a gradient of 0.
        nothing = rows[:0].sum().to(scores.dtype) + scores[:0].sum()
        nothing = nothing if edge_terms is None else nothing + edge_terms.sum()
        return nothing.expand(scores.shape[1], edges.num_dst, rows.shape[-1])
    # The kernels accept no edge terms and no float64, which only gradient tests use. torch's compiler fuses torch's
    # operations by itself.
    kernels = (
        attention_kernels(rows.device)
        if scores.dtype == torch.float32 and edge_terms is None and not torch.compiler.is_compiling()
        else None
    )
    if kernels is not None:
        return kernels(rows.contiguous(), scores, edges, importance, has_loops)
    return attend_in_torch(rows.contiguous(), scores, edges, importance, has_loops, edge_terms)


def attend_between(
    rows: torch.Tensor,
    scores_src: torch.Tensor,
    scores_dst: torch.Tensor,
    edges: Adjacency,
    *,
    importance: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the result of `attend` without loops, for sources and destinations that are separate sets of nodes.

    Parameters
    ----------
    rows : (U, heads, W) or (U, W) source rows, see `attend`
    scores_src : (U, heads) the sources' scores
    scores_dst : (D, heads) the destinations' scores
    edges : E edges from U sources to D destinations
    importance : see `attend`

    Returns
    -------
    (heads, D, W), with the scores' dtype; zeros for a destination without sources
    """
    # The kernels accept one node table, with the sources' scores in one column and the destinations' in the other.
    num_src, num_dst = len(scores_src), len(scores_dst)
    num_nodes = max(num_src, num_dst)
    scores = torch.stack(
        (
            functional.pad(scores_src, (0, 0, 0, num_nodes - num_src)),
            functional.pad(scores_dst, (0, 0, 0, num_nodes - num_dst)),
        ),
        dim=2,
    )
    if num_src < num_nodes:
        rows = functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, num_nodes - num_src))
    edges = Adjacency(edges.indptr, edges.indices, num_src=num_nodes)
    return attend(rows, scores, edges, importance=importance, has_loops=False)


def attend_in_torch(
    rows: torch.Tensor,
    scores: torch.Tensor,
    edges: Adjacency,
    importance: torch.Tensor | None,
    has_loops: bool,
    edge_terms: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the result of `attend`, computed with torch operations instead of the kernels.

    Parameters
    ----------
    rows, scores, edges, importance, has_loops, edge_terms : see `attend`; ``rows`` are contiguous
    """
    result: torch.Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        rows, scores, edges, importance, has_loops, edge_terms
    )
    return result


@cache
def attention_kernels(place: torch.device) -> Callable[..., torch.Tensor] | None:
    """Return `attend_by_kernels` if it runs on the device ``place`` with the results of torch.

    Otherwise return None, and log the reason. A CPU has no such kernels: there the result is None without a log line.
    The kernels are tried once, like `gloader.device.cuda.gather_kernel`, because an installed Triton may be unable to
    launch.
    """
    if place.type != "cuda":
        return None
    try:
        # This import is late, because Triton looks for a GPU at its import.
        from gloader.models.attention_kernels import attend_by_kernels

        for computed, expected in zip(
            _trial(attend_by_kernels, place), _trial(attend_in_torch, place), strict=True
        ):
            if not torch.allclose(computed, expected, rtol=1e-4, atol=1e-5):
                raise RuntimeError("their sums differ from torch's")  # noqa: TRY301 - as any other failure
    except Exception as error:  # noqa: BLE001 - after any failure torch can attend
        reason = (str(error).splitlines() or [""])[0]
        logger.warning(
            "gloader's attention kernels do not run on %s (%s: %s): torch's operations are used instead, which is "
            "slower. The kernels need Triton (pip install triton), a C compiler and Python's headers (apt-get install "
            "gcc python3-dev), and a GPU that Triton knows",
            place,
            type(error).__name__,
            reason,
        )
        return None
    return attend_by_kernels


def _trial(attend_by: Callable[..., torch.Tensor], place: torch.device) -> tuple[torch.Tensor, ...]:
    """Return the result, the rows' gradient and the scores' gradient for four edges between three nodes."""
    # Gradients are tried too, even if the first call needs none.
    with torch.inference_mode(mode=False), torch.enable_grad(), torch.autocast(place.type, enabled=False):
        numbers = torch.arange(18.0, device=place).sin()
        rows, scores = numbers[:12].view(3, 2, 2).requires_grad_(), numbers[6:].view(3, 2, 2).requires_grad_()
        edges = Adjacency(
            torch.tensor([0, 3, 4], device=place), torch.tensor([2, 1, 2, 0], device=place), num_src=3
        )
        result = attend_by(rows, scores, edges, None, True)
        return result, *torch.autograd.grad(result, (rows, scores), result.detach().cos())


def edge_scores(
    sources: torch.Tensor,
    destinations: torch.Tensor,
    ends: tuple[torch.Tensor, torch.Tensor],
    terms: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return each edge's score, (E, heads).

    Parameters
    ----------
    sources, destinations : (nodes, heads) the nodes' scores as sources and as destinations
    ends : source and destination of each edge, both (E,)
    terms : (E, heads) further score terms of each edge; None means no terms
    """
    total = sources.index_select(0, ends[0]).add_(destinations.index_select(0, ends[1]))
    if terms is not None:
        total.add_(terms)
    return functional.leaky_relu_(total, NEGATIVE_SLOPE)


def reduce_edges(values: torch.Tensor, edges: Adjacency, *, by: str) -> torch.Tensor:
    """Return the "sum" or "max" of each destination's ``values``, (D, heads).

    A destination without edges gets the sum 0 or the maximum -inf. Edges are sorted by destination, so each sum has a
    fixed order on every device.

    Parameters
    ----------
    values : (E, heads) one row per edge
    edges : E edges into D destinations
    by : "sum" or "max"
    """
    # `unsafe` skips a check of the offsets, which would wait for the device.
    result: torch.Tensor = torch.segment_reduce(values, by, offsets=edges.indptr, unsafe=True)
    return result


class RunningSoftmax:
    """A softmax-weighted mean of rows whose edges arrive in pieces. Computes no gradients.

    Three values are kept per destination and head: the largest score so far, the sum of exp(score - largest), and
    the sum of the rows with these weights. A piece with a larger score scales down both sums.

    Parameters
    ----------
    values : one array (N, W) of rows for each head
    like : (n, heads) float tensor, with the shape and dtype of the destinations' scores
    """

    def __init__(self, values: Sequence[torch.Tensor], like: torch.Tensor) -> None:
        self._values = values
        self._top = torch.full_like(like, torch.finfo(like.dtype).min)  # largest score so far, (n, heads)
        self._total = torch.zeros_like(like)  # sum of the weights, (n, heads)
        # For each head: weighted sums of rows, (n, W).
        self._sums = [value.new_zeros(len(like), value.shape[1]) for value in values]

    def add_edges(self, scores: torch.Tensor, edges: Adjacency) -> None:
        """Add a piece of edges.

        Parameters
        ----------
        scores : (E, heads) the edges' scores; overwritten
        edges : E edges from the N rows to the n destinations
        """
        decay = self._raise_to(reduce_edges(scores, edges, by="max"))
        powers = scores.sub_(self._top.index_select(0, edges.dst)).exp_()
        self._total = (self._total * decay).add_(reduce_edges(powers, edges, by="sum"))
        # Heads are processed one by one: a piece is chosen to fill the memory, and all heads at once would double it.
        for head, value in enumerate(self._values):
            sums = sum_neighbors(value, edges, powers[:, head].contiguous())
            self._sums[head] = sums.addcmul_(self._sums[head], decay[:, head, None])

    def add_loops(self, scores: torch.Tensor, nodes: torch.Tensor) -> None:
        """Add an edge from each destination to itself.

        Parameters
        ----------
        scores : (n, heads) the loops' scores; overwritten
        nodes : (n,) int64, the destinations' row numbers among the N rows
        """
        decay = self._raise_to(scores)
        powers = scores.sub_(self._top).exp_()
        self._total = (self._total * decay).add_(powers)
        for head, value in enumerate(self._values):
            sums = value[nodes] * powers[:, head, None]
            self._sums[head] = sums.addcmul_(self._sums[head], decay[:, head, None])

    def rows(self) -> torch.Tensor:
        """Return the weighted mean rows, (heads, n, W); zeros for a destination without edges."""
        total = self._total.clamp(min=torch.finfo(self._total.dtype).tiny)
        return torch.stack(self._sums).div_(total.t().unsqueeze(2))

    def _raise_to(self, scores: torch.Tensor) -> torch.Tensor:
        """Raise each destination's largest score; return the factor for the sums so far, (n, heads)."""
        before, self._top = self._top, torch.maximum(self._top, scores)
        return (before - self._top).exp_()


class _Attention(torch.autograd.Function):
    """`attend` as an operation of autograd. It divides the row sums by the softmax sums: D quotients instead of E.

    ``slopes`` (E, heads) are the scores after the leaky ReLU, and ``powers`` their exponentials after subtracting the
    destination's maximum. With loops both have E + D rows, the loops last. The row sums are one embedding bag per
    destination and head. ``number`` (heads, 1) are the head numbers, which address a head's rows in a flat table.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        scores: torch.Tensor,
        edges: Adjacency,
        importance: torch.Tensor | None,
        has_loops: bool,
        edge_terms: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the weighted means (heads, D, W); parameters as in `attend`."""
        stay_eager()
        num_dst, num_edges, heads = edges.num_dst, edges.num_edges, scores.shape[1]
        # The loops follow all edges: one operation gives all scores. Sums per destination add the loops by slices.
        dst, src = edges.pairs_and_loops if has_loops else edges.pairs
        slopes = edge_scores(scores[..., 0], scores[..., 1], (src, dst), edge_terms)
        # The maximum is subtracted so that no exponential overflows. The shift and its gradient cancel in the softmax.
        top = reduce_edges(slopes[:num_edges], edges, by="max")
        top = torch.maximum(top, slopes[num_edges:]) if has_loops else top
        powers = (slopes - top.index_select(0, dst)).exp_()
        if importance is not None:
            powers[:num_edges].mul_(importance.unsqueeze(1))
        total = reduce_edges(powers[:num_edges], edges, by="sum")
        # Without edges and loop the sum is zero. The smallest normal number then gives 0 / tiny = 0, not NaN.
        total = total.add_(powers[num_edges:]) if has_loops else total.clamp_(torch.finfo(total.dtype).tiny)

        number = torch.arange(heads, device=src.device, dtype=src.dtype).unsqueeze(1)
        weights = powers.to(rows.dtype)
        sums = _bags(
            rows.view(-1, rows.shape[-1]),
            _of_heads(rows, edges.indices, number),
            torch.add(edges.indptr[:-1], number, alpha=num_edges),
            weights[:num_edges].t().contiguous(),
        ).to(total.dtype)  # otherwise the next two steps would round each sum again
        if has_loops:
            dst_rows = rows[:num_dst].transpose(0, 1) if rows.dim() == 3 else rows[:num_dst]
            sums.addcmul_(dst_rows, powers[num_edges:].t().unsqueeze(2))
        ctx.edges, ctx.ends, ctx.number = edges, (dst, src), number
        ctx.save_for_backward(rows, powers, slopes, total)
        return sums.div_(total.t().unsqueeze(2))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return a gradient or None for each parameter of `forward`, in their order."""
        rows, powers, slopes, total = ctx.saved_tensors
        edges: Adjacency = ctx.edges
        (dst, src), number = ctx.ends, ctx.number
        num_edges, num_dst, num_src = edges.num_edges, edges.num_dst, len(rows)
        heads, _, width = grads[0].shape
        grad = torch.div(grads[0], total.t().unsqueeze(2), out=rows.new_empty(grads[0].shape)).view(-1, width)
        # `at_dst` (heads, E) is the position of each edge's destination row in `grad`. `each` is the scalar product of
        # this row with the source row.
        at_dst = torch.add(dst, number, alpha=num_dst)
        each = torch.ops.aten._embedding_bag_per_sample_weights_backward(  # noqa: SLF001 - no public name
            grad,
            rows.view(-1, width),
            _of_heads(rows, src, number).view(-1),
            at_dst[:, 0],
            at_dst.view(-1),
            _SUM_MODE,
        )
        grad_slopes = torch.mul(each.view(heads, -1).t(), powers, out=torch.empty_like(slopes))
        # The gradient of the softmax's denominator, one number per destination and head. It is the sum of exactly the
        # products from which it is subtracted, so that their bfloat16 rounding cancels out.
        common = reduce_edges(grad_slopes[:num_edges], edges, by="sum")
        if len(dst) > num_edges:
            common.add_(grad_slopes[num_edges:])
        grad_slopes.addcmul_(powers, common.div_(total).index_select(0, dst), value=-1)
        grad_edges = torch.ops.aten.leaky_relu_backward(grad_slopes, slopes, NEGATIVE_SLOPE, True)
        grad_dst = reduce_edges(grad_edges[:num_edges], edges, by="sum")
        if len(dst) > num_edges:
            grad_dst.add_(grad_edges[num_edges:])

        # The sources' gradients are sums over the edges in a fixed order: equal in every run.
        order, bounds = by_source(src, num_src)
        grad_src = functional.embedding_bag(order, grad_edges, bounds, mode="sum", include_last_offset=True)
        grad_dst = functional.pad(grad_dst, (0, 0, 0, num_src - num_dst))
        grad_rows = None
        if ctx.needs_input_grad[0]:
            ordered = powers.to(rows.dtype).index_select(0, order)
            if rows.dim() == 3:
                starts = torch.add(bounds[:-1], number, alpha=len(src))
                at_dst = at_dst.index_select(1, order)
                grad_rows = _bags(grad, at_dst, starts, ordered.t().contiguous()).transpose(0, 1)
            else:
                # A source's bag holds all heads of all its edges.
                at_dst = torch.add(dst.index_select(0, order).unsqueeze(1), number.t(), alpha=num_dst)
                grad_rows = _bags(grad, at_dst, (bounds[:-1] * heads).unsqueeze(0), ordered)[0]
        grad_terms = grad_edges if ctx.needs_input_grad[5] else None  # 5 is the position of `edge_terms`
        return grad_rows, torch.stack((grad_src, grad_dst), dim=2), None, None, None, grad_terms


def _of_heads(rows: torch.Tensor, src: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Return the positions of each head's source rows, (heads, E), in the table for all ``rows``.

    Parameters
    ----------
    rows : (U, heads, W), or (U, W) shared by all heads
    src : (E,) sources
    number : (heads, 1) head numbers
    """
    return (
        torch.add(number, src, alpha=len(number))
        if rows.dim() == 3
        else src.expand(len(number), -1).contiguous()
    )


def _bags(
    table: torch.Tensor, index: torch.Tensor, starts: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sum of the table rows in each bag, (groups, bags, W).

    Parameters
    ----------
    table : (R, W) the table
    index : each element's row number in the table
    starts : (groups, bags) each bag's first element; a bag ends at the next bag's first element
    weights : one weight per element, with ``table``'s dtype
    """
    sums = functional.embedding_bag(
        index.view(-1), table, starts.reshape(-1), mode="sum", per_sample_weights=weights.view(-1)
    )
    return sums.view(*starts.shape, -1)
