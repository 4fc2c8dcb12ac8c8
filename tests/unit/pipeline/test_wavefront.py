"""The schedule of the passes: every hop of every batch once, in its order, and nothing for batches nobody takes."""

from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from gloader.errors import ConfigError
from gloader.pipeline.edge_sweeps import EdgePass, batches_swept, edge_passes


def _stream(count: int) -> Any:
    """Return a stream of ``count`` batches, as far as passes need it."""
    return SimpleNamespace(has=lambda position: position < count)


def _passes(size: int, hops: int, count: int) -> list[EdgePass]:
    return list(edge_passes(_stream(count), size, num_hops=hops))


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("hops", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 30])
def test_each_hop_of_each_batch_is_served_once_behind_the_hop_before_it(
    size: int, hops: int, count: int
) -> None:
    served = dict.fromkeys(range(count), 0)  # hops of each position so far
    completed: list[int] = []
    passes = _passes(size, hops, count)
    for number, edges in enumerate(passes):
        assert edges.number == number
        assert len(edges.positions) > 0
        assert list(edges.positions) == [position for part in edges.served for position in part]
        for place, part in enumerate(edges.served):
            assert len(part) <= size
            for position in part:
                assert served[position] == hops - 1 - place
                served[position] += 1
        completed += edges.completed
        assert all(served[position] == hops for position in edges.completed)
    assert completed == list(range(count))
    assert set(served.values()) <= {hops}


def test_the_first_superbatches_are_small_while_the_wave_fills() -> None:
    begun = [len(edges.begun) for edges in islice(edge_passes(_stream(10**9), 8, num_hops=3), 6)]
    assert begun == [1, 2, 4, 8, 8, 8]
    assert [len(edges.begun) for edges in islice(edge_passes(_stream(10**9), 8, num_hops=1), 3)] == [
        1,
        8,
        8,
    ]
    assert [len(edges.completed) for edges in _passes(8, 3, 10)] == [0, 0, 1, 2, 4, 3]


def test_no_pass_is_made_beyond_the_last_batch() -> None:
    for hops in (1, 2, 3):
        assert len(_passes(4, hops, 1)) == hops
        assert not _passes(4, hops, 0)


@pytest.mark.parametrize("size", [0, -1])
def test_a_superbatch_of_nothing_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"a superbatch cannot have {size} batches"):
        _passes(size, 2, 5)


def test_two_superbatches_and_what_plans_look_ahead_to_may_be_swept() -> None:
    assert batches_swept(8, 3) == 22
