"""Layers of a network: convolutions along relations, and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from gloader.models.adjacency import Part
    from gloader.types import DeviceBlock, Relation


Table = tuple[torch.Tensor, ...]  # the result of `project`, one row per node
# The cost of gathering one element, in multiply-adds of a matrix product.
# On a CPU, measured on two cores: 0.16 ns against 0.0105 ns. Wrong choices cost little: both orders are
# then about as fast.
_CPU_GATHER_COST = 15
# On a GPU, from the data sheet of an H200 and not measured, with everything at a third of its peak: a gathered float32
# takes 4 bytes of 3.3 TB/s, 3.6 ps, and a multiply-add outside of the matrix units 0.1 ps. In bfloat16 a gathered
# element takes 1.8 ps, and a multiply-add inside of the matrix units 0.006 ps.
_GPU_GATHER_COST = 40
_GPU_BF16_GATHER_COST = 300


def gather_cost(device_type: str) -> int:
    """Return the cost of gathering one element in multiply-adds, on such a device and under its autocast."""
    if device_type == "cpu":
        return _CPU_GATHER_COST
    return _GPU_BF16_GATHER_COST if torch.is_autocast_enabled(device_type) else _GPU_GATHER_COST


class Conv(Protocol):
    """A convolution along one relation, from nodes of one type to nodes of another type or of the same type.

    It computes from the block of a batch in one call, or over all in-edges of any nodes in two steps. The steps are
    for graphs whose features exceed memory: `project` is dense and streams over the sources in node order; `propagate`
    then needs only the projected table. Both take a range of columns, so that the table can be as narrow as memory
    requires. These are columns of the output; a convolution with a head has columns of the head's input.

    A relation without edges adds its bias, as in PyG.
    """

    edge_dim: int  # width of the edge features that it reads; 0 without edge features
    out_dim: int

    def __call__(self, x_src: torch.Tensor, x_dst: torch.Tensor, block: DeviceBlock, /) -> torch.Tensor:
        """Return (D, out_dim) for the rows (U, in_dim) of the sources and (D, own_dim) of the destinations.

        Within one type the first D rows of ``x_src`` are ``x_dst``.
        """
        ...

    @property
    def head(self) -> nn.Module | None:
        """The layers that each row passes after `propagate`, or None."""
        ...

    @property
    def edge_floats(self) -> int:
        """Floats per edge that `propagate` holds besides features and a few scores."""
        ...

    @property
    def column_step(self) -> int:
        """The number of columns in a range is a multiple of this."""
        ...

    def table_widths(self, num_columns: int, /) -> tuple[int, ...]:
        """Return the floats per source in each part of the table for ``num_columns`` columns."""
        ...

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice, /) -> Table:
        """Return the table rows of n sources.

        Parameters
        ----------
        x : (n, in_dim) their inputs
        degree : (n,) float32, their in-degrees, if sources and destinations have one type; otherwise (0,)
        columns : a multiple of `column_step`
        """
        ...

    def own_widths(self, num_columns: int, /) -> tuple[int, ...]:
        """Return the floats per destination in each part of the result of `project_own`."""
        ...

    def project_own(self, x: torch.Tensor, columns: slice, /) -> Table:
        """Return the terms that n destinations add to their own messages.

        Parameters
        ----------
        x : (n, own_dim) their inputs
        columns : as for `project`
        """
        ...

    def propagate(self, table: Table, own: Table, part: Part, columns: slice, /) -> torch.Tensor:
        """Return (n, columns) for the n destinations of ``part``, from all their in-edges.

        Parameters
        ----------
        table : result of `project` for all sources; without rows if the relation has no edge
        own : result of `project_own` for the n destinations
        part : the destinations and their in-edges, whose sources index the table
        columns : those of the table
        """
        ...


def one_part(conv: object, num_columns: int) -> tuple[int, ...]:  # noqa: ARG001 - a method of convolutions
    """Return `Conv.table_widths` of a table that has a float per column. Pure."""
    return (num_columns,)


def no_own_widths(conv: object, num_columns: int) -> tuple[int, ...]:  # noqa: ARG001 - a method of convolutions
    """Return `Conv.own_widths` of a convolution whose destinations add no terms of their own. Pure."""
    return ()


def no_own_terms(conv: object, x: torch.Tensor, columns: slice) -> Table:  # noqa: ARG001 - a method of convolutions
    """Return `Conv.project_own` of a convolution whose destinations add no terms of their own. Pure."""
    return ()


def edge_features_of(block: DeviceBlock, edge_dim: int) -> torch.Tensor:
    """Return the edge features of ``block``, (E, edge_dim).

    Raises
    ------
    ConfigError
        The block has no edge features, or features of another width.
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


