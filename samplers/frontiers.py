"""The frontiers of a batch, hop by hop, whatever its nodes draw by. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.ids import id_dtype
from gloader.samplers import distinct_kernels
from gloader.samplers.arguments import checked_seeds, require_distinct
from gloader.samplers.sweeping import Frontier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.samplers.exclusion import Excluded
    from gloader.types import BatchId, IdArray


def first_frontier(
    batch_id: BatchId,
    seeds: IdArray,
    num_nodes: int,
    *,
    noun: str = "seeds",
    excluded: Excluded | None = None,
) -> Frontier:
    """Return the frontier of hop 0: the seeds (B,) in ascending order; raises as `Sampler.sample`. Pure.

    Parameters
    ----------
    batch_id : the address of the batch
    seeds : (B,) node ids
    num_nodes : N
    noun : what the user knows them as
    excluded : edges that no hop takes; None: none
    """
    nodes = np.sort(checked_seeds(seeds, num_nodes)).astype(id_dtype(num_nodes))
    if (nodes[1:] == nodes[:-1]).any():
        require_distinct(nodes, noun=noun)
    return Frontier(batch_id=batch_id, hop=0, nodes=nodes, seen=nodes, excluded=excluded)


def next_frontier(frontier: Frontier, sources: NDArray[Any], *, is_merged: bool) -> Frontier:
    """Return the frontier of the next hop; that of hop L has in ``seen`` every node of the batch. Pure.

    Parameters
    ----------
    frontier : of a hop
    sources : (K,) nodes of the graph, of which those that it takes draw next, in any order
    is_merged : whether those that were seen before do not draw again
    """
    seen = frontier.seen
    found = sources.astype(seen.dtype)  # a copy in any case
    found.sort()
    union = np.empty(len(seen) + len(found), dtype=seen.dtype)
    num_new = distinct_kernels.merge_into(seen, found, union)
    # A frontier is kept until its batch is done: nothing is to be left of what was reserved.
    union.resize(len(seen) + num_new, refcheck=False)
    nodes = found[:num_new].copy() if is_merged else union
    return Frontier(
        batch_id=frontier.batch_id,
        hop=frontier.hop + 1,
        nodes=nodes,
        seen=union,
        excluded=frontier.excluded,
    )
