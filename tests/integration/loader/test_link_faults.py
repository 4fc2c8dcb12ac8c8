"""Faults of link tables, features and times of edges while a loader reads them: named, and behind good batches."""

import errno
import gc
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gloader import Dataset, LinkLoader
from gloader.errors import ChecksumError, GloaderError, SpillError, StoreOpenError, StoreReadError
from gloader.pipeline import link_task
from gloader.samplers.link_seeds import LinkSeeds
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.testing.faults import FaultyOS
from gloader.types import BatchId, BatchSeeds

from .failing import Failing, replace_parts
from .linked import EDGE_DIM, NUM_EDGES, LinkedGraph, link_contents, write_linked

SSD: dict[str, Any] = {"features": "ssd", "cache": 900, "superbatch": 2}
PLACES: dict[str, dict[str, Any]] = {
    "ram": {"features": "ram"},
    **{name: SSD | {"io_strategy": name} for name in ("direct", "staged", "packed")},
    "edges read": {"features": "ram", "topology": "direct"},
    "edges swept": {"features": "ram", "topology": "sweep"},
}
TIMED: dict[str, Any] = {"time_strategy": "last", "exclude": "none"}
PAIRS, EDGE_X, TIME = "links/train/pairs", "edge_features", "edge_time"
# (file, a place at which it is damaged, how it is read, the stages that may tell: the first batches of a run$
# whose edges are swept were sampled before)
DAMAGED = {
    "rows of links": (PAIRS, DATA_OFFSET + 4096, "packed", "sample"),
    "rows of links, edges swept": (
        PAIRS,
        DATA_OFFSET + 4096,
        "edges swept",
        "sweep|sample",
    ),
    "features of edges, read": (EDGE_X, DATA_OFFSET + 8192, "direct", "read"),
    "features of edges, staged": (EDGE_X, DATA_OFFSET + 8192, "staged", "stage"),
    "features of edges, packed": (EDGE_X, DATA_OFFSET + 8192, "packed", "stage"),
    "times of edges": (TIME, DATA_OFFSET + 8192, "edges read", "sample"),
}


