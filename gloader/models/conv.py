"""A network's layers: convolutions along relations, and their sums.

A relation is an edge type, with edges from source nodes to destination nodes. A convolution (`Conv`) turns the rows of
the sources into one row per destination. For each node type, a `Layer` sums the rows from all relations that lead to
the type. `gloader.models.build` makes the layers. Shapes: U sources, D destinations, E edges.

Training calls a convolution for a batch. Inference over a whole graph (`gloader.training.inference`) splits it into
steps. `project` turns each source row into a row of a table, and `propagate` adds the table's rows along the edges.
`project_own` computes the own terms: the part of the result that depends on the destination's own row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gloader.models.adjacency import Part
    from gloader.types import DeviceBlock, Relation


# The result of `project`: one or several arrays, its parts, each with one row per node.
Table = tuple[torch.Tensor, ...]
# Layers that a summed row passes, see `Conv.head`.
Head: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
# The cost of gathering one element, in multiply-adds of a matrix product.
# The cost decides whether a convolution multiplies first or gathers first, see `multiplies_first`. An inexact value
# costs little: where it decides wrongly, both orders are about equally fast.
# On a CPU, measured on two cores: 0.16 ns against 0.0105 ns.
_CPU_GATHER_COST = 15
# On a GPU, not measured but computed from an H200 data sheet, with a third of each peak rate. A gathered float32 is
# 4 bytes: 3.6 ps at a third of 3.3 TB/s. A multiply-add outside the matrix units takes 0.1 ps. In bfloat16 a gathered
# element takes 1.8 ps, and a multiply-add inside the matrix units 0.006 ps.
_GPU_GATHER_COST = 40  # about 3.6 ps / 0.1 ps
_GPU_BF16_GATHER_COST = 300  # about 1.8 ps / 0.006 ps


def gather_cost(device_type: str) -> int:
    """Return the cost of gathering one element, in multiply-adds, on a device of this type with its autocast state."""
    if device_type == "cpu":
        return _CPU_GATHER_COST
    return _GPU_BF16_GATHER_COST if torch.is_autocast_enabled(device_type) else _GPU_GATHER_COST


class Conv(Protocol):
    """A convolution along one relation, between nodes of one type or two types.

    A call computes a batch's block (the edges of one hop). Inference instead calls `project`, then `propagate`, which
    compute all in-edges of any nodes. These steps are for graphs whose features exceed memory: `project` is dense and
    streams over the sources in node order. `propagate` then needs only the projected table.

    Both take a range of columns, so that the table can be as narrow as memory requires. These are output columns. A
    convolution may have a head: layers that each summed row passes afterwards. Then they are columns of the head's
    input. A relation without edges adds its bias, as in PyG.
    """

    edge_dim: int  # width of the edge features that the convolution reads; 0 without edge features
    out_dim: int  # H, the width of an output row
    # Whether `project` gives whole output rows. Then inference makes the wanted rows alone, from the nodes' own rows,
    # without a table and without edges.
    is_rowwise: bool
    sum_dim: int  # width of a row of `propagate` in all columns: the head's input, or H without a head

    def __call__(self, x_src: torch.Tensor, x_dst: torch.Tensor, block: DeviceBlock, /) -> torch.Tensor:
        """Return (D, out_dim) from source rows ``x_src`` (U, in_dim) and destination rows ``x_dst`` (D, own_dim).

        Within one type, ``x_dst`` are the first D rows of ``x_src``.
        """
        ...

    @property
    def head(self) -> Head | None:
        """The layers that each row passes after `propagate`, or None."""
        ...

    @property
    def edge_floats(self) -> int:
        """Number of floats per edge that `propagate` holds, besides the edge's features and a few attention scores."""
        ...

    @property
    def row_floats(self) -> int:
        """Number of floats per row that `project` holds, besides its input and the table."""
        ...

    @property
    def column_step(self) -> int:
        """A range of columns must have a multiple of this number of columns."""
        ...

    def table_widths(self, num_columns: int, /) -> tuple[int, ...]:
        """Return the floats per source in each part of the table for ``num_columns`` columns."""
        ...

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice, /) -> Table:
        """Return the table rows of n sources.

        Parameters
        ----------
        x : (n, in_dim) the sources' inputs
        degree : (n,) float32, the sources' in-degrees, if sources and destinations have one type; otherwise (0,)
        columns : output columns, a multiple of `column_step`
        """
        ...

    def own_widths(self, num_columns: int, /) -> tuple[int, ...]:
        """Return the floats per destination in each part of a `project_own` result."""
        ...

    def project_own(self, x: torch.Tensor, columns: slice, /) -> Table:
        """Return the own terms of n destinations, computed from their own rows.

        Parameters
        ----------
        x : (n, own_dim) the destinations' inputs
        columns : see `project`
        """
        ...

    def propagate(self, table: Table, own: Table, part: Part, columns: slice, /) -> torch.Tensor:
        """Return (n, columns) for the n destinations of ``part``, from all their in-edges.

        Parameters
        ----------
        table : result of `project` for all sources; without rows if the relation has no edges
        own : result of `project_own` for the n destinations
        part : the destinations and their in-edges, whose sources index the table
        columns : the output columns for which the table was made
        """
        ...


# The next three functions are assigned in classes of convolutions, as their methods.


def one_part(conv: object, num_columns: int) -> tuple[int, ...]:  # noqa: ARG001 - a method of convolutions
    """Return `Conv.table_widths` for a table with one float per column. Pure."""
    return (num_columns,)


def no_own_widths(conv: object, num_columns: int) -> tuple[int, ...]:  # noqa: ARG001 - a method of convolutions
    """Return `Conv.own_widths` for a convolution whose destinations have no own terms. Pure."""
    return ()


