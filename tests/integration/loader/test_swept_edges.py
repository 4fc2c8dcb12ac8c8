"""A loader whose edges are swept: the batches of one in memory, whatever ends it; nothing is left behind."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gloader.errors import ChecksumError
from gloader.testing.resume import batch_digest as digest
from gloader.testing.resume import check_resume

from .swept_edges import PACKED, PLACES, epochs, epochs_in_memory, loader_of, write_graph


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("swept") / "graph")


_SAMPLE = {
    (1, None, "layered", "neighbor", 1, "memory"),
    (3, "direct", "merged", "neighbor", 3, "packed"),
    (8, "merged", "layered", "neighbor:replace=true", 2, "direct"),
    (64, "full", "layered", "neighbor", 8, "packed"),
    (2, "full", "merged", "neighbor:replace=true", 2, "memory"),
    (3, None, "merged", "weighted", 2, "packed"),
    (2, "full", "layered", "labor:normalize=true", 3, "memory"),
}
_ALL = itertools.product(
    (1, 2, 3, 8, 64),
    (None, "direct", "merged", "full"),
    ("layered", "merged"),
    ("neighbor", "neighbor:replace=true", "weighted", "labor:normalize=true"),
    (1, 2, 3, 8),
    PLACES,
)
_LAYERED_ALONE = "labor"


@pytest.mark.reliability("F3")
@pytest.mark.parametrize(
    ("num_batches", "way", "layout", "sampler", "threads", "place"),
    [
        pytest.param(*one, marks=[] if one in _SAMPLE else pytest.mark.long)
        for one in _ALL
        if not (one[2] == "merged" and one[3].startswith(_LAYERED_ALONE))
    ],
)
def test_batches_are_those_of_edges_in_memory(
    path: Path,
    swept: Callable[..., Any],
    num_batches: int,
    way: str | None,
    layout: str,
    sampler: str,
    threads: int,
    place: str,
) -> None:
    settings = {"layout": layout, "sampler": sampler, "threads": threads}
    with swept(num_batches, way=way, epochs=3, **settings, **PLACES[place]) as loader:
        found = epochs(loader, 3)
        passes = loader._held.tier.sweeps.passes
        assert "read in sweeps" in loader.explain()
        assert passes.resident_bytes > 0
    assert found == epochs_in_memory(path, 3, **settings)


@pytest.mark.parametrize("sampler", ["weighted", "neighbor"])
def test_a_large_fan_out_has_its_memory(path: Path, tmp_path: Path, sampler: str) -> None:
    settings = {"sampler": sampler, "fanouts": [3500, 2], "batch_size": 1, "epochs": 1} | PLACES["memory"]
    with loader_of(path, topology="sweep", spill_dir=tmp_path, **settings) as loader:
        found = epochs(loader, 1)
    assert found == epochs_in_memory(path, 1, **settings)


@pytest.mark.reliability("F4")
@pytest.mark.parametrize(("rank", "world"), [(1, 2), (2, 3)])
def test_a_rank_that_loads_for_itself_sweeps_for_itself(
    path: Path, swept: Callable[..., Any], rank: int, world: int
) -> None:
    place = {"rank": rank, "world_size": world, "batch_size": 8}
    with swept(**place, **PACKED) as loader:
        assert epochs(loader, 2) == epochs_in_memory(path, 2, **place)


@pytest.mark.reliability("F1")
@pytest.mark.parametrize("batch_size", [80, pytest.param(16, marks=pytest.mark.long)])
def test_a_loader_goes_on_at_every_batch(swept: Callable[..., Any], path: Path, batch_size: int) -> None:
    settings = {**PACKED, "batch_size": batch_size}
    found = check_resume(lambda: swept(3, **settings), epochs=2, digest=digest)
    assert found == list(itertools.chain(*epochs_in_memory(path, 4, batch_size=batch_size)))


@pytest.mark.reliability("D6")
@pytest.mark.parametrize("place", ["memory", "packed"])
def test_a_break_ends_the_wave_and_the_next_epoch_begins_another(
    swept: Callable[..., Any], path: Path, place: str
) -> None:
    in_memory = epochs_in_memory(path, 3)
    with swept(8, **PLACES[place]) as loader:
        for epoch, taken in enumerate((1, 7, len(loader))):
            batches = [digest(batch) for batch, _ in zip(loader, range(taken), strict=False)]
            assert batches == in_memory[epoch][:taken]


def test_a_validation_pass_beside_it_has_passes_of_its_own(path: Path, swept: Callable[..., Any]) -> None:
    validation = np.arange(2, 330, 3)
    in_memory, other = epochs_in_memory(path, 1)[0], None
    with swept(8, **PACKED) as loader:
        found = []
        for index, batch in enumerate(loader):
            found.append(digest(batch))
            if index == 2:
                with loader_of(path, topology="sweep", seeds=validation, epochs=1) as beside:
                    other = [batch.nodes for batch in beside]
                    # Seven batches, of which that loader was sized by three: superbatches of one, two and one.
                    assert beside.stats.edge_passes == 5
    assert found == in_memory
    with loader_of(path, topology="ram", seeds=validation, epochs=1) as beside:
        for one, nodes in zip(beside, other or [], strict=True):
            np.testing.assert_array_equal(one.nodes, nodes)


@pytest.mark.reliability("K2")
@pytest.mark.reliability("B3")
@pytest.mark.parametrize("place", ["memory", "packed"])
def test_damaged_edges_end_the_stream_behind_the_batches_before_them(
    path: Path, swept: Callable[..., Any], tmp_path: Path, place: str
) -> None:
    in_memory = epochs_in_memory(path, 2)
    file = path / "indices.npy"
    whole = file.read_bytes()
    try:
        with swept(3, **PLACES[place]) as loader:
            stream = iter(loader)
            found = [digest(next(stream))]
            with file.open("r+b") as written:  # in place: a pass may read meanwhile
                for begin in range(4096, len(whole), 4096):
                    written.seek(begin)
                    written.write(bytes([whole[begin] ^ 1]))
            with pytest.raises(ChecksumError, match=r"indices\.npy.*page") as caught:
                found += [digest(batch) for batch in itertools.chain(stream, *itertools.repeat(loader, 5))]
    finally:
        file.write_bytes(whole)
    assert found == list(itertools.chain(*in_memory))[: len(found)]
    assert any(note.startswith("in stage sweep, epoch 0, batch") for note in caught.value.__notes__)


def test_a_run_that_ends_sweeps_no_more_and_says_what_it_moved(
    swept: Callable[..., Any], tmp_path: Path
) -> None:
    with swept(8, **PACKED, epochs=1, trace=True) as loader:
        list(loader)
        stats = loader.stats
        loader.write_trace(tmp_path / "timeline.json")
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    ways = [event["args"]["way"] for event in events if event.get("name") == "sweep"]
    # 15 batches, of which the loader was sized by three: superbatches of 1, 2, 4 and 5, and two passes for the last.
    assert stats.edge_passes == len(ways) == 6
    assert set(ways) <= {"direct", "merged", "full"}
    assert 0 < stats.edge_bytes_written < stats.edge_bytes_read
    assert stats.stage_seconds["sweep"] > 0
