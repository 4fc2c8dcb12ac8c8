"""Maps from nodes in a batch to local ids: an array of N labels, or a hash table for large N.

A batch numbers its nodes 0, 1, ... in the order in which they are found: their local ids. A `Workspace` has one map for
each node type, and a hop calls `relabel` to turn the sources of its edges into local ids. A map stores labels: a label
is the batch's base plus a node's local id. A new batch raises the base above every earlier label. So earlier labels
become void without clearing the map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gloader.samplers import relabel_kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

LABEL_END = 2**31  # labels are int32
_SLOT_BYTES = 12  # an int64 key and an int32 label
_MIN_SLOTS = 1 << 10  # slots of a new hash table (12 KB), which doubles as needed


class DenseMap:
    """An array of N labels, 4 bytes per node, filled with zeros once and then reused without clearing. For one thread.

    The map serves one batch after another. After an interrupt or a damaged graph it must not be used again
    (`WorkspacePool` drops it).
    """

    __slots__ = ("_base", "_labels", "_used")

    def __init__(self, num_nodes: int) -> None:
        self._labels: LocalArray = np.zeros(num_nodes, dtype=np.int32)
        self._base = 1
        self._used = 0

    def begin(self, seeds: IdArray, nodes: IdArray) -> int:
        """Start a batch with ``seeds``, copied to ``nodes``; return the number of repeats among the seeds."""
        # The new base is above every label in the previous batch: these labels now mean "not seen", see
        # `relabel_kernels`.
        self._base += self._used
        if self._base + self._labels.shape[0] > LABEL_END:
            # The int32 labels are used up once in thousands of batches. Only then is the array cleared.
            self._labels.fill(0)
            self._base = 1
        repeats: int = relabel_kernels.enter_dense(seeds, nodes, self._base, self._labels)
        self._used = seeds.shape[0]
        return repeats

    def relabel(
        self, graph_indices: NDArray[Any], edge_ids: IdArray, nodes: IdArray, num_nodes: int, out: LocalArray
    ) -> int:
        """Write the local ids of edge sources, append new nodes; return the number of nodes.

        Parameters
        ----------
        graph_indices : sources of edges
        edge_ids : (M,) places in ``graph_indices``
        nodes : (>= U + 1,) the batch's global ids, in first-seen order; new nodes are appended
        num_nodes : number of nodes so far
        out : (M,) receives the local ids

        Returns
        -------
        int
            The number of nodes, or -1 - i if the source of edge i is not a node. In this case the map must not be
            used again.
        """
        total: int = relabel_kernels.relabel_dense(
            graph_indices, edge_ids, nodes, num_nodes, self._base, self._labels, out
        )
        self._used = total
        return total

    def find(self, nodes: IdArray, out: IdArray) -> None:
        """Replace each -1 in ``out`` (n,) by the local id of the node in ``nodes`` (n,); unseen nodes keep -1."""
        relabel_kernels.find_dense(nodes, self._base, self._labels, out)


class HashMap:
    """An open-addressing hash table, 12 bytes per slot and at most half full. It grows to the largest batch.

    The methods work as in `DenseMap`.
    """

    __slots__ = ("_base", "_keys", "_labels", "_num_nodes", "_shift", "_used")

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._base = 1
        self._used = 0
        self._allocate(_MIN_SLOTS)

    def begin(self, seeds: IdArray, nodes: IdArray) -> int:
        """Start a batch with ``seeds``, copied to ``nodes``; return the number of repeats among the seeds."""
        self._base += self._used
        self._used = 0
        self._reserve(nodes[:0], seeds.shape[0])
        self._used = seeds.shape[0]
        repeats: int = relabel_kernels.enter_hashed(
            seeds, nodes, self._base, self._keys, self._labels, self._shift
        )
        return repeats

    def relabel(
        self, graph_indices: NDArray[Any], edge_ids: IdArray, nodes: IdArray, num_nodes: int, out: LocalArray
    ) -> int:
        """Write the local ids of edge sources, append new nodes; return the number of nodes.

        Parameters
        ----------
        graph_indices : sources of edges
        edge_ids : (M,) places in ``graph_indices``
        nodes : (>= U + 1,) the batch's global ids, in first-seen order; new nodes are appended
        num_nodes : number of nodes so far
        out : (M,) receives the local ids
        """
        largest = min(num_nodes + edge_ids.shape[0], self._num_nodes)
        self._reserve(nodes[:num_nodes], largest)
        total: int = relabel_kernels.relabel_hashed(
            graph_indices,
            self._num_nodes,
            edge_ids,
            nodes,
            num_nodes,
            self._base,
            self._keys,
            self._labels,
            self._shift,
            out,
        )
        self._used = total
        return total

    def find(self, nodes: IdArray, out: IdArray) -> None:
        """Replace each -1 in ``out`` (n,) by the local id of the node in ``nodes`` (n,); unseen nodes keep -1."""
        relabel_kernels.find_hashed(nodes, self._base, self._keys, self._labels, self._shift, out)

    def _reserve(self, entered: IdArray, num_nodes: int) -> None:
        """Make room for ``num_nodes`` nodes; ``entered`` are the nodes already in the table."""
        # The table stays at most half full, so that a search ends after one or two slots.
        if 2 * num_nodes <= self._keys.shape[0] and self._base + num_nodes <= LABEL_END:
            return
        self._allocate(max(self._keys.shape[0], _slots_for(num_nodes)))
        self._base = 1
        relabel_kernels.enter_hashed(entered, entered, self._base, self._keys, self._labels, self._shift)

    def _allocate(self, slots: int) -> None:
        """Make an empty table with ``slots`` slots, a power of two."""
        self._keys: IdArray = np.empty(slots, dtype=np.int64)
        self._labels: LocalArray = np.zeros(slots, dtype=np.int32)
        self._shift = np.uint64(64 - (slots.bit_length() - 1))  # keeps the upper bits of a 64-bit hash


NodeMap: TypeAlias = "DenseMap | HashMap"


def hash_map_bytes(num_nodes: int) -> int:
    """Return the bytes in a `HashMap` with room for ``num_nodes`` nodes. Pure."""
    return _SLOT_BYTES * max(_slots_for(num_nodes), _MIN_SLOTS)


def _slots_for(num_nodes: int) -> int:
    """Return the smallest power of two that is at least twice ``num_nodes``."""
    return 1 << (2 * num_nodes - 1).bit_length()