def no_own_terms(conv: object, x: torch.Tensor, columns: slice) -> Table:  # noqa: ARG001 - a method of convolutions
    """Return `Conv.project_own` for a convolution whose destinations have no own terms. Pure."""
    return ()


def normalised(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` (n, width) after a batch norm. Running statistics are used if n is too small for a variance."""
    if len(x) > 1 or not isinstance(norm, nn.BatchNorm1d) or not norm.training:
        result: torch.Tensor = norm(x)
        return result
    # A batch may have one node of a type, or none. The parameters still get their gradients.
    return functional.batch_norm(
        x, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=False, eps=norm.eps
    )


def edge_features_of(block: DeviceBlock, edge_dim: int) -> torch.Tensor:
    """Return the edge features of ``block``, (E, edge_dim).

    Raises
    ------
    ConfigError
        The block's edge features are missing or have another width.
    """
    if block.edge_x is None:
        raise ConfigError(
            f"the model reads {edge_dim} features per edge, and the batch has none; "
            f"use a dataset with edge features and a loader with edge_features='auto'"
        )
    if block.edge_x.shape[1] != edge_dim:
        raise ConfigError(
            f"the batch has {block.edge_x.shape[1]} features per edge, and the model reads {edge_dim}"
        )
    return block.edge_x


def projects_first(
    x: torch.Tensor, block: DeviceBlock, *, in_dim: int, out_dim: int, num_heads: int = 1
) -> bool:
    """Return whether a convolution of ``block`` should multiply its rows by the weights before it gathers them.

    Parameters
    ----------
    x : (U, in_dim) source rows
    block : the edges
    in_dim, out_dim, num_heads : see `multiplies_first`
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

    X (U, F) are the source rows, W (F, H) the weights, and A (D, U) adds each destination's sources. Multiplying first
    takes a product over all U source rows and a gather of H columns. Aggregating first takes a gather of F columns per
    head and a product over the D destination rows. A backward pass repeats the product for the weights, and once more
    for an input with a gradient. The first layer's input has no gradient.

    Parameters
    ----------
    num_src, num_dst, num_edges : U, D, E of the block
    in_dim, out_dim : F and H
    input_has_grad : whether the layer's input needs a gradient
    num_heads : aggregations with different weights, each with H / num_heads columns
    gather_cost : result of `gather_cost`
    """
    # Matrix products: one forward, one backward for the weights, and a third for the input's gradient.
    products = 3 if input_has_grad else 2
    multiply = products * num_src * in_dim * out_dim + 2 * gather_cost * num_edges * out_dim
    # Attention weights differ by head and have gradients, so their backward pass gathers too.
    gathers = 2 if input_has_grad or num_heads > 1 else 1
    aggregate = gathers * gather_cost * num_heads * num_edges * in_dim + products * num_dst * in_dim * out_dim
    return multiply <= aggregate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """One layer: the sum of each relation's convolution and a Linear for the node's own row.

    The network owns and names the parameters. The layer has only types whose rows reach the output. A type without a
    Linear has one relation, whose convolution adds the node's own row.
    """

    roots: Mapping[str, nn.Linear]  # by type: the Linear, with bias, for the node's own row
    relations: Mapping[Relation, Conv]  # in the order of the dataset's record
    read_dims: Mapping[
        str, int
    ]  # width of each type's rows as they are stored: features, or sums of the layer below
    in_dims: Mapping[str, int]  # width of each type's rows that enter the layer
    out_dim: int  # width of the rows that leave the layer

    @property
    def types(self) -> tuple[str, ...]:
        """Types computed by the layer."""
        return tuple(self.roots) or tuple(name for _, _, name in self.relations)

    @property
    def head(self) -> Head | None:
        """The layers that each sum passes, or None. Only a layer with one convolution and no Linear can have a head."""
        return None if self.roots else next(iter(self.relations.values())).head

    @property
    def sum_dim(self) -> int:
        """Width of the sums. With a head, this is the head's input width."""
        return self.out_dim if self.roots else next(iter(self.relations.values())).sum_dim

    @property
    def column_step(self) -> int:
        """A range of the sums' columns must have a multiple of this number of columns."""
        return max((conv.column_step for conv in self.relations.values()), default=1)

    def relations_into(self, node_type: str) -> dict[Relation, Conv]:
        """Return the convolutions into a type."""
        return {relation: conv for relation, conv in self.relations.items() if relation[2] == node_type}

    def own(self, node_type: str, x: torch.Tensor, columns: slice) -> torch.Tensor:
        """Return the result of the Linear for the nodes' own rows, (n, columns), bias included.

        Parameters
        ----------
        node_type : one of `types`
        x : (n, in_dim) the nodes' rows
        columns : output columns
        """
        root = self.roots[node_type]
        return functional.linear(x, root.weight[columns], root.bias[columns])

    def forward(
        self, x: Mapping[str, torch.Tensor], hop: Mapping[Relation, DeviceBlock], num_rows: Mapping[str, int]
    ) -> dict[str, torch.Tensor]:
        """Return the rows (D_t, out_dim) for each of the `types`.

        Parameters
        ----------
        x : (U_t, in_dim) rows for each type in ``in_dims``; the first D_t rows are the destinations
        hop : each relation's block
        num_rows : D_t for each of the `types`
        """
        result = {name: root(x[name][: num_rows[name]]) for name, root in self.roots.items()}
        # Relations without edges in this batch are included: each parameter gets a gradient in every step, as the
        # average over ranks requires.
        for relation, conv in self.relations.items():
            source, _, destination = relation
            rows = conv(x[source], x[destination][: num_rows[destination]], hop[relation])
            result[destination] = result[destination] + rows if destination in result else rows
        return result
