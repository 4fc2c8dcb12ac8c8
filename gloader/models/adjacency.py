"""One hop's edges (`Adjacency`), and sums of rows over in-edges (`sum_neighbors`, `mean_neighbors`).

The convolutions of `gloader.models` call these functions. An edge leads from a source node to a destination node. A sum
adds the rows of a destination's sources. It is computed as an embedding bag: torch adds the table rows of each bag
without a copy per edge. So neither the forward nor the backward pass holds a row per edge in memory. Shapes: D
destinations, E edges, N nodes, F columns of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.types import DeviceBlock


class Adjacency:
    """A bipartite CSC graph on the compute device, with each destination's in-edges in order.

    Parameters
    ----------
    indptr : (D + 1,) int32 or int64 offsets, from 0 to E
    indices : (E,) each edge's source, with ``indptr``'s dtype
    num_src : number of sources
    features : (E, F_e) float32 edge features; None without features, or if no layer reads them
    """

    def __init__(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        *,
        num_src: int,
        features: torch.Tensor | None = None,
    ) -> None:
        self.indptr = indptr
        self.indices = indices
        self.num_src = num_src
        self.features = features

    @classmethod
    def of_block(cls, block: DeviceBlock) -> Adjacency:
        """Return the edges of ``block``. Shares its tensors."""
        return cls(block.indptr, block.indices, num_src=block.num_src, features=block.edge_x)

    @property
    def num_dst(self) -> int:
        """D, the number of destinations."""
        return int(self.indptr.shape[0]) - 1

    @property
    def num_edges(self) -> int:
        """E, the number of edges."""
        return int(self.indices.shape[0])

    @property
    def wanted_features(self) -> torch.Tensor:
        """The edge features (E, F_e), for a layer that reads them."""
        assert self.features is not None  # noqa: S101 - layers that read edge features are given them
        return self.features

    @cached_property
    def counts(self) -> torch.Tensor:
        """Each destination's number of in-edges, (D,) float32."""
        return self.indptr.diff().float()

    @property
    def dst(self) -> torch.Tensor:
        """Each edge's destination, (E,), with ``indices``' dtype."""
        return self.pairs[0]

    @cached_property
    def pairs(self) -> torch.Tensor:
        """Each edge's destination (first row) and source (second row), (2, E), with ``indices``' dtype."""
        if torch.compiler.is_compiling():
            # torch's compiler cannot derive the result's shape of the operation below if E is not a fixed number.
            number = torch.arange(self.num_dst, device=self.indices.device, dtype=self.indices.dtype)
            dst = number.repeat_interleave(self.indptr.diff(), output_size=self.num_edges)
            return torch.stack((dst, self.indices))
        # This is one kernel with a known result size. It has no public name.
        return torch._convert_indices_from_csr_to_coo(  # noqa: SLF001
            self.indptr, self.indices, out_int32=self.indices.dtype == torch.int32
        )

    @property
    def pairs_and_loops(self) -> torch.Tensor:
        """`pairs`, followed by an edge from each destination to itself, (2, E + D)."""
        loops = torch.arange(self.num_dst, device=self.indices.device, dtype=self.indices.dtype)
        return torch.cat((self.pairs, loops.expand(2, -1)), dim=1)

    @cached_property
    def transposed(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The edges sorted by source: offsets (num_src + 1,), destinations (E,) and edge numbers (E,).

        The edges of source i are the positions ``offsets[i]`` to ``offsets[i + 1]`` in the two other arrays.
        """
        order, offsets = by_source(self.indices, self.num_src)
        return offsets, self.dst.index_select(0, order), order


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Destinations whose sums inference computes together (`gloader.models.conv.Conv.propagate`), on the device."""

    nodes: torch.Tensor  # (n,) int64, ids of the destinations
    degree: torch.Tensor  # (n,) float32, their in-degrees
    # Usually one adjacency; several if a single node has too many edges for the memory. Each has n destinations, and
    # sources in 0..N-1. Together the pieces hold every in-edge once, in order. They are valid until the next part is
    # requested from the iterator that yields the parts.
    pieces: Iterable[Adjacency]


def stay_eager() -> None:
    """Exclude the calling autograd function from a graph that torch's compiler is tracing, if any.

    The autograd functions of this package call it first. They keep an `Adjacency`, which some torch versions cannot
    trace. Tracing would gain nothing, because all operations are torch's own.
    """
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break()  # noqa: SLF001 - its name in torch's documentation


def by_source(sources: torch.Tensor, num_src: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edge numbers (E,) sorted by source, and each source's offset in them, (num_src + 1,).

    Parameters
    ----------
    sources : (E,) int32 or int64, each edge's source; offsets have this dtype, edge numbers are int64
    num_src : number of sources
    """
    # The sort is stable: a source's edges keep their order, so that its sum is rounded equally in every run.
    ascending, order = torch.sort(sources, stable=True)
    # This operation has no public name, like its inverse in `Adjacency.pairs`.
    offsets = torch._convert_indices_from_coo_to_csr(  # noqa: SLF001
        ascending, num_src, out_int32=sources.dtype == torch.int32
    )
    return order, offsets


_SUM_MODE = 0  # torch's number for the mode "sum" of an embedding bag


def sum_neighbors(x: torch.Tensor, edges: Adjacency, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Return the (weighted) sum of each destination's source rows.

    The forward pass is an embedding bag. It was measured faster than ``torch.sparse`` CSR products, ``segment_reduce``
    and ``index_add``. torch's own backward pass would scatter gradients. Here it is a second bag, over the transposed
    edges. Memory beyond the result is O(E), never O(E F).

    Parameters
    ----------
    x : (num_src, F) float32 or bfloat16 rows; both are summed in float32
    edges : E edges into D destinations
    weight : (E,) float32 weights, rounded to ``x``'s dtype; None means ones

    Returns
    -------
    (D, F), with ``x``'s dtype; zeros for a destination without edges
    """
    # A bag needs one dtype for rows and weights. Converting the rows instead would take O(num_src F) memory, and
    # rounded weights are as precise as the rows.
    weight = None if weight is None else weight.to(x.dtype)
    result: torch.Tensor = _NeighborSum.apply(x.contiguous(), weight, edges)  # type: ignore[no-untyped-call]
    return result


def mean_neighbors(
    x: torch.Tensor, edges: Adjacency, weight: torch.Tensor | None = None, degree: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the mean of each destination's source rows, (D, F), or zeros without sources.

    With ``weight`` and ``degree``, return the weighted sum over the degree: an unbiased estimate of the mean over all
    in-neighbours.

    Parameters
    ----------
    x : (num_src, F) float32 or bfloat16 rows
    edges : E edges into D destinations
    weight : (E,) number of full-graph edges that each edge stands for; None gives the plain mean over ``edges``
    degree : (D,) full-graph in-degrees; None gives the plain mean
    """
    if weight is None or degree is None:
        return sum_neighbors(x, edges) / edges.counts.clamp(min=1.0).unsqueeze(1)
    return sum_neighbors(x, edges, weight) / degree.clamp(min=1.0).unsqueeze(1)


def _bag(
    x: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, weight: torch.Tensor | None
) -> torch.Tensor:
    """Return the (weighted) sum of the rows ``x`` in each bag; bag i has ``indices[offsets[i]:offsets[i + 1]]``."""
    return functional.embedding_bag(
        indices, x, offsets, mode="sum", per_sample_weights=weight, include_last_offset=True
    )


class _NeighborSum(torch.autograd.Function):
    """`sum_neighbors` as an operation of autograd."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, edges: Adjacency) -> torch.Tensor:
        """Return the sums (D, F); parameters as in `sum_neighbors`."""
        stay_eager()
        ctx.edges = edges
        # Only the weights' gradient needs the rows, which are a layer's largest tensor.
        needs_x = weight is not None and ctx.needs_input_grad[1]
        ctx.save_for_backward(x if needs_x else None, weight)
        return _bag(x, edges.indices, edges.indptr, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        """Return the gradients for ``x``, ``weight`` and ``edges``, which has none."""
        edges: Adjacency = ctx.edges
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            # A sum's gradient is a scatter to the sources. Over the transposed edges it is a sum again, with the
            # same order in every run.
            offsets, destinations, order = edges.transposed
            grad_x = _bag(
                grad, destinations, offsets, None if weight is None else weight.index_select(0, order)
            )
        if ctx.needs_input_grad[1]:
            grad_weight = torch.ops.aten._embedding_bag_per_sample_weights_backward(  # noqa: SLF001 - no public name
                grad, x, edges.indices, edges.indptr, edges.dst, _SUM_MODE
            )
        return grad_x, grad_weight, None
