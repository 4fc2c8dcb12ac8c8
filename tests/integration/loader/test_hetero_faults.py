"""Faults of graphs of several types, through a loader: the type or relation is named, and the others are unharmed."""

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gloader
from gloader import Dataset
from gloader.errors import ChecksumError, GloaderError, SpillError, StallError, StoreOpenError, StoreReadError
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.testing.faults import FaultyOS
from gloader.types import BatchId, ReadStats

from .failing import Failing, replace_parts
from .typed import WIDTHS, TypedGraph, contents, expected, open_loader, write_typed

ROW = 4 * WIDTHS["paper"]
SSD = {"features": "ssd", "cache": 60 * ROW, "superbatch": 2}
PLACES: dict[str, dict[str, Any]] = {
    "ram": {"features": "ram"},
    **{name: SSD | {"io_strategy": name} for name in ("direct", "staged", "packed")},
}
FIELDS, CITES = "nodes/field/features", "relations/paper__cites__paper/indices"
# Fan-outs by which no batch has a node of "field", or an edge of the relation.
WITHOUT_FIELDS = {"field:of:paper": [0, 0], "*": [2, 2]}
WITHOUT_CITES = {"paper:cites:paper": [0, 0], "*": [2, 2]}


@pytest.fixture
def typed(tmp_path: Path) -> TypedGraph:
    return write_typed(tmp_path / "graph")


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "spill"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


