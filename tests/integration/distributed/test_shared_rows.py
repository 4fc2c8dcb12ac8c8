"""Rows of a task table on the ranks of a machine: the batches of private loaders, with weights and ages of rows."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rank_scenarios import build, digest
from rank_server import Ended
from row_worlds import world
from tasks import task_arrays, write_tasks


@pytest.mark.parametrize("mode", ["ram", "packed"])
@pytest.mark.parametrize("table", ["churn", "plain"])
def test_shared_batches_of_rows_are_those_of_private_loaders(
    run: Callable[..., list[Ended]], tmp_path: Path, table: str, mode: str
) -> None:
    tables = {"churn.train": task_arrays(90), "plain.train": task_arrays(70, kind="values", times=False)}
    root = str(write_tasks(tmp_path / "d", tables).root)
    settings = {"table": table, "batch_size": 8, "mode": mode}
    ended = run("epochs", dataset=root, world=2, epochs=2, **settings)
    assert [(rank.status, rank.error) for rank in ended] == [(0, "")] * 2
    assert "rank 0 loads for all ranks of this machine" in ended[1].result["text"]
    for rank, result in enumerate(each.result for each in ended):
        with build(root, rank=rank, world_size=2, **settings) as loader:
            expected = [[digest(batch) for batch in loader] for _ in range(2)]
        assert result["digests"] == expected
        assert len({*expected[0]}) == len(expected[0]) > 4


def test_shared_batches_of_several_types_have_the_ages_of_private_loaders(
    run: Callable[..., list[Ended]], tmp_path: Path
) -> None:
    root = str(world(3, num_tables=4, most_rows=60, num_predicted=23).write(tmp_path / "d").root)
    settings = {"table": "task", "batch_size": 3, "mode": "ram"}
    ended = run("epochs", dataset=root, world=2, epochs=2, **settings)
    assert [(rank.status, rank.error) for rank in ended] == [(0, "")] * 2
    for rank, result in enumerate(each.result for each in ended):
        with build(root, rank=rank, world_size=2, **settings) as loader:
            batches = list(loader)
        assert result["digests"][0] == [digest(batch) for batch in batches]
        assert any(len(batch.row_age) > 1 for batch in batches)
