"""Machines that GLOADER_MACHINE tells apart on one host: each has a loader of its own, and its part of the memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rank_scenarios import build, digest
from rank_server import Ended

Run = Callable[..., list[Ended]]

MEMORY_BYTES = 480 << 20  # of the host, as the scenario says


def _results(ended: list[Ended]) -> list[dict]:
    assert [(rank.status, rank.error) for rank in ended] == [(0, "")] * len(ended)
    return [rank.result for rank in ended]


def test_ranks_of_a_machine_share_a_loader_and_the_batches_are_those_of_one_machine(
    run: Run, dataset: Path
) -> None:
    results = _results(run("on_machines", world=4, names=["a", "b", "a", "b"], batch_size=4))
    assert [found["ranks"] for found in results] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    for rank, found in enumerate(results):
        assert (found["hosts"], found["machines"]) == ([0, 1], ["a", "b"])
        assert found["local_rank"] == rank // 2
        with build(str(dataset), rank=rank, world_size=4, batch_size=4) as loader:
            assert found["digests"] == [digest(batch) for batch in loader]


@pytest.mark.parametrize(
    ("names", "sharing", "parts"),
    [
        (["a", "a", "a"], "auto", [1, None, None]),
        (["a", "b", "b"], "auto", [2, 2, None]),
        (["c", "a", "b"], "auto", [3, 3, 3]),
        (["a", "b", "b"], "private", [3, 3, 3]),
    ],
)
def test_each_loader_of_a_host_takes_its_part_of_a_budget_that_nobody_named(
    run: Run, names: list[str], sharing: str, parts: list[int | None]
) -> None:
    results = _results(
        run(
            "on_machines",
            world=3,
            names=names,
            sharing=sharing,
            batch_size=8,
            memory_budget=None,
            exchange="never",  # takes a part of the budget
        )
    )
    assert [found["budget"] for found in results] == [part and MEMORY_BYTES // part for part in parts]
    assert {found["machines_here"] for found in results} == {len(set(names))}


def test_a_bad_name_of_one_machine_is_told_on_all_ranks(run: Run) -> None:
    ended = run("on_machines", world=2, names=["a", "b c"], batch_size=8)
    assert [how.status for how in ended] == [1, 1]
    assert ended[0].error.startswith("gloader.errors.RankError: rank 1 failed: ConfigError: GLOADER_MACHINE")
    assert ended[1].error.startswith("gloader.errors.ConfigError: GLOADER_MACHINE='b c' is no name")
    assert all(how.seconds < 5 for how in ended)
