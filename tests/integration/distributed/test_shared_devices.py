"""Ranks that share a loader and keep rows on their devices: the same rows, and the same batches as without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rank_scenarios import build, digest
from rank_server import Ended

Run = Callable[..., list[Ended]]

NUM_NODES, ROW = 600, 24 * 4
MAP = 4 * NUM_NODES
SIZES = [MAP + 150 * ROW, MAP + 120 * ROW]
ALL = [NUM_NODES * ROW] * 2
SOON_S = 5.0


def _results(ended: list[Ended]) -> list[Any]:
    assert [(rank.status, rank.error) for rank in ended] == [(0, "")] * len(ended)
    return [rank.result for rank in ended]


def _alone(dataset: Path, rank: int, epochs: int = 2, **settings: Any) -> list[list[str]]:
    """Return the batches of a rank whose loader is its own, without a device cache."""
    with build(str(dataset), rank=rank, world_size=2, batch_size=8, **settings) as loader:
        return [[digest(batch) for batch in loader] for _ in range(epochs)]


@pytest.mark.reliability("F4")
@pytest.mark.parametrize("mode", ["ram", "direct", "packed", "weighted"])
@pytest.mark.parametrize("rehearses", [True, False])
def test_every_rank_holds_the_rows_that_the_least_of_them_can(
    run: Run, dataset: Path, mode: str, rehearses: bool
) -> None:
    results = _results(
        run("with_devices", then="held", sizes=SIZES, mode=mode, batch_size=8, rehearses=rehearses)
    )
    for rank, found in enumerate(results):
        assert found["digests"] == _alone(dataset, rank, mode=mode)
        assert found["rows"] == results[0]["rows"]
        assert len(found["rows"]) == 120
        assert found["hits"] > 0
        assert found["sends"] == rehearses
        assert "device: 120 rows (20.0%) on cpu" in found["text"]
        assert found["text"].count("device: ") == 1
    stats = results[0]["stats"]
    assert 0 < stats["device_hits"] <= results[0]["hits"] + results[1]["hits"]
    assert stats["rows_gathered"] == stats["device_hits"] + stats["cache_hits"] + stats["rows_read"]
    assert results[1]["stats"]["device_hits"] == 0  # counted where they are planned, once


@pytest.mark.reliability("F4")
@pytest.mark.parametrize(
    ("dtype", "mode", "sizes", "rehearses", "staged"),
    [
        ("float16", "direct", SIZES, [True, True], "float16"),
        ("bfloat16", "ram", [0, 0], [True, True], "uint16"),
        ("int8", "packed", SIZES, [True, True], "int8"),
        ("int8", "ram", [0, 0], [True, True], "int8"),
        ("int8", "direct", SIZES, [True, False], "float32"),  # the CPU gets the shared buffers as they are
        ("int8", "direct", SIZES, [False, True], "float32"),
    ],
)
def test_rows_lie_in_shared_memory_as_they_are_stored(
    run: Run,
    write_dataset: Callable[[str], Path],
    dtype: str,
    mode: str,
    sizes: list[int],
    rehearses: list[bool],
    staged: str,
) -> None:
    narrow = write_dataset(dtype)
    results = _results(
        run(
            "with_devices",
            then="held",
            sizes=sizes,
            mode=mode,
            batch_size=8,
            rehearses=rehearses,
            dataset=str(narrow),
            epochs=1,
        )
    )
    for rank, found in enumerate(results):
        assert found["digests"] == _alone(narrow, rank, epochs=1, mode=mode)
        assert found["staged"] == staged
        assert (0 < len(found["rows"]) < NUM_NODES) == (sizes == SIZES)


def test_the_host_gathers_and_reads_less(run: Run) -> None:
    found = [
        _results(run("with_devices", then="held", sizes=sizes, mode="direct", batch_size=8))[0]["stats"]
        for sizes in (SIZES, [0, 0])
    ]
    assert found[1]["device_hits"] == 0
    assert found[0]["bytes_read"] < found[1]["bytes_read"]
    assert found[0]["rows_read"] + found[0]["cache_hits"] < found[1]["rows_read"] + found[1]["cache_hits"]


@pytest.mark.parametrize("mode", ["ram", "direct"])
@pytest.mark.parametrize("rehearses", [True, False])
def test_where_all_rows_fit_nothing_is_gathered(run: Run, dataset: Path, mode: str, rehearses: bool) -> None:
    results = _results(
        run("with_devices", then="held", sizes=ALL, mode=mode, batch_size=8, rehearses=rehearses)
    )
    for rank, found in enumerate(results):
        assert found["digests"] == _alone(dataset, rank, mode=mode)
        assert len(found["rows"]) == NUM_NODES
        assert "device: all 600 rows on cpu" in found["text"]
    stats = results[0]["stats"]
    assert stats["device_hits"] == stats["rows_gathered"] > 0


def test_one_rank_without_room_means_none_for_all(run: Run) -> None:
    for found in _results(run("with_devices", then="held", sizes=[ALL[0], 0], mode="direct", batch_size=8)):
        assert found["rows"] == []
        assert found["sends"]
        assert "device: no rows" not in found["text"]


@pytest.mark.parametrize("sizes", [SIZES, ALL])
def test_breaks_and_states_are_as_with_a_private_loader(run: Run, dataset: Path, sizes: list[int]) -> None:
    results = _results(run("with_devices", then="breaking", sizes=sizes, mode="packed", batch_size=8))
    for rank, (first, second, rest) in enumerate(results):
        one, two = _alone(dataset, rank, mode="packed")
        assert first == one[:2]
        assert second == two
        assert rest == one[2:]


@pytest.mark.parametrize("sizes", [SIZES, ALL])
def test_a_rank_that_loads_may_be_done_long_before_the_others(run: Run, sizes: list[int]) -> None:
    ended = run("with_devices", then="closing", sizes=sizes, mode="direct", batch_size=8)
    assert _results(ended) == [7, 7]


@pytest.mark.reliability("D13")
def test_shared_memory_is_free_as_soon_as_the_device_has_read_it(run: Run) -> None:
    """More batches are held than there are buffers; without a device of its own that is an error."""
    results = _results(run("with_devices", then="holding", sizes=SIZES, batch_size=4, most=30))
    assert [(found["same"], found["taken"]) for found in results] == [(True, 13)] * 2
    assert results[1]["pairs"] == 4 * 13
    assert results[0]["lent"] <= 8  # of the four batches ahead, two each; none of the 13 that are held


@pytest.mark.reliability("G1")
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("sizes", [SIZES, ALL])
def test_a_killed_rank_ends_the_others(run: Run, killed: int, sizes: list[int], tmp_path: Path) -> None:
    ended = run(
        "with_devices",
        then="killed",
        kill=killed,
        sizes=sizes,
        mode="packed",
        batch_size=8,
        spill_dir=str(tmp_path),
    )
    assert ended[killed].status == -9
    other = ended[1 - killed]
    assert (other.status, other.seconds < SOON_S) == (1, True)
    assert other.error.startswith(f"gloader.errors.RankError: rank {killed}")


@pytest.mark.reliability("G2")
@pytest.mark.parametrize("on", [0, 1])
def test_a_transfer_that_fails_is_raised_on_all_ranks(run: Run, on: int) -> None:
    ended = run("with_devices", then="failing", sizes=SIZES, batch_size=4, part="transfer", on=on)
    for rank, how in enumerate(ended):
        own = "OSError" if rank == on else f"gloader.errors.RankError: rank {on} failed: OSError"
        assert how.error.startswith(own)
        assert "in stage transfer, epoch 0, batch 4" in how.error
        assert (how.status, how.seconds < SOON_S) == (1, True)


@pytest.mark.parametrize("on", [0, 1])
def test_a_device_that_cannot_hold_its_rows_is_refused_on_all_ranks(run: Run, on: int) -> None:
    ended = run("with_devices", then="unable", sizes=SIZES, batch_size=8, on=on, how="fails")
    assert ended[on].error.startswith("MemoryError: the device is full")
    told = f"gloader.errors.RankError: rank {on} failed: MemoryError: the device is full"
    assert ended[1 - on].error.startswith(told)


def test_a_rank_that_dies_while_it_fills_its_device_is_named(run: Run) -> None:
    first, _ = run("with_devices", then="unable", sizes=SIZES, batch_size=8, on=1, how="dies")
    assert "RankError: rank 1 ended while the loader of this machine was opened" in first.error


def test_a_device_that_is_not_there_is_named_on_all_ranks(run: Run) -> None:
    first, second = run("building", batch_size=8, odd={"device": "cuda:7"})
    assert second.error.startswith("gloader.errors.ConfigError: device='cuda:7'")
    assert first.error.startswith("gloader.errors.RankError: rank 1 failed: ConfigError: device='cuda:7'")


def test_ranks_that_rank_rows_differently_all_raise(run: Run) -> None:
    for how in run("building", batch_size=8, odd={"device_hotness": "degree"}):
        assert "device_hotness is 'presampled' on rank 0 and 'degree' on rank 1" in how.error


@pytest.mark.parametrize("sharing", ["shared", "private"])
def test_devices_talk_before_their_memory_is_measured(run: Run, sharing: str) -> None:
    for found in _results(run("meeting", batch_size=8, gpu="", sharing=sharing)):
        assert found["done"] == ["talked", "measured", "tried"]
        assert found["rows"] == 0  # all of it is left to those that talk


@pytest.mark.parametrize("size", ["auto", 0])
def test_two_ranks_on_one_gpu_are_refused_unless_they_say_how_much_each_takes(run: Run, size: Any) -> None:
    assert _results(run("meeting", batch_size=8, gpu="uuid-{rank}", device_cache=size))
    ended = run("meeting", batch_size=8, gpu="uuid", device_cache=size)
    if size != "auto":
        assert _results(ended)
        return
    for how in ended:
        assert how.error.startswith("gloader.errors.RankSettingsError: ranks 0 and 1 are on one GPU (uuid)")
