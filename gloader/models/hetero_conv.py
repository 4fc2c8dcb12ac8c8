"""The seam between a typed network and its layers: one convolution for each relation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch import nn

    from gloader.models.adjacency import Adjacency
    from gloader.models.conv import Table
    from gloader.types import DeviceBlock, Relation


class RelationConv(Protocol):
    """What the nodes of one type get from those of another, or of their own, along one relation.

    On a sampled block, and in two steps on all in-edges of any nodes, as `gloader.models.conv.Conv` does: `project`
    streams over the sources, `project_own` over the destinations, and `propagate` joins them. A relation without
    edges adds what its bias adds, as in PyG.
    """

    out_dim: int

    def __call__(self, x_src: torch.Tensor, x_dst: torch.Tensor, block: DeviceBlock, /) -> torch.Tensor:
        """Return (D, out_dim) for the rows (U, in_dim) of the sources and (D, own_dim) of the destinations."""
        ...

    @property
    def column_step(self) -> int:
        """Output columns come in multiples of this."""
        ...

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """Floats per source in each part of the table that ``num_columns`` output columns need."""
        ...

    def project(self, x_src: torch.Tensor, columns: slice) -> Table:
        """Return the table rows of n sources.

        Parameters
        ----------
        x_src : (n, in_dim) their inputs
        columns : output columns, a multiple of `column_step`
        """
        ...

    def own_widths(self, num_columns: int) -> tuple[int, ...]:
        """Floats per destination in each part of what `project_own` returns."""
        ...

    def project_own(self, x_dst: torch.Tensor, columns: slice) -> Table:
        """Return what the relation has to know of n destinations.

        Parameters
        ----------
        x_dst : (n, own_dim) their inputs
        columns : as of `project`
        """
        ...

    def propagate(
        self,
        table: Table,
        own: Table,
        pieces: Iterable[Adjacency],
        degree: torch.Tensor,
        columns: slice,
    ) -> torch.Tensor:
        """Return (n, columns) for n destinations from all their in-edges of the relation.

        Parameters
        ----------
        table : of all sources, made by `project`
        own : of the n destinations, made by `project_own`
        pieces : adjacencies with n destinations each, which together hold every in-edge once, with sources that
            index the table; none where there is no edge
        degree : (n,) float32, in-edges of the destinations
        columns : those of the table
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeteroLayer:
    """One layer: a convolution for each relation, summed, and a Linear for the node's own row.

    Its parameters belong to the network, which names them. It has only types whose rows reach the logits.
    """

    roots: Mapping[str, nn.Linear]  # of each type that the layer computes, with bias
    relations: Mapping[Relation, RelationConv]  # into those types, in the order of the record
    in_dims: Mapping[str, int]  # width of the rows of each type that the layer looks at
    out_dim: int

    @property
    def types(self) -> tuple[str, ...]:
        """The types that the layer computes."""
        return tuple(self.roots)

    @property
    def column_step(self) -> int:
        """Output columns come in multiples of this."""
        return max((conv.column_step for conv in self.relations.values()), default=1)

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