@pytest.fixture
def linked(tmp_path: Path) -> LinkedGraph:
    return write_linked(tmp_path / "graph")


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "spill"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture(autouse=True)
def _read_by_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold no link table: a small one is else."""
    monkeypatch.setattr(link_task, "_HELD_SHARE", 0)


def open_links(dataset: Dataset, place: str = "ram", **changes: Any) -> LinkLoader:
    settings: dict[str, Any] = {
        "fanouts": [3, 2],
        "batch_size": 32,
        "exclude": "reverse",
        "threads": 2,
        "epochs": 2,
        "memory_budget": "200MB",
    }
    return LinkLoader(dataset, **(settings | PLACES[place] | changes))


def batches(dataset: Dataset, place: str = "ram", **changes: Any) -> list[tuple[Any, ...]]:
    with open_links(dataset, place, **changes) as loader:
        return [link_contents(batch) for batch in loader]


def until_error(loader: LinkLoader) -> tuple[list[tuple[Any, ...]], BaseException, float]:
    """Take batches until something is raised; every thread has ended then. Returns the seconds without one, too."""
    found: list[tuple[Any, ...]] = []
    last = time.monotonic()
    try:
        for _ in range(2):
            for batch in loader:
                found.append(link_contents(batch))
                last = time.monotonic()
    except BaseException as error:
        assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")] == []
        return found, error, time.monotonic() - last
    raise AssertionError("nothing was raised")


def is_noted(error: BaseException, stages: str) -> bool:
    """Whether one of ``stages`` and its batch are noted."""
    notes = getattr(error, "__notes__", ())
    return any(re.match(rf"in stage ({stages}), epoch 0, batch \d+", note) for note in notes)


def flip(graph: LinkedGraph, name: str, at: int) -> None:
    """Flip a bit of a file; twice: it is as it was."""
    with (graph.dataset.root / f"{name}.npy").open("r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ 1]))


@pytest.mark.reliability("M10")
@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_page_is_named_with_its_batch_behind_those_before_it(
    linked: LinkedGraph, spill: Path, case: str
) -> None:
    name, at, place, stage = DAMAGED[case]
    changes = TIMED if name == TIME else {}
    whole = batches(linked.dataset, **changes)
    with open_links(linked.dataset, place, spill_dir=spill, **changes) as loader:
        flip(linked, name, at)
        found, error, seconds = until_error(loader)
        assert isinstance(error, ChecksumError)
        assert f"{name}.npy" in str(error)
        assert f"page {(at - DATA_OFFSET) // 4096}" in str(error)
        assert is_noted(error, stage)
        assert found == whole[: len(found)]
        assert seconds < 5
        flip(linked, name, at)
        loader.load_state_dict(loader.state_dict() | {"next": [0, 0]})
        assert [*map(link_contents, loader)] == whole


@pytest.mark.reliability("M10")
@pytest.mark.parametrize("case", ["rows of links", "features of edges, packed", "times of edges"])
def test_a_file_that_is_cut_short_under_a_loader_ends_it_with_an_error(
    linked: LinkedGraph, spill: Path, case: str
) -> None:
    name, at, place, _ = DAMAGED[case]
    with open_links(linked.dataset, place, spill_dir=spill, **(TIMED if name == TIME else {})) as loader:
        path = linked.dataset.root / f"{name}.npy"
        path.write_bytes(path.read_bytes()[:at])
        _, error, seconds = until_error(loader)
    assert isinstance(error, GloaderError)
    assert f"{name}.npy" in str(error)
    assert "truncated" in str(error)
    assert seconds < 5


class ReadFaults(FaultyOS):
    """Reads of one file fail while ``is_failing``."""

    is_failing = False
    name = ""

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        if self.is_failing and self._paths.get(fd, "").endswith(self.name):
            raise OSError(errno.EIO, "Input/output error")
        return super().pread_into(fd, buffer, offset)


@pytest.mark.reliability("M11")
@pytest.mark.parametrize("case", ["rows of links", "features of edges, staged", "times of edges"])
def test_a_disk_that_fails_ends_the_stream_behind_good_batches_and_it_goes_on_when_the_disk_does(
    linked: LinkedGraph, spill: Path, case: str
) -> None:
    name, _, place, stage = DAMAGED[case]
    changes: dict[str, Any] = (TIMED if name == TIME else {}) | {"io": "buffered", "spill_dir": spill}
    whole = batches(linked.dataset, **changes)
    os_io = ReadFaults()
    os_io.name = f"{name}.npy"
    with open_links(Dataset.open(linked.dataset.root, os_io=os_io), place, **changes) as loader:
        os_io.is_failing = True
        found, error, _ = until_error(loader)
        os_io.is_failing = False
        assert isinstance(error, StoreReadError)
        assert f"{name}.npy" in str(error)
        assert "Input/output error" in str(error)
        assert is_noted(error, stage)
        assert found == whole[: len(found)]
        loader.load_state_dict(loader.state_dict() | {"next": [0, 0]})
        assert [*map(link_contents, loader)] == whole


@pytest.mark.reliability("M12")
@pytest.mark.parametrize("call", ["fallocate", "open"])
def test_a_disk_that_is_full_while_rows_of_edges_are_packed_releases_what_was_packed(
    linked: LinkedGraph, spill: Path, call: str
) -> None:
    whole, tables = batches(linked.dataset, batch_size=128, epochs=1), set()
    with open_links(
        linked.dataset, "packed", spill_dir=spill, spill_budget="64MB", epochs=1, batch_size=128
    ) as loader:
        retrievals = [table.retrieval for table in loader._held.tier.require_ssd()]
        assert len(retrievals) == 2
        folder = retrievals[0]._spill
        assert folder is not None
        real = folder._os_io
        folder.reuse_file = lambda num_bytes: None  # type: ignore[method-assign]  # whose bytes are there
        for number in range(1, 80):
            folder._os_io = full = FaultyOS(fail_at=number, error=errno.ENOSPC, calls={call})
            found, error = [], None
            try:
                found.extend(map(link_contents, loader))
            except SpillError as caught:
                error = caught
                notes = " ".join(error.__notes__)
                tables |= {name for name in ("node", "edges") if f"while rows of {name} were staged" in notes}
            folder._os_io = real
            assert (error is None) == (not full.was_hit)
            assert found == whole[: len(found)]
            assert folder.used_bytes == 0
            loader.load_state_dict(loader.state_dict() | {"next": [0, 0]})
            if error is None:
                break
        assert len(found) == len(loader)
        assert "edges" in tables


@pytest.mark.reliability("M13")
@pytest.mark.parametrize("place", ["packed", "edges swept"])
def test_a_dataset_that_is_replaced_is_the_old_one_for_whoever_reads_its_links(
    linked: LinkedGraph, spill: Path, place: str, tmp_path: Path
) -> None:
    whole = batches(linked.dataset)
    with open_links(linked.dataset, place, spill_dir=spill) as loader:
        stream = iter(loader)
        found = [link_contents(next(stream)) for _ in range(2)]
        linked.dataset.root.rename(tmp_path / "old")
        again = write_linked(linked.dataset.root, seed=8)
        found += [link_contents(batch) for batch in stream]
    assert found == whole
    with pytest.raises(StoreOpenError, match="replaced"):
        open_links(linked.dataset, place, spill_dir=spill)
    assert batches(again.dataset, place, spill_dir=spill) == batches(again.dataset)
    assert batches(again.dataset)[0] != whole[0]


@pytest.mark.reliability("M14")
@pytest.mark.parametrize("place", ["ram", "packed", "edges swept"])
@pytest.mark.parametrize("end", ["break", "close", "drop", "raise", "interrupt"])
def test_a_loop_over_links_may_end_anywhere_and_nothing_stays_behind(
    linked: LinkedGraph, spill: Path, place: str, end: str
) -> None:
    """What stays behind (threads, descriptors, spilled files) is looked for after every test."""
    loader = open_links(linked.dataset, place, spill_dir=spill)
    boom = KeyboardInterrupt() if end == "interrupt" else ValueError("boom")
    if end == "interrupt":  # in a thread that samples, as a Ctrl-C in the loop is a "raise"
        inner = loader._held.tier.sampler
        method = "replay" if place == "edges swept" else "sample"
        replace_parts(loader, sampler=Failing(inner, method, boom, lambda batch_id, *_: batch_id.index == 5))
    begun = time.monotonic()
    try:
        for number, batch in enumerate(loader):
            if number == 3 and end == "break":
                break
            if number == 3 and end == "close":
                loader.close()
                break
            if number == 3 and end == "drop":
                del batch
                break
            if number == 3 and end == "raise":
                raise boom
    except (ValueError, KeyboardInterrupt) as error:
        assert error is boom  # noqa: PT017 - of the loop
    if end != "drop":
        loader.close()
    del loader
    gc.collect()
    assert time.monotonic() - begun < 5


@pytest.mark.reliability("M11")
@pytest.mark.parametrize("place", ["ram", "packed", "edges swept"])
@pytest.mark.parametrize("kind", [MemoryError, KeyboardInterrupt])
def test_seeds_that_cannot_be_made_reach_the_loop_behind_the_batches_before_them(
    linked: LinkedGraph, spill: Path, place: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, boom, of = batches(linked.dataset), kind("boom"), LinkSeeds.of

    def failing(self: LinkSeeds, batch_id: BatchId, rows: Any) -> BatchSeeds:
        if batch_id == BatchId(epoch=0, index=5) and is_due:
            raise boom
        return of(self, batch_id, rows)

    monkeypatch.setattr(LinkSeeds, "of", failing)
    is_due = False
    with open_links(linked.dataset, place, spill_dir=spill) as loader:
        is_due = True
        found, error, seconds = until_error(loader)
    assert error is boom
    assert is_noted(error, "sample|sweep")
    assert found == whole[: len(found)]
    assert len(found) == 5 or place == "edges swept"
    assert seconds < 5


def test_the_features_that_are_damaged_above_lie_on_several_pages() -> None:
    assert 4 * EDGE_DIM * NUM_EDGES > 3 * 4096
    assert np.dtype(np.int64).itemsize * NUM_EDGES > 3 * 4096
