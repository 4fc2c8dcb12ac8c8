"""Batches of several types on the ranks of a machine: those of a private loader, with rows of each table."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rank_scenarios import build, digest
from rank_server import Ended

from gloader import Dataset

Run = Callable[..., list[Ended]]

NUM_NODES = {"paper": 400, "term": 30, "author": 150, "lonely": 5}
RELATIONS = {
    ("author", "writes", "paper"): 1500,
    ("paper", "cites", "paper"): 1200,
    ("paper", "written", "author"): 1500,
    ("term", "of", "paper"): 600,
    ("paper", "in", "term"): 0,
}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Papers and authors with rows of unlike widths, terms and lonely nodes with none; a relation without edges."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("typed") / "graph"
    Dataset.from_numpy_hetero(
        path,
        num_nodes=NUM_NODES,
        features={
            "paper": rng.standard_normal((400, 16)).astype(np.float32),
            "author": rng.standard_normal((150, 5)).astype(np.float32),
        },
        edges={
            relation: np.stack(
                [
                    (NUM_NODES[relation[0]] * rng.random(count) ** 2).astype(np.int64),
                    rng.integers(0, NUM_NODES[relation[2]], count),
                ]
            )
            for relation, count in RELATIONS.items()
        },
        labels={"paper": rng.integers(0, 7, 400)},
        train=np.arange(0, 206, 2),
        valid=np.arange(1, 99, 2),
        test=np.arange(300, 400),
    )
    return path


def _results(ended: list[Ended]) -> list[dict]:
    assert [(rank.status, rank.error) for rank in ended] == [(0, "")] * len(ended)
    return [rank.result for rank in ended]


def _private(dataset: Path, rank: int, epochs: int, **settings: object) -> list[list[str]]:
    with build(str(dataset), rank=rank, world_size=2, **settings) as loader:
        return [[digest(batch) for batch in loader] for _ in range(epochs)]


@pytest.mark.parametrize("mode", ["ram", "packed"])
def test_shared_batches_are_those_of_private_loaders(run: Run, typed: Path, mode: str) -> None:
    results = _results(run("epochs", dataset=str(typed), world=2, mode=mode, batch_size=8, epochs=2))
    for rank, result in enumerate(results):
        assert result["digests"] == _private(typed, rank, 2, mode=mode, batch_size=8)
        assert result["edges"] == sum(RELATIONS.values())
    assert "rank 0 loads for all ranks of this machine" in results[1]["text"]


def test_the_union_of_the_ranks_is_the_batch_of_one_process(typed: Path) -> None:
    seeds = {"author": np.arange(20, 60), "paper": np.arange(0, 90, 2)}
    with build(str(typed), mode="ram", batch_size=16, seeds=seeds) as loader:
        whole = list(loader)
    parts = []
    for rank in range(2):
        with build(str(typed), mode="ram", batch_size=8, seeds=seeds, rank=rank, world_size=2) as loader:
            parts.append(list(loader))
    for batch, *group in zip(whole, *parts, strict=True):
        for name, nodes in batch.nodes.items():
            both = np.concatenate([one.nodes[name][: one.num_seeds[name]] for one in group])
            assert both.tolist() == nodes[: batch.num_seeds[name]].tolist()
            assert {*np.concatenate([one.nodes[name] for one in group])} == {*nodes}
        for number, hop in enumerate(batch.blocks):
            for relation, block in hop.items():
                edges = np.concatenate([one.blocks[number][relation].edge_ids.numpy() for one in group])
                assert {*edges} == {*block.edge_ids.numpy()}


def test_private_loaders_take_their_place_from_the_process_group(run: Run, typed: Path) -> None:
    for rank, ended in enumerate(run("alone", dataset=str(typed), world=2, mode="ram", batch_size=8)):
        assert [ended.result] == _private(typed, rank, 1, mode="ram", batch_size=8)


def test_breaks_and_states_are_as_with_a_private_loader(run: Run, typed: Path) -> None:
    results = _results(run("breaking", dataset=str(typed), world=2, mode="direct", batch_size=8))
    for rank, (first, second, rest) in enumerate(results):
        one, two = _private(typed, rank, 2, mode="direct", batch_size=8)
        assert (first, second, rest) == (one[:2], two, one[2:])


def test_a_killed_rank_ends_the_other_and_leaves_nothing(run: Run, typed: Path, tmp_path: Path) -> None:
    settings = {"mode": "packed", "batch_size": 8, "spill_dir": str(tmp_path)}
    killed, other = run("killed", dataset=str(typed), world=2, kill=0, **settings)
    assert (killed.status, other.status) == (-9, 1)
    assert other.error.startswith("gloader.errors.RankError: rank 0")
    with build(str(typed), **settings) as loader:
        list(loader)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["ram", "direct"])
@pytest.mark.parametrize("reaches", [False, True])
def test_devices_hold_the_same_rows_of_each_type(run: Run, typed: Path, mode: str, reaches: bool) -> None:
    results = _results(
        run(
            "with_devices",
            dataset=str(typed),
            world=2,
            then="held_by_type",
            sizes=[21_000, 20_000],
            reaches=[reaches] * 2,
            mode=mode,
            batch_size=8,
        )
    )
    for rank, result in enumerate(results):
        assert result["digests"] == _private(typed, rank, 1, mode=mode, batch_size=8)[0]
    first, second = (result["rows"] for result in results)
    assert first == second
    assert len(first["paper"]) > 20
    assert len(first["author"]) > 20
    num_bytes = sum(4 * dim * len(first[name]) for name, dim in (("paper", 16), ("author", 5)))
    assert num_bytes <= 20_000
    assert ("read in place from pinned memory" in results[1]["text"]) == (reaches and mode == "ram")


def test_ranks_with_loaders_of_two_kinds_all_raise_at_the_start(run: Run, dataset: Path) -> None:
    for how in run("of_two_kinds", world=2, batch_size=8):
        assert how.status == 1
        assert how.error.startswith("gloader.errors.RankSettingsError")
        assert "loader is 'Loader' on rank 0 and 'HeteroLoader' on rank 1" in how.error


def test_without_any_rows_each_rank_loads_for_itself(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    path = tmp_path / "bare"
    Dataset.from_numpy_hetero(
        path,
        num_nodes={"a": 40, "b": 20},
        edges={
            ("a", "to", "b"): rng.integers(0, 20, (2, 90)),
            ("b", "to", "a"): rng.integers(0, 20, (2, 90)),
        },
        labels={"a": rng.integers(0, 3, 40)},
        train=np.arange(32),
        valid=np.arange(32, 36),
        test=np.arange(36, 40),
    )
    settings = {"mode": "ram", "batch_size": 4}
    results = _results(run("epochs", dataset=str(path), world=2, **settings))
    for rank, result in enumerate(results):
        assert result["digests"] == _private(path, rank, 1, **settings)
        assert "loads for all ranks" not in result["text"]
