"""The demand of a run of several types, measured by its first batches."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from gloader.pipeline.open.disk import _hop_nodes
from gloader.pipeline.open.first_batches import _batch_rows
from gloader.samplers import HeteroGraph
from gloader.types import BatchId, Block, HeteroBatch


def _block(num_src: int, num_dst: int) -> Block:
    none = np.empty(0, dtype=np.int64)
    indptr = np.zeros(num_dst + 1, dtype=np.int32)
    return Block(
        indptr=indptr, indices=none.astype(np.int32), edge_ids=none, num_src=num_src, num_dst=num_dst
    )


BATCH = HeteroBatch(
    id=BatchId(epoch=0, index=0),
    nodes={"paper": np.arange(3), "author": np.arange(37)},
    num_seeds={"paper": 3, "author": 1},
    blocks=({("author", "writes", "paper"): _block(37, 3)}, {("author", "writes", "paper"): _block(4, 3)}),
)


def test_nodes_of_a_batch_are_those_of_all_types() -> None:
    graph = HeteroGraph(num_nodes={"paper": 100, "author": 100}, relations={})
    work: Any = SimpleNamespace(probe=[BATCH], topology=graph)
    assert _batch_rows(work) == 46  # 40, and 15% more
    work.topology = HeteroGraph(num_nodes={"paper": 3, "author": 40}, relations={})
    assert _batch_rows(work) == 43


def test_nodes_that_wait_for_a_hop_are_those_of_all_types() -> None:
    dataset: Any = SimpleNamespace(node_types=("paper", "author"), relations=(("author", "writes", "paper"),))
    assert _hop_nodes(dataset, BATCH, is_merged=False) == [3 + 1, 3 + 4]
    # Those found last, and all that were seen.
    assert _hop_nodes(dataset, BATCH, is_merged=True) == [2 * 3 + 2 * 1, 3 + (2 * 4 - 1)]
