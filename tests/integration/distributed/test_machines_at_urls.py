"""Ranks and machines that open one URL: each machine has a mirror, and fetches a block once for all of its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from machines import LOADING, load_on, results_of
from rank_scenarios import build, digest
from rank_server import Ended

from gloader.core.paths import home_dir
from gloader.ssd_store.mirror import open_mirror
from gloader.testing.range_server import RangeServer

BLOCK_BYTES = 4096
NAMES = ("left", "left", "right", "right")


@pytest.mark.reliability("O13")
@pytest.mark.parametrize("exchange", ["never", "always"])
def test_ranks_of_machines_at_one_url_load_what_a_folder_gives_and_fetch_each_block_once_a_machine(
    run: Callable[..., list[Ended]], dataset: Path, exchange: str
) -> None:
    def alone(rank: int) -> list[str]:
        with build(str(dataset), rank=rank, world_size=len(NAMES), **LOADING) as loader:
            return [digest(batch) for batch in loader]

    with RangeServer(dataset.parent, latency_s=0.002) as server:
        url = f"{server.url}/{dataset.name}"
        mirrors = {name: home_dir() / "mirrors" / name for name in NAMES}
        for mirror_dir in mirrors.values():
            open_mirror(url, mirror_dir=mirror_dir, block_bytes=BLOCK_BYTES)[1].close_mirror()
        server.served.forget()
        results = results_of(load_on(run, [url] * len(NAMES), names=NAMES, exchange=exchange))
        asked = Counter((each.name, each.start) for each in server.served.log if each.method == "GET")
    for rank, found in enumerate(results):
        assert found["digests"] == [alone(rank)]

    asked.pop((f"{dataset.name}/dataset.json", 0))  # by each rank
    assert max(asked.values()) <= 2
