"""The seam between a network and its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.models.adjacency import Adjacency
    from gloader.types import DeviceBlock

Table = tuple[torch.Tensor, ...]


class Conv(Protocol):
    """One graph convolution, on a sampled block and, in two steps, on all in-edges of any nodes.

    The two steps are for graphs whose features exceed memory: `project` is dense and is streamed over
    the nodes in order; `propagate` then needs only the projected table. Both work on a range of output
    columns, so that the table can be made as narrow as memory asks.
    """

    in_dim: int
    out_dim: int

    def __call__(self, x: torch.Tensor, block: DeviceBlock, /) -> torch.Tensor:
        """Return (D, out_dim) for ``x`` (U, in_dim), whose first D rows are the destinations."""
        ...

    @property
    def column_step(self) -> int:
        """Output columns come in multiples of this."""
        ...

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """Floats per node in each part of the table that ``num_columns`` output columns need."""
        ...

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice) -> Table:
        """Return the table rows of nodes with inputs ``x`` (n, in_dim) and in-degrees ``degree`` (n,)."""
        ...

    def propagate(
        self,
        table: Table,
        nodes: torch.Tensor,
        pieces: Iterable[Adjacency],
        degree: torch.Tensor,
        columns: slice,
    ) -> torch.Tensor:
        """Return (n, columns) for ``nodes`` (n,) int64 from all their in-edges.

        ``pieces`` are one or more adjacencies with n destinations each, which together hold every in-edge
        once, with sources that index the table; ``degree`` (n,) float32.
        """
        ...
