"""Ranks that train an embedding together: bit for bit torch's, with the sum of their gradients."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedding_scenarios import expected, expected_typed
from rank_scenarios import build
from rank_server import Ended

from gloader import Dataset
from gloader.loader.node_embedding import NodeEmbedding

Run = Callable[..., list[Ended]]

SOON_S = 5.0
_INTERRUPTED = 70  # exit status of a rank that ended by a KeyboardInterrupt, see `rank_server`
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written


def _in_shared_memory() -> set[Path]:
    """Return what has a name in shared memory, without the folders of other tests."""
    return {path for path in _SHARED_MEMORY.iterdir() if not path.name.startswith("tmp")}


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
    before = _in_shared_memory()
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
    assert _in_shared_memory() == before
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


def test_a_frozen_view_has_the_present_rows_on_every_rank(run: Run) -> None:
    first, second = _results(run("evaluating"))
    for found in (first, second):
        assert found["same"]
        assert all(found["same"])
    assert second["rows"] == first["rows"]  # the host reads them for the other rank
    for text in second["refused"]:
        assert text.startswith(
            "StateError: rank 0 has the table of this embedding, which the ranks of a machine share: "
        )
    assert "call checkpoint() there" in second["refused"][0]
    assert first["refused"][0].startswith("ConfigError: this embedding lies in a temporary folder")


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """100 papers and 40 authors, of which none or the papers have features."""
    random = np.random.default_rng(0)
    writes = np.stack([random.integers(0, 40, 200), random.integers(0, 100, 200)])
    root = tmp_path_factory.mktemp("papers")
    for name, features in {
        "bare": {},
        "half": {"paper": random.normal(size=(100, 6)).astype(np.float32)},
    }.items():
        Dataset.from_numpy_hetero(
            root / name,
            num_nodes={"paper": 100, "author": 40},
            features=features,
            edges={("author", "writes", "paper"): writes, ("paper", "by", "author"): writes[::-1].copy()},
            labels={"paper": np.arange(100) % 3},
            train=np.arange(60),
            valid=np.arange(60, 80),
            test=np.arange(80, 100),
        )
    return {name: root / name for name in ("bare", "half")}


@pytest.mark.parametrize(("kind", "world"), [("bare", 2), ("half", 3)])
def test_ranks_train_several_types_with_and_without_features(
    run: Run, papers: dict[str, Path], kind: str, world: int
) -> None:
    path = str(papers[kind])
    want = expected_typed(path, world=world)
    found = _results(run("typed", world=world, dataset=path))
    assert [rank["digests"] for rank in found] == want["digests"]
    assert found[0]["rows"] == want["rows"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sharing": "private"}, "ConfigError: sharing='private' gives each rank a loader of its own"),
        (
            {"machines": ["a", "b"]},
            "these ranks are on 2: a, b; start all ranks on one machine (torchrun --nnodes 1 --nproc-per-node N)",
        ),
        ({"odd": {"seed": 1}}, "RankSettingsError: trained rows is {"),
        ({"odd": {"dim": 7}}, "RankSettingsError: trained rows is {"),
    ],
)
def test_ranks_without_one_table_are_refused_on_every_rank(
    run: Run, settings: dict[str, Any], text: str
) -> None:
    for how in run("refused", **({"odd": {}} | settings)):
        assert how.status == 1
        assert text in how.error


def test_a_cache_smaller_than_the_batches_of_a_step_is_refused_on_every_rank(run: Run) -> None:
    first, second, _ = run("training", world=3, cache_rows=80)
    assert "BudgetError: the embedding of " in first.error
    assert "and a step of 3 ranks has up to" in first.error
    assert "RankError: rank 0 failed: BudgetError" in second.error


@pytest.mark.parametrize("rehearses", [True, [True, False]])
def test_ranks_whose_devices_work_behind_the_host_train_the_same_bits(
    run: Run, dataset: Path, rehearses: bool | list[bool]
) -> None:
    """On such a device a thread receives batches while the loop waits for a step; both read one connection."""
    want = expected(str(dataset), world=2)
    found = _results(run("with_devices", then="training", sizes=[0, 0], rehearses=rehearses))
    assert [rank["digests"] for rank in found] == want["digests"]
    assert found[0]["rows"] == want["rows"]


@pytest.mark.parametrize("on", [0, 1])
def test_a_ctrl_c_ends_the_wait_in_a_step(run: Run, on: int) -> None:
    ended = run("slow_step", slow=1 - on, kill=on, signal_number=signal.SIGINT)
    assert ended[on].status == _INTERRUPTED
    assert ended[1 - on].status == 1
    assert ended[on].seconds < ended[1 - on].seconds


def test_a_rank_that_all_wait_for_in_a_step_is_named(run: Run) -> None:
    first, _ = run("slow_step", slow=1, stall_timeout_s=0.5)
    assert (
        "RankError: rank 1 did not call embedding.step(batch) within 0.5 s of rank 0; call it for"
        in first.error
    )
