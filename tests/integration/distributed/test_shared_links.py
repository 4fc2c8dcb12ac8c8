"""Batches of links on the ranks of a machine: those of a private loader, with pairs, labels and rows of edges."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from integration.loader.linked import write_linked
from rank_scenarios import build, digest
from rank_server import Ended

Run = Callable[..., list[Ended]]


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with rows and times of edges, and a table of links, most of them edges."""
    return write_linked(tmp_path_factory.mktemp("linked") / "graph").dataset.root


WAYS: dict[str, dict[str, Any]] = {
    "without the edges": {"mode": "ram", "exclude": "reverse", "negatives": "uniform:2,strict"},
    "from packs": {"mode": "packed", "exclude": "self", "negatives": "in_batch"},
    "at their times": {"mode": "ram", "negatives": "binary:1.5", "time_strategy": "last"},
    "of types": {"mode": "ram", "typed": True, "exclude": "reverse"},
}


@pytest.mark.parametrize("way", WAYS)
def test_shared_batches_of_links_are_those_of_private_loaders(run: Run, linked: Path, way: str) -> None:
    settings = {"edges": "train", "batch_size": 16, **WAYS[way]}
    ended = run("epochs", dataset=str(linked), world=2, epochs=2, **settings)
    assert [(rank.status, rank.error) for rank in ended] == [(0, "")] * 2
    assert "rank 0 loads for all ranks of this machine" in ended[1].result["text"]
    for rank, found in enumerate(ended):
        with build(str(linked), rank=rank, world_size=2, **settings) as loader:
            expected = [[digest(batch) for batch in loader] for _ in range(2)]
        assert found.result["digests"] == expected
        assert len({*expected[0]}) == len(expected[0]) > 5
