"""The edges of one relation in a block, and the messages and sums that pass along them.

A message is made for each edge, from data fields of its source ("u"), its destination ("v") or the edge itself ("e").
A reduction combines the messages at each destination. ``gloader.compat.dgl.function`` has the functions for both, with
DGL's names. `DGLBlock.update_all` and the layers compute with an `EdgeList`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from gloader.models.adjacency import Adjacency, sum_neighbors
from gloader.models.attention import reduce_edges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gloader.types import DeviceBlock


@dataclass(frozen=True, slots=True)
class Operand:
    """A data field of the sources, the destinations or the edges."""

    end: str  # "u" (source), "v" (destination) or "e" (edge)
    field: str  # the field's name


@dataclass(frozen=True, slots=True)
class Message:
    """A message for each edge, made from one field or two."""

    op: str  # "copy", "add", "sub", "mul", "div" or "dot"
    operands: tuple[Operand, ...]  # one for "copy", two for the others
    out: str  # the message's name


@dataclass(frozen=True, slots=True)
class Reduction:
    """The reduction that combines the messages at a destination."""

    op: str  # "sum", "mean", "max" or "min"
    msg: str  # the message's name
    out: str  # the name of the result, a data field of the destinations


def copy_u(u: str, out: str) -> Message:
    """Return the message that copies the source's field ``u``."""
    return Message("copy", (Operand("u", u),), out)


def copy_e(e: str, out: str) -> Message:
    """Return the message that copies the edge's field ``e``."""
    return Message("copy", (Operand("e", e),), out)


def reduction(op: str) -> Callable[[str, str], Reduction]:
    """Return a function that makes the reduction ``op``; the result is 0 at a destination without in-edges."""

    def made(msg: str, out: str) -> Reduction:
        return Reduction(op, msg, out)

    made.__name__ = op
    return made


def of_two(name: str) -> Callable[[str, str, str], Message]:
    """Return the function ``name``, such as u_mul_e, which makes a message from two fields."""
    left, op, right = name.split("_")

    def made(lhs_field: str, rhs_field: str, out: str) -> Message:
        return Message(op, (Operand(left, lhs_field), Operand(right, rhs_field)), out)

    made.__name__ = name
    return made


# The functions for a message's ``op``, except "copy" and "dot".
_OPERATIONS: Final[Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
}


