"""The number of known nodes of each type after each hop."""

import numpy as np

from gloader.bridges.loader_view import nodes_by_hop
from gloader.types import Block


def _block(num_src: int, num_dst: int) -> Block:
    return Block(
        indptr=np.zeros(num_dst + 1, dtype=np.int32),
        indices=np.empty(0, dtype=np.int32),
        edge_ids=np.empty(0, dtype=np.int64),
        num_src=num_src,
        num_dst=num_dst,
    )


def test_a_type_that_no_relation_comes_from_keeps_its_seeds() -> None:
    writes = ("author", "writes", "paper")
    hops = [{writes: _block(7, 3)}, {writes: _block(4, 3)}]
    assert nodes_by_hop({"paper": 3, "author": 1}, hops) == {"paper": [3, 3, 3], "author": [1, 4, 7]}
