"""The host cache: a policy that decides, and the slots that hold rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.cache import SlotCache, hottest_by_degree, make_policy, out_degrees

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.cache import Policy
    from gloader.cache.baselines import PolicyName
    from gloader.samplers import CscGraph
    from gloader.types import FeatureSource, IdArray, ReadStats

# Beside its row, a slot takes a tag and, where the policy keeps queues, links and marks; a node takes its slot and,
# for S3-FIFO, when it was evicted.
TAG_BYTES = 8
_QUEUE_BYTES = 30
_MAP_BYTES = 4
_GHOST_BYTES = 8


def slot_bytes(policy: PolicyName) -> int:
    """Return the bytes that ``policy`` keeps per slot, the row not included. Pure."""
    return TAG_BYTES + (0 if policy in {"static", "none"} else _QUEUE_BYTES)


def node_bytes(policy: PolicyName) -> int:
    """Return the bytes that ``policy`` keeps per node of the graph. Pure."""
    return _MAP_BYTES + (_GHOST_BYTES if policy == "s3fifo" else 0)


class HostCache:
    """Up to C feature rows in memory, in front of a source. One gather at a time.

    A static cache holds the rows of the nodes with the most out-edges; the others start empty and decide batch by
    batch, since this loader does not look ahead.

    Parameters
    ----------
    policy : which rows stay
    capacity : C
    graph : for its out-degrees
    source : all N rows
    """

    def __init__(self, policy: PolicyName, capacity: int, *, graph: CscGraph, source: FeatureSource) -> None:
        self._name = policy
        self._num_nodes = graph.num_nodes
        self._capacity = capacity
        self._source = source
        self._slots = SlotCache(capacity, dim=source.dim)
        self._hot: IdArray | None = None
        if policy == "static":
            self._hot = hottest_by_degree(out_degrees(graph.indices, graph.num_nodes), capacity)
            self._slots.fill(self._hot, source)
        self._policy = self._new_policy()

    def gather(self, nodes: IdArray, out: NDArray[np.float32]) -> tuple[int, ReadStats]:
        """Put the rows of ``nodes`` (U,) into ``out`` (U, F); return the number of hits and what reading cost.

        Raises
        ------
        PlanError
            The policy and the slots disagree.
        StoreError
            The source failed; the cache is empty then, or what it was where it is static.
        """
        step = self._policy.step(nodes)
        try:
            read = self._slots.execute(step, nodes, out, self._source)
        except BaseException:
            self._start_over()
            raise
        return len(step.hit_pos), read

    def _new_policy(self) -> Policy:
        hot = {} if self._hot is None else {"hot": self._hot}
        return make_policy(self._name, num_nodes=self._num_nodes, capacity=self._capacity, **hot)

    def _start_over(self) -> None:
        """Forget what an online policy counts on and was not done."""
        if self._hot is None:
            self._slots.clear()
            self._policy = self._new_policy()