class EdgeList:
    """Edges from ``num_src`` source nodes to ``num_dst`` destination nodes, in any order.

    Parameters
    ----------
    src, dst : (E,) int32 or int64, each edge's ends. If ``dst`` is None, ``adjacency`` has the destinations
    num_src, num_dst : number of sources and of destinations
    adjacency : the same edges, if they are in destination order; None means any order
    """

    def __init__(
        self,
        src: torch.Tensor,
        dst: torch.Tensor | None,
        *,
        num_src: int,
        num_dst: int,
        adjacency: Adjacency | None = None,
    ) -> None:
        self.src = src
        self.num_src = num_src
        self.num_dst = num_dst
        self._dst = dst
        self._given = adjacency

    @classmethod
    def of(cls, edges: Adjacency) -> EdgeList:
        """Return an adjacency's edges, and share its tensors."""
        return cls(edges.indices, None, num_src=edges.num_src, num_dst=edges.num_dst, adjacency=edges)

    @classmethod
    def of_block(cls, block: DeviceBlock) -> EdgeList:
        """Return the edges of ``block``. Shares its tensors."""
        return cls.of(Adjacency(block.indptr, block.indices, num_src=block.num_src))

    @property
    def dst(self) -> torch.Tensor:
        """(E,) each edge's destination. A block's are computed on request; a sum's forward pass does not need them."""
        if self._dst is None:
            assert self._given is not None  # noqa: S101 - without an adjacency, ``dst`` is given
            return self._given.dst
        return self._dst

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return int(self.src.shape[0])

    @cached_property
    def in_degrees(self) -> torch.Tensor:
        """(num_dst,) int64 number of in-edges."""
        if self._given is not None:
            return self._given.indptr.diff().long()
        return torch.bincount(self.dst, minlength=self.num_dst)

    @cached_property
    def out_degrees(self) -> torch.Tensor:
        """(num_src,) int64 number of out-edges."""
        return torch.bincount(self.src, minlength=self.num_src)

    def to(self, device: Any) -> EdgeList:
        """Return the same edges on ``device``."""
        if self._given is None:
            return EdgeList(
                self.src.to(device), self.dst.to(device), num_src=self.num_src, num_dst=self.num_dst
            )
        indptr, indices = self._given.indptr.to(device), self._given.indices.to(device)
        return EdgeList.of(Adjacency(indptr, indices, num_src=self.num_src))

    def weighted_sum(self, x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        """Return the sum of source rows at each destination, without a row for each edge in memory.

        Parameters
        ----------
        x : (num_src, ...) float
        weight : (E,) edge weights, or (E, heads, 1) if ``x`` is (num_src, heads, W); None means 1

        Returns
        -------
        (num_dst, ...)
        """
        order, edges = self._sorted
        weight = weight if weight is None or order is None else weight.index_select(0, order)
        if weight is None or weight.dim() == 1:
            # The width is explicit, because torch cannot infer it if there are no rows.
            total = sum_neighbors(x.reshape(len(x), prod(x.shape[1:])), edges, weight)
            return total.view(self.num_dst, *x.shape[1:])
        # Heads are summed one by one: together they would take a row for each edge.
        heads = zip(x.unbind(1), weight.squeeze(2).unbind(1), strict=True)
        return torch.stack([sum_neighbors(rows, edges, each.contiguous()) for rows, each in heads], dim=1)

    def reduce(self, messages: torch.Tensor, op: str) -> torch.Tensor:
        """Return the "sum", "mean", "max" or "min" of the ``messages`` (E, ...) per destination; 0 without messages."""
        if op in ("max", "min"):
            # Segment operations are avoided: with several largest messages, torch 2.13 may give a wrong gradient.
            index = self.dst.long().view(-1, *(1,) * (messages.dim() - 1)).expand_as(messages)
            nothing = messages.new_zeros(self.num_dst, *messages.shape[1:])
            return nothing.scatter_reduce(0, index, messages, f"a{op}", include_self=False)
        order, edges = self._sorted
        messages = messages if order is None else messages.index_select(0, order)
        if not self.num_edges:  # torch's operations fail without edges
            return messages.sum() + messages.new_zeros(self.num_dst, *messages.shape[1:])
        total = reduce_edges(messages.contiguous(), edges, by="sum")
        return total if op == "sum" else self.mean_of(total)

    def mean_of(self, total: torch.Tensor) -> torch.Tensor:
        """Return the means from the sums ``total`` (num_dst, ...); 0 without in-edges."""
        counts = self.in_degrees.clamp(min=1).to(total.dtype)
        return total / counts.view(-1, *(1,) * (total.dim() - 1))

    def softmax(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the softmax of the ``scores`` (E, ...) over each destination's in-edges."""
        # Subtracting the largest score prevents overflow. The shift cancels out, and so does its gradient.
        with torch.no_grad():
            top = self.reduce(scores, "max").index_select(0, self.dst)
        powers = (scores - top).exp()
        return powers / self.reduce(powers, "sum").index_select(0, self.dst)

    def in_neighbor_lists(self, messages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ``messages`` (E, F) as one padded list per destination, and the destinations (D',) of the lists.

        The lists (D', longest, F) are those of the D' destinations with in-edges.
        """
        order, _ = self._sorted
        messages = messages if order is None else messages.index_select(0, order)
        reached = self.in_degrees.nonzero().squeeze(1)
        lists = torch.split(messages, self.in_degrees[reached].tolist())
        return torch.nn.utils.rnn.pad_sequence(list(lists), batch_first=True), reached

    @cached_property
    def _sorted(self) -> tuple[torch.Tensor | None, Adjacency]:
        """The order (E,) that sorts the edges by destination, or None if they are sorted; and the sorted edges."""
        if self._given is not None:
            return None, self._given
        order = torch.argsort(self.dst, stable=True)
        indptr = torch.nn.functional.pad(self.in_degrees.cumsum(0), (1, 0)).to(self.src.dtype)
        return order, Adjacency(indptr, self.src.index_select(0, order), num_src=self.num_src)


def degrees_of(degrees: torch.Tensor, nodes: Any) -> torch.Tensor:
    """Return all ``degrees``, or only those numbered ``nodes``. Pure."""
    # DGL's users write "__ALL__" for all nodes.
    return degrees if nodes is None or isinstance(nodes, str) else degrees[nodes]


def combine(op: str, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the message from two operands, row by row; a row with fewer dimensions is broadcast. Pure."""
    dims = max(left.dim(), right.dim())
    left, right = (_with_dims(each, dims) for each in (left, right))
    if op == "dot":
        product = left * right
        return product.sum(dim=-1, keepdim=True) if dims > 1 else product
    return _OPERATIONS[op](left, right)


def _with_dims(rows: torch.Tensor, dims: int) -> torch.Tensor:
    """Return ``rows`` with ``dims`` dimensions: axes of length 1 are added after the first axis."""
    return rows.view(len(rows), *(1,) * (dims - rows.dim()), *rows.shape[1:])
