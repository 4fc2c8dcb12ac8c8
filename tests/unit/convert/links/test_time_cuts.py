"""The times at which shares of the edges end, against sorted times."""

import numpy as np
import pytest

from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.links.edge_parts import time_parts
from gloader.convert.progress import NO_PROGRESS
from gloader.convert.source import EdgeChunk


class Timed:
    has_weights, has_times = False, True

    def __init__(self, times):
        self.times, self.num_edges = np.asarray(times, np.int64), len(times)

    def chunks(self, max_edges):
        for start in range(0, self.num_edges, max_edges):
            times = self.times[start : start + max_edges]
            ids = np.zeros(times.shape[0], np.int64)
            yield EdgeChunk(src=ids, dst=ids, weight=None, time=times)


FAR = 10 * 65_536 - 1  # bins of 10 seconds, and then of 1


@pytest.mark.parametrize(
    "times",
    [
        [0, 9, 9, 9, 9, 100, 100, FAR, FAR, FAR],  # a cut at the end of a bin
        [0, 10, 10, 10, 10, 11, 19, 20, 29, FAR],  # at its beginning
        [7] * 10,
        [-(2**61), -1, 0, 1, 2, 3, 4, 5, 6, 2**61],
        np.random.default_rng(0).integers(0, 10**9, 1000).tolist(),
        np.random.default_rng(1).integers(-(2**60), 2**60, 997).tolist(),
        np.random.default_rng(2).integers(0, 5, 100).tolist(),
    ],
)
@pytest.mark.parametrize("shares", [(0.5, 0.2, 0.3), (0.8, 0.1, 0.1), (0.01, 0.98, 0.01)])
def test_cuts_are_the_times_of_the_last_edges(times, shares):
    ends = EdgeEnds.of(1, "made")
    found = time_parts(Timed(times), shares, ends=ends, max_edges=64, progress=NO_PROGRESS)
    in_order, count = sorted(times), len(times)
    last = [max(1, round(share * count)) - 1 for share in (shares[0], shares[0] + shares[1])]
    assert (found.train_end, found.valid_end) == (in_order[last[0]], in_order[last[1]])
