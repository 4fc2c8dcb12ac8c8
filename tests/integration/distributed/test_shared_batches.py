"""The batches of ranks that share a loader: those of a private loader, and together those of one process."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rank_scenarios import MODES, build, digest
from rank_server import Ended

from gloader.errors import ReplayError
from gloader.replay.recording import read_recording

Run = Callable[..., list[Ended]]


def _results(ended: list[Ended]) -> list[dict]:
    assert [(rank.status, rank.error) for rank in ended] == [(0, "")] * len(ended)
    return [rank.result for rank in ended]


def _private(dataset: Path, rank: int, world: int, epochs: int, **settings: object) -> list[list[str]]:
    with build(str(dataset), rank=rank, world_size=world, **settings) as loader:
        return [[digest(batch) for batch in loader] for _ in range(epochs)]


@pytest.mark.reliability("F4")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", [2, 4])
def test_shared_batches_are_those_of_private_loaders(run: Run, dataset: Path, mode: str, world: int) -> None:
    results = _results(run("epochs", world=world, mode=mode, batch_size=16 // world, epochs=3))
    for rank, result in enumerate(results):
        assert result["digests"] == _private(dataset, rank, world, 3, mode=mode, batch_size=16 // world)


@pytest.mark.reliability("F4")
@pytest.mark.parametrize("world", [2, 4])
def test_the_union_of_the_ranks_is_the_batch_of_one_process(dataset: Path, world: int) -> None:
    with build(str(dataset), batch_size=16) as loader:
        whole = list(loader)
    parts = []
    for rank in range(world):
        with build(str(dataset), batch_size=16 // world, rank=rank, world_size=world) as loader:
            parts.append(list(loader))
    for step, batch in enumerate(whole):
        group = [part[step] for part in parts]
        assert np.concatenate([b.nodes[: b.num_seeds] for b in group]).tolist() == (
            batch.nodes[: batch.num_seeds].tolist()
        )
        assert np.unique(np.concatenate([b.nodes for b in group])).tolist() == np.unique(batch.nodes).tolist()
        for hop in range(len(batch.blocks)):
            edges = np.concatenate([b.blocks[hop].edge_ids.numpy() for b in group])
            assert np.unique(edges).tolist() == np.unique(batch.blocks[hop].edge_ids.numpy()).tolist()


@pytest.mark.reliability("G3")
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_rank_has_equally_many_batches(run: Run, world: int, drop_last: bool) -> None:
    """103 seeds, which no world size divides."""
    results = _results(run("epochs", world=world, batch_size=5, drop_last=drop_last, mode="ram"))
    lengths = {(result["length"], len(result["digests"][0])) for result in results}
    assert len(lengths) == 1
    assert lengths.pop()[0] > 0
    seeds = sum(result["stats"]["seeds"] for result in results)
    assert seeds == 103 // (5 * world) * 5 * world if drop_last else seeds > 103 - world


def test_a_row_is_read_for_all_ranks_and_counted_once(run: Run, dataset: Path) -> None:
    results = _results(run("epochs", world=2, mode="direct", batch_size=8, cache="1MB", epochs=2))
    with build(str(dataset), mode="direct", batch_size=8, rank=0, world_size=2, cache="1MB") as loader:
        gathered = [sum(len(batch.nodes) for batch in loader) for _ in range(2)][1]
        read = loader.stats.rows_read
    assert results[0]["stats"]["rows_gathered"] > 1.5 * gathered  # of both ranks
    assert (
        results[0]["stats"]["rows_read"] < read
    )  # what the other rank brought in the first epoch need not be read
    assert results[1]["stats"]["rows_gathered"] == 0
    assert results[1]["stats"]["batches"] == results[0]["stats"]["batches"]
    assert "rank 0 loads for all ranks of this machine" in results[1]["text"]
    assert results[0]["text"].splitlines()[0] in results[1]["text"]
    assert results[1]["state"] == results[0]["state"]
    assert results[1]["edges"] == 4000


@pytest.mark.parametrize("mode", ["packed", "ram"])
def test_breaks_and_states_are_as_with_a_private_loader(run: Run, dataset: Path, mode: str) -> None:
    results = [rank.result for rank in run("breaking", world=3, mode=mode, batch_size=6)]
    for rank, (first, second, rest) in enumerate(results):
        one, two = _private(dataset, rank, 3, 2, mode=mode, batch_size=6)
        assert first == one[:2]
        assert second == two
        assert rest == one[2:]


def test_private_loaders_take_their_place_from_the_process_group(run: Run, dataset: Path) -> None:
    for rank, ended in enumerate(run("alone", world=2, mode="ram", batch_size=8)):
        assert ended.result == _private(dataset, rank, 2, 1, mode="ram", batch_size=8)[0]


def test_the_rank_that_loads_may_be_done_long_before_the_others(run: Run) -> None:
    ended = run("closing", mode="direct", batch_size=8)
    assert [(rank.status, rank.error, rank.result) for rank in ended] == [(0, "", 7)] * 2


@pytest.mark.reliability("D13")
def test_shared_memory_that_is_held_is_not_used_again(run: Run) -> None:
    results = _results(run("holding", batch_size=4, most=3))
    assert [(result["same"], result["taken"]) for result in results] == [(True, 13)] * 2
    assert results[1]["pairs"] == 4 * 3


@pytest.mark.reliability("D13")
def test_a_rank_that_holds_every_buffer_is_told_so_on_all_ranks(run: Run) -> None:
    ended = run("holding", batch_size=4, most=30)
    assert all("held by batches that the loop keeps alive" in rank.error for rank in ended)


@pytest.mark.parametrize("mode", ["ram", "direct"])
def test_the_rank_that_loads_records_the_batches_of_all(
    run: Run, dataset: Path, tmp_path: Path, mode: str
) -> None:
    results = _results(run("recording", mode=mode, batch_size=8, files=str(tmp_path)))
    recording = read_recording(tmp_path / "0.json")
    (num_batches, num_buffers), world = results[0], len(results)
    shape = recording.header.shape
    assert (shape.num_ranks, recording.header.num_batches) == (world, num_batches)
    assert shape.num_buffers >= num_buffers  # more, where there is memory to spare
    done = Counter(event.stage for event in recording.events if not event.notes.get("ahead"))
    assert done["sample"] == done["gather"] == 2 * num_batches * world
    assert done["compute"] == done["wait"] == 2 * num_batches
    # The others' files show their loops, and say nothing of what was done for them.
    with pytest.raises(ReplayError, match="no header"):
        read_recording(tmp_path / "1.json")


@pytest.mark.reliability("S8")
def test_no_rank_takes_all_seeds_unless_it_says_so(run: Run, dataset: Path) -> None:
    results = _results(run("late_group", batch_size=8))
    for rank, (refused, _, whole) in enumerate(results):
        early, silent = refused
        assert f"rank {rank} of 2 would take all seeds, and so would every other rank" in early
        assert f"rank {rank} of 2 builds a DataLoader without use_ddp=: use_ddp=True takes" in silent
        assert len(whole) == 103
    parts = [part for _, part, _ in results]
    assert [len(part) for part in parts] == [51, 52]
    assert len({*parts[0], *parts[1]}) == 103


@pytest.mark.reliability("S8")
def test_seeds_that_are_split_by_hand_are_refused_with_the_words_for_it(run: Run) -> None:
    for ended in run("own_seeds", batch_size=8):
        assert "RankSettingsError" in ended.error
        assert (
            "pass all seeds on every rank, which takes its part of them, or pass rank=0, world_size=1"
            in ended.error
        )
    assert [rank.result for rank in run("own_seeds", batch_size=8, apart=True)] == [52, 51]
