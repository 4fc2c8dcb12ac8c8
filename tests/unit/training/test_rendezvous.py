from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from gloader.errors import RankError
from gloader.training.rendezvous import fresh_store

SOON = timedelta(seconds=20)


def _meet(store: HashStore, world_size: int):
    with ThreadPoolExecutor(world_size) as pool:
        waits = [
            pool.submit(fresh_store, store, rank=rank, world_size=world_size, timeout=SOON)
            for rank in range(world_size)
        ]
        return [wait.result() for wait in waits]


@pytest.mark.reliability("G5")
def test_ranks_that_start_again_do_not_find_what_the_dead_ones_wrote() -> None:
    store = HashStore()
    first = _meet(store, 3)
    first[0].set("address", "of the dead")
    assert all(part.get("address") == b"of the dead" for part in first)
    second = _meet(store, 3)
    assert not any(part.check(["address"]) for part in second)
    second[2].set("address", "new")
    assert second[0].get("address") == b"new"


@pytest.mark.parametrize(("rank", "message"), [(0, "rank 1, 2 did not arrive"), (1, "rank 0 did not arrive")])
def test_a_rank_that_does_not_come_is_named(rank: int, message: str) -> None:
    with pytest.raises(RankError, match=message):
        fresh_store(HashStore(), rank=rank, world_size=3, timeout=timedelta(seconds=0.05))
