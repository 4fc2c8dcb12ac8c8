"""The seam between a network and its layers: convolutions along relations, and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

from gloader.errors import ConfigError
from gloader.types import EDGE, NODE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from gloader.models.adjacency import Part
    from gloader.types import DeviceBlock, Relation


Table = tuple[torch.Tensor, ...]  # what `project` leaves for `propagate`, one row per node
# Cost of gathering one element over one multiply-add of a matrix product.
# On a CPU measured on two cores: 0.16 ns against 0.0105 ns. The choice is wrong only where the two orders cost about
# the same.
_CPU_GATHER_COST = 15
# On a GPU reasoned from the data sheet of an H200, not measured, everything at a third of its peak: a gathered float32
# takes 4 bytes of 3.3 TB/s, 3.6 ps, and a multiply-add outside of the matrix units 0.1 ps; in bfloat16 1.8 ps and,
# inside of them, 0.006 ps.
_GPU_GATHER_COST = 40
_GPU_BF16_GATHER_COST = 300


def gather_cost(device_type: str) -> int:
    """Return the cost of gathering one element over one multiply-add, on such a device and under its autocast."""
    if device_type == "cpu":
        return _CPU_GATHER_COST
    return _GPU_BF16_GATHER_COST if torch.is_autocast_enabled(device_type) else _GPU_GATHER_COST


class Propagation(Protocol):
    """A convolution in two steps, over all in-edges of any nodes.

    The two steps are for graphs whose features exceed memory. `project` is dense and is streamed over the sources, in
    node order; `propagate` then needs the projected table alone. Both work on a range of columns, so that the table
    can be made as narrow as memory asks: columns of the output, or, of a layer with a head that needs all columns at
    once, columns of the head's input.
    """

    edge_dim: int  # width of the edge features that it reads; 0: it reads none

    @property
    def edge_floats(self) -> int:
        """Floats per edge that `propagate` holds besides features and a few scores."""
        ...

    @property
    def column_step(self) -> int:
        """Columns come in multiples of this."""
        ...

    def table_widths(self, num_columns: int, /) -> tuple[int, ...]:
        """Floats per source in each part of the table that ``num_columns`` columns need."""
        ...

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice, /) -> Table:
        """Return the table rows of n sources.

        Parameters
        ----------
        x : (n, in_dim) their inputs
        degree : (n,) float32, their in-degrees, where sources and destinations are of one type; else (0,)
        columns : a multiple of `column_step`
        """
        ...

    def own_widths(self, num_columns: int, /) -> tuple[int, ...]:
        """Floats per destination in each part of the result of `project_own`."""
        ...

    def project_own(self, x: torch.Tensor, columns: slice, /) -> Table:
        """Return the terms that n destinations add to their own messages.

        Parameters
        ----------
        x : (n, own_dim) their inputs
        columns : as of `project`
        """
        ...

    def propagate(self, table: Table, own: Table, part: Part, columns: slice, /) -> torch.Tensor:
        """Return (n, columns) for the n destinations of ``part``, from all their in-edges.

        Parameters
        ----------
        table : of all sources, made by `project`; without rows where the relation has no edge
        own : of the n destinations, made by `project_own`
        part : the destinations and their in-edges, whose sources index the table
        columns : those of the table
        """
        ...


class Conv(Propagation, Protocol):
    """A convolution within one node type. The table has the rows of the destinations too."""

    in_dim: int
    out_dim: int

    @property
    def head(self) -> nn.Module | None:
        """The layers that each row passes after `propagate`; None: there are none."""
        ...

    def __call__(self, x: torch.Tensor, block: DeviceBlock, /) -> torch.Tensor:
        """Return (D, out_dim) for ``x`` (U, in_dim), whose first D rows are the destinations."""
        ...


class RelationConv(Propagation, Protocol):
    """A convolution along one relation, from nodes of one type to nodes of another type or of their own.

    A relation without edges adds its bias, as in PyG.
    """

    out_dim: int

    def __call__(self, x_src: torch.Tensor, x_dst: torch.Tensor, block: DeviceBlock, /) -> torch.Tensor:
        """Return (D, out_dim) for the rows (U, in_dim) of the sources and (D, own_dim) of the destinations."""
        ...


def no_own_widths(conv: object, num_columns: int) -> tuple[int, ...]:  # noqa: ARG001 - a method of convolutions
    """Return `Propagation.own_widths` of a convolution whose destinations add no terms of their own. Pure."""
    return ()


def no_own_terms(conv: object, x: torch.Tensor, columns: slice) -> Table:  # noqa: ARG001 - as above
    """Return `Propagation.project_own` of a convolution whose destinations add no terms of their own. Pure."""
    return ()


def edge_features_of(block: DeviceBlock, edge_dim: int) -> torch.Tensor:
    """Return the features of the edges of ``block``, (E, edge_dim).

    Raises
    ------
    ConfigError
        It has none, or of another width.
    """
    if block.edge_x is None:
        raise ConfigError(
            f"the model looks at {edge_dim} features of every edge and the batch has none; "
            f"use a dataset with edge features and a loader with edge_features='auto'"
        )
    if block.edge_x.shape[1] != edge_dim:
        raise ConfigError(
            f"the batch has {block.edge_x.shape[1]} features of every edge and the model looks at {edge_dim}"
        )
    return block.edge_x


def multiplies_first(
    *,
    num_src: int,
    num_dst: int,
    num_edges: int,
    in_dim: int,
    out_dim: int,
    input_has_grad: bool,
    num_heads: int = 1,
    gather_cost: int = _CPU_GATHER_COST,
) -> bool:
    """Return whether ``A (X W)`` costs less than ``(A X) W`` in one training step. Pure.

    Multiplying first is a product over all U source rows and a gather of H columns; aggregating first is
    a gather of F columns per head and a product over the D destination rows. A backward pass repeats
    each: once more for the weights, and once more for the input if that has a gradient; that of the first
    layer has none.

    Parameters
    ----------
    num_src, num_dst, num_edges : U, D, E of the block
    in_dim, out_dim : F and H
    input_has_grad : whether the layer's input needs a gradient
    num_heads : aggregations with different weights, each of H / num_heads columns
    gather_cost : result of `gather_cost`
    """
    # Forward, and backward for the weights; the input's gradient is the third product.
    products = 3 if input_has_grad else 2
    multiply = products * num_src * in_dim * out_dim + 2 * gather_cost * num_edges * out_dim
    # Weights that differ by head, as those of attention, have gradients: their backward pass gathers too.
    gathers = 2 if input_has_grad or num_heads > 1 else 1
    aggregate = gathers * gather_cost * num_heads * num_edges * in_dim + products * num_dst * in_dim * out_dim
    return multiply <= aggregate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """The steps of one layer: a convolution for each relation, summed, and a Linear for the node's own row.

    Its parameters belong to the network, which names them. It has only types whose rows reach the output. A type
    without a Linear has one relation into it, whose convolution adds the node's own row.
    """

    roots: Mapping[str, nn.Linear]  # with bias
    relations: Mapping[Relation, RelationConv]  # in the order of the record
    in_dims: Mapping[str, int]  # width of the rows of each type that enter the layer
    out_dim: int  # width of the sums
    head: nn.Module | None = None  # the layers that each sum passes; None: there are none

    @classmethod
    def of_conv(cls, conv: Conv) -> Layer:
        """Return the layer of a convolution within the single type of a graph."""
        out_dim = conv.out_dim if conv.head is None else conv.in_dim
        return cls(
            roots={},
            relations={EDGE: conv},  # type: ignore[dict-item]  # inference takes the two steps alone
            in_dims={NODE: conv.in_dim},
            out_dim=out_dim,
            head=conv.head,
        )

    @property
    def types(self) -> tuple[str, ...]:
        """The types that the layer computes."""
        return tuple(self.roots) or tuple(name for _, _, name in self.relations)

    @property
    def column_step(self) -> int:
        """Columns of the sums come in multiples of this."""
        return max((conv.column_step for conv in self.relations.values()), default=1)

    def relations_into(self, node_type: str) -> dict[Relation, RelationConv]:
        """Return the convolutions into a type."""
        return {relation: conv for relation, conv in self.relations.items() if relation[2] == node_type}

    def own(self, node_type: str, x: torch.Tensor, columns: slice) -> torch.Tensor:
        """Return what the nodes' own rows add, (n, columns), bias included.

        Parameters
        ----------
        node_type : one of `types`
        x : (n, in_dim) rows of the nodes
        columns : of the output
        """
        root = self.roots[node_type]
        return functional.linear(x, root.weight[columns], root.bias[columns])

    def forward(
        self, x: Mapping[str, torch.Tensor], hop: Mapping[Relation, DeviceBlock], num_rows: Mapping[str, int]
    ) -> dict[str, torch.Tensor]:
        """Return the rows (D_t, out_dim) of each of the `types`.

        Parameters
        ----------
        x : (U_t, in_dim) of each type of ``in_dims``; the first D_t rows are the destinations
        hop : the block of each relation
        num_rows : D_t of each of the `types`
        """
        result = {name: root(x[name][: num_rows[name]]) for name, root in self.roots.items()}
        # No relation is left out because it has no edge here: each parameter gets a gradient in every step, which
        # ranks that average them rely on.
        for relation, conv in self.relations.items():
            source, _, destination = relation
            own = x[destination][: num_rows[destination]]
            result[destination] = result[destination] + conv(x[source], own, hop[relation])
        return result
