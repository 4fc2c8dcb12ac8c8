"""The nodes whose rows are wanted, in any order, while all rows stream past in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from gloader.types import IdArray

Rows: TypeAlias = "slice | torch.Tensor"


class Targets:
    """Nodes of a type.

    Parameters
    ----------
    nodes : (n,) ids, in any order, repeats allowed; a range: all nodes
    num_nodes : of the type
    place : the device that computes
    """

    def __init__(self, nodes: IdArray | range, num_nodes: int, place: torch.device) -> None:
        everyone = range(num_nodes)
        # As everybody is asked for where predictions of all are: without an order of their own.
        is_all = isinstance(nodes, range) or (
            len(nodes) == num_nodes and bool((nodes == np.arange(num_nodes)).all())
        )
        self.nodes: IdArray | range = everyone if is_all else nodes
        self._place = place
        self._order = None if is_all else np.argsort(nodes, kind="stable")
        self._sorted = None if self._order is None else np.asarray(nodes)[self._order]

    def __len__(self) -> int:
        """Return n."""
        return len(self.nodes)

    def among(self, start: int, stop: int) -> tuple[Rows, Rows] | None:
        """Return the positions of those that are nodes ``start`` to ``stop``, and their rows in that chunk; None: none.

        A slice, where it is all of them.
        """
        if self._order is None or self._sorted is None:
            return slice(start, stop), slice(None)
        first, last = np.searchsorted(self._sorted, [start, stop])
        if first == last:
            return None
        rows = torch.from_numpy(self._sorted[first:last] - start)
        return torch.from_numpy(self._order[first:last]).to(self._place), rows.to(self._place)