def flip(graph: TypedGraph, name: str, at: int = DATA_OFFSET) -> None:
    """Flip a bit of a file, twice: it is as it was."""
    with (graph.dataset.root / name).open("r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ 1]))


def until_error(loader: gloader.HeteroLoader) -> tuple[list[dict[str, Any]], BaseException]:
    """Take batches of two epochs until something is raised; every thread has ended then."""
    found: list[dict[str, Any]] = []
    try:
        for _ in range(2):
            for batch in loader:
                found.append(contents(batch))  # noqa: PERF401 - those before an error
    except BaseException as error:
        assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")] == []
        return found, error
    raise AssertionError("nothing was raised")


@pytest.mark.reliability("L1")
@pytest.mark.parametrize("place", PLACES)
def test_damaged_rows_of_the_second_table_are_named_and_the_first_is_unharmed(
    typed: TypedGraph, spill: Path, place: str
) -> None:
    whole = list(expected(typed, epochs=2))
    if place == "ram":
        flip(typed, f"{FIELDS}.npy")
        with pytest.raises(ChecksumError, match=FIELDS):
            open_loader(typed, spill_dir=spill, **PLACES[place])
        return
    with open_loader(typed, spill_dir=spill, **PLACES[place]) as loader:
        flip(typed, f"{FIELDS}.npy")
        found, error = until_error(loader)
        assert isinstance(error, ChecksumError)
        assert FIELDS in str(error)
        assert error.__notes__[-1].startswith(("in stage read, epoch 0", "in stage stage, epoch 0"))
        assert found == whole[: len(found)]
        # The rows of the other table are there as ever, and batches that want none of the damaged ones.
        papers = np.empty_like(typed.features["paper"])
        loader.features["paper"].read_into(np.arange(len(papers)), papers)
        np.testing.assert_array_equal(papers, typed.features["paper"])
        with open_loader(typed, fanouts=WITHOUT_FIELDS, spill_dir=spill, **PLACES[place]) as other:
            assert [*map(contents, other)] == list(expected(typed, fanouts=WITHOUT_FIELDS))
        flip(typed, f"{FIELDS}.npy")
        loader.load_state_dict(loader.state_dict() | {"next": [0, 0]})
        assert [*map(contents, loader)] == whole[: len(loader)]


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold no relation in memory unless all are: the small ones are else, and those here are all small."""
    monkeypatch.setattr("gloader.dataset.topology.held_relations", lambda sizes, *, max_bytes: frozenset())


@pytest.mark.reliability("L1")
@pytest.mark.usefixtures("paged")
@pytest.mark.parametrize("topology", ["ram", "direct", "sweep"])
def test_damaged_edges_of_a_relation_are_named_and_the_others_are_unharmed(
    typed: TypedGraph, spill: Path, topology: str
) -> None:
    flip(typed, f"{CITES}.npy")
    settings: dict[str, Any] = {"topology": topology, "features": "ram", "spill_dir": spill}
    with pytest.raises(ChecksumError, match=CITES), open_loader(typed, **settings) as loader:
        list(loader)
    if topology != "ram":  # where edges are read as they are wanted, whoever wants others is unharmed
        with open_loader(typed, fanouts=WITHOUT_CITES, **settings) as loader:
            found = [*map(contents, loader)]
        flip(typed, f"{CITES}.npy")
        assert found == list(expected(typed, fanouts=WITHOUT_CITES))


def _files(root: Path) -> list[Path]:
    """Return the files of every type and relation."""
    return sorted(path for path in root.rglob("*") if path.suffix in {".npy", ".pages"})


@pytest.mark.reliability("L1")
@pytest.mark.reliability("L2")
@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_damage_of_any_file_is_told_by_its_type_or_relation_or_changes_nothing(
    typed: TypedGraph, damage: str
) -> None:
    root, whole = typed.dataset.root, list(expected(typed))
    harmless = []
    for path in _files(root):
        name, content = str(path.relative_to(root)), path.read_bytes()
        if damage == "cut":
            path.write_bytes(content[: max(len(content) - 4096, 100)])
        else:
            flip(typed, name, min(DATA_OFFSET, len(content) - 1))
        try:
            typed_again = TypedGraph(dataset=Dataset.open(root), features=typed.features, labels=typed.labels)
            with open_loader(typed_again, **PLACES["direct"], topology="direct") as loader:
                assert [*map(contents, loader)] == whole
            harmless.append(name)
        except GloaderError as error:
            if name.rpartition(".")[0] not in str(error):
                pytest.fail(f"{name} is damaged, and what is said is {error}")
        finally:
            path.write_bytes(content)
    unwanted = ("/test", "/valid", "/edge_weight", "nobody__reads__paper/indices")
    assert [name for name in harmless if not any(part in name for part in unwanted)] == []


@pytest.mark.reliability("L2")
@pytest.mark.parametrize("place", ["direct", "staged", "packed"])
def test_rows_of_a_type_that_are_cut_under_a_loader_end_it_with_an_error(
    typed: TypedGraph, spill: Path, place: str
) -> None:
    whole = list(expected(typed))
    with open_loader(typed, spill_dir=spill, **PLACES[place]) as loader:
        path = typed.dataset.root / f"{FIELDS}.npy"
        path.write_bytes(path.read_bytes()[: DATA_OFFSET + 64])
        found, error = until_error(loader)
    assert isinstance(error, GloaderError)
    assert FIELDS in str(error)
    assert "truncated" in str(error)
    assert found == whole[: len(found)]


@pytest.mark.reliability("L3")
@pytest.mark.usefixtures("paged")
@pytest.mark.parametrize(
    ("place", "topology"), [("ram", "ram"), ("direct", "direct"), ("packed", "sweep"), ("staged", "ram")]
)
def test_a_dataset_that_is_replaced_is_the_old_one_for_whoever_has_it_open(
    typed: TypedGraph, spill: Path, place: str, topology: str
) -> None:
    whole = list(expected(typed, epochs=2))
    with open_loader(
        typed, spill_dir=spill, topology=topology, memory_budget="200MB", **PLACES[place]
    ) as loader:
        batches = iter(loader)
        found = [contents(next(batches)) for _ in range(2)]
        again = write_typed(typed.dataset.root, seed=8, overwrite=True)
        found += [contents(batch) for epoch in (batches, loader) for batch in epoch]
    assert found == whole
    for name in WIDTHS:
        with pytest.raises(StoreOpenError, match="replaced"):
            typed.dataset.node_tables[name].open_features()
    with pytest.raises(StoreOpenError, match="replaced"):
        open_loader(typed, spill_dir=spill, topology=topology, memory_budget="200MB", **PLACES[place])
    with open_loader(
        again, spill_dir=spill, topology=topology, memory_budget="200MB", **PLACES[place]
    ) as loader:
        assert [*map(contents, loader)] == list(expected(again))


@pytest.mark.reliability("L4")
@pytest.mark.parametrize("call", ["fallocate", "open"])
def test_a_disk_that_is_full_at_any_moment_releases_what_was_packed_of_each_table(
    typed: TypedGraph, spill: Path, call: str
) -> None:
    whole, tables = list(expected(typed)), set()
    with open_loader(typed, spill_dir=spill, spill_budget="64MB", epochs=1, **PLACES["packed"]) as loader:
        retrievals = [table.retrieval for table in loader._held.tier.require_ssd()]
        folder = retrievals[0]._spill
        assert folder is not None
        real = folder._os_io
        folder.reuse_file = lambda num_bytes: None  # type: ignore[method-assign]  # whose bytes are there
        for number in range(1, 60):
            folder._os_io = full = FaultyOS(fail_at=number, error=errno.ENOSPC, calls={call})
            begun: list[int] = []
            for table, retrieval in enumerate(retrievals):
                retrieval._choose = _noting(retrieval, begun, table)  # type: ignore[method-assign]
            found, error = [], None
            try:
                found.extend(map(contents, loader))
            except SpillError as caught:
                error = caught
                tables.add(begun[-1])
                if error.__notes__[-1].startswith("in stage stage"):  # else it is a pack that is read back
                    assert f"while rows of {list(WIDTHS)[begun[-1]]} were staged" in error.__notes__
            folder._os_io = real
            assert (error is None) == (not full.was_hit)
            assert found == whole[: len(found)]
            assert folder.used_bytes == 0
            loader.load_state_dict(loader.state_dict() | {"next": [0, 0]})
            if error is None:
                break
        assert tables == {0, 1}
        assert len(found) == len(loader)


def _noting(retrieval: Any, begun: list[int], table: int) -> Callable[..., Any]:
    """Return the retrieval's choice of how rows are read, which notes of which table packs are made."""
    choose = type(retrieval)._choose

    def noting(*args: Any) -> Any:
        begun.append(table)
        return choose(retrieval, *args)

    return noting


class RelationFaults(FaultyOS):
    """Reads of the edges of one relation fail while ``is_failing``."""

    is_failing = False

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        if self.is_failing and self._paths.get(fd, "").endswith(f"{CITES}.npy"):
            raise OSError(errno.EIO, "Input/output error")
        return super().pread_into(fd, buffer, offset)


@pytest.mark.reliability("L5")
@pytest.mark.usefixtures("paged")
@pytest.mark.parametrize("topology", ["direct", "sweep"])
def test_edges_of_a_relation_that_cannot_be_read_end_the_stream_behind_good_batches(
    typed: TypedGraph, spill: Path, topology: str
) -> None:
    os_io = RelationFaults()
    again = TypedGraph(
        dataset=Dataset.open(typed.dataset.root, os_io=os_io), features=typed.features, labels=typed.labels
    )
    whole = list(expected(typed, epochs=2))
    with open_loader(again, topology=topology, features="ram", spill_dir=spill, io="buffered") as loader:
        os_io.is_failing = True
        found, error = until_error(loader)
        os_io.is_failing = False
        assert isinstance(error, StoreReadError)
        assert CITES in str(error)
        assert "Input/output error" in str(error)
        assert any(
            note.startswith(("in stage sample, epoch", "in stage sweep, epoch")) for note in error.__notes__
        )
        assert found == whole[: len(found)]
        loader.load_state_dict(loader.state_dict() | {"next": [0, 0]})
        assert [*map(contents, loader)] == whole[: len(loader)]


@pytest.mark.reliability("L5")
@pytest.mark.parametrize("place", ["ram", "packed"])
@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize("kind", [ValueError, MemoryError, KeyboardInterrupt])
def test_a_sampler_that_raises_reaches_the_loop_behind_the_batches_before_it(
    typed: TypedGraph, spill: Path, place: str, at: int, kind: type[BaseException]
) -> None:
    boom, due = kind("boom"), BatchId(epoch=0, index=at)
    with open_loader(typed, spill_dir=spill, **PLACES[place]) as loader:
        inner = loader._held.tier.sampler
        replace_parts(loader, sampler=Failing(inner, "sample", boom, lambda batch_id, _: batch_id == due))
        found, error = until_error(loader)
    assert error is boom
    assert error.__notes__ == [f"in stage sample, epoch 0, batch {at}"]
    assert found == list(expected(typed))[:at]


@pytest.mark.reliability("L7")
def test_a_read_of_the_second_table_that_hangs_is_a_stall(
    typed: TypedGraph, spill: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = open_loader(typed, spill_dir=spill, stall_timeout_s=0.5, **PLACES["direct"])
    store, released = loader._held.tier.require_ssd()[1].store, threading.Event()
    read_into = store.read_into

    def hang(*args: Any, **kwargs: Any) -> ReadStats:
        released.wait(20)
        return read_into(*args, **kwargs)

    store.read_into = hang  # type: ignore[method-assign]
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(StallError, match="stage read of epoch 0, batch 0 has not returned"),
    ):
        next(iter(loader))
    assert "in hang" in caplog.text  # the stacks of all threads
    assert "gloader-read" in caplog.text
    released.set()
    for thread in threading.enumerate():
        if thread.name.startswith("gloader"):
            thread.join(10)
    loader._held.tier.close()  # what a stuck thread may still use is left open, until here
