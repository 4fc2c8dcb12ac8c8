"""Node orders of a dataset: as in the source, by falling degree, or by community."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from gloader.convert.csc.edge_rules import EdgeEnds, chunks_after_rules
from gloader.convert.order.communities import community_order

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.convert.options import EdgeRules, OrderName
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import Source
    from gloader.types import IdArray

# Bytes of memory per node of rows that are joined to nodes by id: the ids, and the order of the rows and its inverse.
JOINED_NODE_BYTES = 24
# Bytes of memory per node that finding an order, and then having one, takes at most.
ORDER_NODE_BYTES: dict[OrderName, int] = {"none": 0, "degree": 32, "community": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder:
    """A numbering of the nodes and its inverse."""

    new_ids: IdArray  # (N,) by original id
    original_ids: IdArray  # (N,) by new id

    @classmethod
    def of(cls, original_ids: IdArray) -> RowOrder:
        """Return the order that lists the nodes as ``original_ids`` (N,), a permutation, does. Pure."""
        new_ids = np.empty_like(original_ids)
        new_ids[original_ids] = np.arange(original_ids.shape[0], dtype=np.int64)
        return cls(new_ids=new_ids, original_ids=original_ids)

    @classmethod
    def of_rows(cls, row_ids: IdArray | None, order: RowOrder | None) -> RowOrder | None:
        """Return the order in which rows of features are stored; None: the order in which they come. Pure.

        Parameters
        ----------
        row_ids : (N,) the node of each row, by its id in the source; None: row i is of node i
        order : of the nodes; None: they keep their ids
        """
        if row_ids is None:
            return order
        places = row_ids if order is None else order.new_ids[row_ids]
        return cls(new_ids=places, original_ids=cls.of(places).new_ids)

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.new_ids.shape[0])

    def targets(self, first: int, stop: int) -> tuple[None, IdArray]:
        """Return where rows ``first`` ... ``stop - 1`` go; see `RowMoves`. Pure."""
        return None, self.new_ids[first:stop]

    def arrivals(self, first: int, stop: int) -> IdArray:
        """Return the places ``first`` ... ``stop - 1`` in the order in which rows come; see `RowMoves`. Pure."""
        # Rows are dealt out in order of their original ids: sorting these says which row came when.
        return np.argsort(self.original_ids[first:stop])


def find_order(
    source: Source,
    name: OrderName,
    *,
    rules: EdgeRules,
    budget_bytes: int,
    max_edges: int,
    scratch: Path,
    progress: PrepareProgress,
) -> RowOrder | None:
    """Find the order of the nodes under which their rows are stored; None: that of the source.

    The edges are read once. ``degree`` lists the nodes by falling out-degree, which is how often they are
    somebody's in-neighbour; parallel edges count each. ``community``: see `community_order`. Equal sources have
    equal orders, whatever the budget; for ``community`` this holds as long as no node has more in-edges than
    fit into it.

    Parameters
    ----------
    source : its edges are read once, unless ``name`` is "none"
    name : the order
    rules : what happens to the edges before they are counted
    budget_bytes : memory for edges; the arrays of one entry per node (`ORDER_NODE_BYTES`) come on top
    max_edges : edges read at a time
    scratch : an existing folder for temporary files; they are gone when this returns or raises
    progress : receives the steps

    Raises
    ------
    GraphError
        An id is out of range or a weight is not a finite number of at least 0.
    StoreWriteError
        The disk refuses a temporary file.
    """
    if name == "none":
        return None
    if name == "community":
        return RowOrder.of(
            community_order(
                source, rules=rules, budget_bytes=budget_bytes, scratch=scratch, progress=progress
            )
        )
    degrees = _out_degrees(source, rules=rules, max_edges=max_edges, progress=progress)
    return RowOrder.of(by_falling_degree(degrees))


def by_falling_degree(degrees: IdArray) -> IdArray:
    """Return the nodes by falling degree, those of equal degree by id; ``degrees`` (N,) is overwritten."""
    # Negated in place, so that the stable sort keeps nodes of equal degree in order of their ids.
    np.negative(degrees, out=degrees)
    return np.argsort(degrees, kind="stable")


def _out_degrees(source: Source, *, rules: EdgeRules, max_edges: int, progress: PrepareProgress) -> IdArray:
    degrees = np.zeros(source.num_nodes, np.int64)
    ends = EdgeEnds.of(source.num_nodes, source.edge_origin)
    done = 0
    for count, chunk in chunks_after_rules(source.edges, ends=ends, rules=rules, max_edges=max_edges):
        count_nodes(chunk.src, degrees)
        done += count
        progress.advance("counting neighbours", done, source.edges.num_edges, "edges")
    return degrees


@njit(cache=True, nogil=True)
def count_nodes(nodes: IdArray, counts: IdArray) -> None:
    """Add to ``counts[v]`` how often v occurs in ``nodes``, which have been checked."""
    for i in range(nodes.shape[0]):
        counts[nodes[i]] += 1