def projects_first(
    x: torch.Tensor, block: DeviceBlock, *, in_dim: int, out_dim: int, num_heads: int = 1
) -> bool:
    """Return whether a convolution of ``block`` projects its rows before it gathers them.

    Parameters
    ----------
    x : (U, in_dim) rows of the sources
    block : the edges
    in_dim, out_dim, num_heads : as for `multiplies_first`
    """
    return multiplies_first(
        num_src=block.num_src,
        num_dst=block.num_dst,
        num_edges=int(block.indices.shape[0]),
        in_dim=in_dim,
        out_dim=out_dim,
        input_has_grad=x.requires_grad,
        num_heads=num_heads,
        gather_cost=gather_cost(x.device.type),
    )


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

    To multiply first takes a product over all U source rows and a gather of H columns. To aggregate first takes a
    gather of F columns per head and a product over the D destination rows. A backward pass repeats both for the
    weights, and once more for an input with a gradient. The input of the first layer has no gradient.

    Parameters
    ----------
    num_src, num_dst, num_edges : U, D, E of the block
    in_dim, out_dim : F and H
    input_has_grad : whether the layer's input needs a gradient
    num_heads : aggregations with different weights, each of H / num_heads columns
    gather_cost : result of `gather_cost`
    """
    # Forward, and backward for the weights. The third product is the gradient of the input.
    products = 3 if input_has_grad else 2
    multiply = products * num_src * in_dim * out_dim + 2 * gather_cost * num_edges * out_dim
    # Attention weights, which differ by head, have gradients: their backward pass gathers too.
    gathers = 2 if input_has_grad or num_heads > 1 else 1
    aggregate = gathers * gather_cost * num_heads * num_edges * in_dim + products * num_dst * in_dim * out_dim
    return multiply <= aggregate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """One layer: the sum of a convolution for each relation, and of a Linear for the node's own row.

    The network owns and names the parameters. The layer has only types whose rows reach the output. For a type without
    a Linear there is one relation into it, whose convolution adds the node's own row.
    """

    roots: Mapping[str, nn.Linear]  # with bias
    relations: Mapping[Relation, Conv]  # in the order of the dataset's record
    in_dims: Mapping[str, int]  # width of the rows of each type that enter the layer
    out_dim: int  # width of the rows that leave the layer

    @property
    def types(self) -> tuple[str, ...]:
        """The types that the layer computes."""
        return tuple(self.roots) or tuple(name for _, _, name in self.relations)

    @property
    def head(self) -> nn.Module | None:
        """The layers that each sum passes, or None; only a lone convolution has a head."""
        return None if self.roots else next(iter(self.relations.values())).head

    @property
    def sum_dim(self) -> int:
        """Width of the sums: of the head's input, if there is a head."""
        return self.out_dim if self.head is None else next(iter(self.in_dims.values()))

    @property
    def column_step(self) -> int:
        """The number of columns of the sums in a range is a multiple of this."""
        return max((conv.column_step for conv in self.relations.values()), default=1)

    def relations_into(self, node_type: str) -> dict[Relation, Conv]:
        """Return the convolutions into a type."""
        return {relation: conv for relation, conv in self.relations.items() if relation[2] == node_type}

    def own(self, node_type: str, x: torch.Tensor, columns: slice) -> torch.Tensor:
        """Return the terms of the nodes' own rows, (n, columns), bias included.

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
        # Relations without edges in this batch count too: each parameter gets a gradient in every step, which the
        # average over ranks needs.
        for relation, conv in self.relations.items():
            source, _, destination = relation
            made = conv(x[source], x[destination][: num_rows[destination]], hop[relation])
            result[destination] = result[destination] + made if destination in result else made
        return result
