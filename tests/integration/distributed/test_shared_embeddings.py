"""Ranks that train an embedding together: bit for bit torch's, with the sum of their gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from embedding_scenarios import expected
from rank_scenarios import build
from rank_server import Ended

from gloader import Dataset
from gloader.loader.node_embedding import NodeEmbedding

Run = Callable[..., list[Ended]]

SOON_S = 5.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written


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


def test_a_rank_that_skips_adds_nothing_and_a_step_that_all_skip_is_none(run: Run, dataset: Path) -> None:
    skips = [[1, 1], [0, 3], [0, 4], [1, 4]]
    want = expected(str(dataset), world=2, skips=skips, epochs=2, optimizer="adam")
    found = _results(run("training", skips=skips, epochs=2, optimizer="adam"))
    assert [rank["digests"] for rank in found] == want["digests"]
    assert found[0]["rows"] == want["rows"]
    assert found[0]["num_steps"] == found[1]["num_steps"] == want["num_steps"]


@pytest.mark.parametrize("mode", ["ssd", "ram"])
def test_a_run_resumed_at_a_record_goes_on_as_if_it_had_not_stopped(
    run: Run, dataset: Path, tmp_path: Path, mode: str
) -> None:
    table = str(tmp_path / "table")
    want = expected(str(dataset), world=2, epochs=2)
    first = _results(run("training", mode=mode, epochs=2, table=table, stop=4))
    again = _results(
        run("training", mode=mode, epochs=2, table=table, record="stopped", state=first[0]["state"])
    )
    for rank in range(2):
        assert first[rank]["digests"] + again[rank]["digests"] == want["digests"][rank]
    assert again[0]["rows"] == want["rows"]
    assert again[1]["num_steps"] == want["num_steps"]


@pytest.mark.parametrize("killed", [0, 2])
def test_a_killed_rank_ends_the_others_and_leaves_nothing(
    run: Run, dataset: Path, tmp_path: Path, killed: int
) -> None:
    before = set(_SHARED_MEMORY.iterdir())
    ended = run(
        "training",
        world=3,
        kill=killed,
        epochs=1000,
        pause_s=0.02,
        table=str(tmp_path / "table"),
        spill_dir=str(tmp_path),
    )
    for rank, how in enumerate(ended):
        if rank == killed:
            assert how.status == -9
            continue
        assert how.status == 1
        assert how.seconds < SOON_S
        assert how.error.startswith(f"gloader.errors.RankError: rank {killed}")
        assert "start" in how.error
    assert set(_SHARED_MEMORY.iterdir()) == before
    table = NodeEmbedding.open(
        Dataset.open(dataset), tmp_path / "table"
    )  # nothing of the dead run is in the way
    with table, build(str(dataset), batch_size=8, spill_dir=str(tmp_path)) as loader:
        list(loader)
    assert {path.name for path in tmp_path.iterdir()} == {"table"}


@pytest.mark.parametrize("on", [0, 1])
def test_a_loop_that_fails_before_its_step_ends_the_others(run: Run, on: int) -> None:
    ended = run("training", end={"rank": on, "step": 2, "how": "raise"}, epochs=100)
    assert "ValueError: boom in the loop" in ended[on].error
    other = ended[1 - on]
    assert other.status == 1
    assert other.seconds < SOON_S
    assert "RankError" in other.error


def test_a_rank_that_leaves_an_epoch_before_its_step_is_named(run: Run) -> None:
    first, _ = run("training", end={"rank": 1, "step": 2, "how": "break"}, epochs=100)
    assert (
        "RankError: rank 1 left the epoch before the step of its batch; call embedding.step(batch) for"
        in first.error
    )
