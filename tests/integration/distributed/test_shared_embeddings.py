"""Ranks that train an embedding together: bit for bit torch's, with the sum of their gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from embedding_scenarios import expected
from rank_server import Ended

Run = Callable[..., list[Ended]]


def _results(ended: list[Ended]) -> list[Any]:
    assert [(rank.status, rank.error) for rank in ended] == [(0, "")] * len(ended)
    return [rank.result for rank in ended]


@pytest.mark.parametrize(
    ("world", "mode", "optimizer"), [(2, "ssd", "adagrad"), (3, "ssd", "adam"), (2, "ram", "adam")]
)
def test_ranks_train_the_bits_of_one_process_that_adds_their_gradients(
    run: Run, dataset: Path, world: int, mode: str, optimizer: str
) -> None:
    want = expected(str(dataset), world=world, optimizer=optimizer)
    found = _results(run("training", world=world, mode=mode, optimizer=optimizer))
    assert [rank["digests"] for rank in found] == want["digests"]
    assert found[0]["rows"] == want["rows"]
    assert {rank["num_steps"] for rank in found} == {want["num_steps"]}
