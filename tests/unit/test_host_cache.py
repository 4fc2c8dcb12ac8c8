"""The host cache in front of a source: right rows whatever the policy, also after a failed read."""

from typing import Any, get_args

import numpy as np
import pytest

from gloader.cache.baselines import PolicyName
from gloader.errors import StoreReadError
from gloader.host_cache import HostCache
from gloader.samplers import CscGraph
from gloader.ssd_store import RamFeatures
from gloader.types import ReadStats

NUM_NODES, DIM = 40, 3


class FlakySource(RamFeatures):
    """A source whose n-th read fails."""

    fails_in = -1

    def read_into(self, rows: Any, out: Any, /, *, at: Any = None) -> ReadStats:
        self.fails_in -= 1
        if self.fails_in == 0:
            raise StoreReadError(5, "the disk is gone")
        return super().read_into(rows, out, at=at)


def _source() -> tuple[FlakySource, np.ndarray, CscGraph]:
    rows = np.arange(NUM_NODES * DIM, dtype=np.float32).reshape(NUM_NODES, DIM)
    indices = (np.arange(100) ** 2 % NUM_NODES).astype(np.int32)
    indptr = np.linspace(0, 100, NUM_NODES + 1).astype(np.int64)
    return FlakySource(rows), rows, CscGraph(indptr=indptr, indices=indices)


@pytest.mark.parametrize("policy", get_args(PolicyName))
@pytest.mark.parametrize("capacity", [1, 7, NUM_NODES])
def test_every_policy_delivers_the_rows_of_the_nodes(policy: PolicyName, capacity: int) -> None:
    source, rows, graph = _source()
    cache = HostCache(policy, capacity, graph=graph, source=source)
    rng = np.random.Generator(np.random.Philox(1))
    for batch in range(30):
        nodes = rng.permutation(NUM_NODES)[:12]
        out = np.empty((12, DIM), dtype=np.float32)
        if batch == 11:
            source.fails_in = 1
            with pytest.raises(StoreReadError):
                cache.gather(nodes, out)
        hits, read = cache.gather(nodes, out)
        np.testing.assert_array_equal(out, rows[nodes])
        assert hits + read.rows == 12
