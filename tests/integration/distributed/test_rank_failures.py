"""A rank that dies, fails, disagrees or stays away: every rank hears of it, and nothing is left."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rank_scenarios import build
from rank_server import Ended

Run = Callable[..., list[Ended]]

SOON_S = 5.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written


@pytest.mark.reliability("G1")
@pytest.mark.reliability("K10")
@pytest.mark.parametrize(
    ("killed", "mode"),
    [(0, "direct"), (2, "direct"), (0, "packed"), (2, "packed"), (0, "swept"), (2, "swept")],
)
def test_a_killed_rank_ends_the_others_and_leaves_nothing(
    run: Run, dataset: Path, tmp_path: Path, killed: int, mode: str
) -> None:
    before = set(_SHARED_MEMORY.iterdir())
    ended = run("killed", world=3, kill=killed, mode=mode, batch_size=8, spill_dir=str(tmp_path))
    for rank, how in enumerate(ended):
        if rank == killed:
            assert how.status == -9
            continue
        assert how.status == 1
        assert how.seconds < SOON_S
        assert how.error.startswith(f"gloader.errors.RankError: rank {killed}")
        assert "start" in how.error
    assert set(_SHARED_MEMORY.iterdir()) == before
    with build(str(dataset), mode=mode, batch_size=8, spill_dir=str(tmp_path)) as loader:
        list(loader)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("G2")
@pytest.mark.parametrize(("part", "on"), [("gather", 0), ("transfer", 0), ("transfer", 2)])
def test_a_failure_is_raised_on_all_ranks_with_its_text_and_its_rank(run: Run, part: str, on: int) -> None:
    ended = run("failing", world=3, batch_size=4, part=part, on=on)
    for rank, how in enumerate(ended):
        assert how.status == 1
        assert how.seconds < SOON_S
        assert "boom in the stage" in how.error
        assert f"in stage {part}, epoch 0, batch" in how.error
        own = "OSError" if rank == on else f"gloader.errors.RankError: rank {on} failed: OSError"
        assert how.error.startswith(own)


@pytest.mark.reliability("G4")
@pytest.mark.reliability("J6")
@pytest.mark.parametrize(
    ("odd", "what"),
    [
        ({"fanouts": [4, 4]}, r"fanouts is [4, 3] on rank 0 and [4, 4] on rank 1"),
        ({"seed": 7}, "seed is 0 on rank 0 and 7 on rank 1"),
        ({"seeds": list(range(20))}, "num_seeds is 103 on rank 0 and 20 on rank 1"),
        ({"seeds": list(range(103))}, "seeds is '"),
        ({"layout": "merged"}, "layout is 'layered' on rank 0 and 'merged' on rank 1"),
        ({"sharing": "private"}, "sharing is True on rank 0 and False on rank 1"),
        (
            {"cache": 0},
            "cache is 9600 on rank 0 and 0 on rank 1; it has to be the same on every rank of",
        ),
    ],
)
def test_ranks_that_differ_all_raise_at_the_start(run: Run, odd: dict[str, object], what: str) -> None:
    for how in run("building", world=3, batch_size=8, odd=odd):
        assert how.status == 1
        assert how.error.startswith("gloader.errors.RankSettingsError")
        assert what in how.error


@pytest.mark.reliability("G4")
def test_a_rank_with_a_wrong_setting_does_not_leave_the_others_waiting(run: Run) -> None:
    first, second, third = run("building", world=3, batch_size=8, odd={"batch_size": 0})
    assert second.error.startswith("gloader.errors.ConfigError: batch_size is 0")
    for how in (first, third):
        assert "RankError: rank 1 cannot build its loader: ConfigError: batch_size is 0" in how.error


def test_a_budget_that_is_too_small_is_raised_on_all_ranks(run: Run) -> None:
    first, second = run("building", batch_size=8, memory_budget="1MB", odd={})
    assert first.error.startswith("gloader.errors.BudgetError")
    assert second.error.startswith("gloader.errors.RankError: rank 0 failed: BudgetError")


def test_ranks_that_begin_at_different_places_all_raise(run: Run) -> None:
    first, second = run("apart", batch_size=4)
    assert "StateError: rank 1 begins at BatchId(epoch=0, index=2)" in first.error
    assert "rank 0 failed: StateError: rank 1 begins" in second.error


@pytest.mark.reliability("D10")
def test_a_rank_that_all_wait_for_is_named(run: Run) -> None:
    first, second = run("lazy", batch_size=4, stall_timeout_s=0.5)
    assert "RankError: rank 1 does not take its batches, and all wait for it" in first.error
    assert second.status == 0


@pytest.mark.reliability("D10")
def test_a_rank_that_loads_and_stands_still_is_a_stall(run: Run, tmp_path: Path) -> None:
    ended = run(
        "killed",
        kill=0,
        signal_number=signal.SIGSTOP,
        timeout_s=6.0,
        batch_size=8,
        stall_timeout_s=1.0,
        spill_dir=str(tmp_path),
    )
    assert "StallError: rank 0, which loads for this machine, has not answered for" in ended[1].error


def test_a_rank_that_stays_away_is_named(run: Run) -> None:
    first, second = run("apart", batch_size=4, late=True, stall_timeout_s=0.3)
    assert "RankError: rank 1 did not begin to iterate within 0.3 s" in first.error
    assert second.status == 0


def test_ranks_that_do_not_get_ready_are_killed_and_the_next_ones_run(run: Run) -> None:
    with pytest.raises(AssertionError, match="the ranks do not get ready"):
        run("killed", mode="ram", batch_size=8, kill=0, ready_s=0.0)
    assert [how.status for how in run("own_seeds", batch_size=8, apart=True)] == [0, 0]
