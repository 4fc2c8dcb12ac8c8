"""Ways to write a store, and the question what a folder holds afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.core.ids import RangePart
from gloader.dataset import Dataset
from gloader.errors import StoreError
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.feature_store import FeatureWriter
from gloader.ssd_store.format.array_reader import load_array
from gloader.ssd_store.format.format import STORE_MANIFEST, find_manifest_name, load_manifest
from gloader.ssd_store.format.verification import verify_directory
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.new_directory import NewDirectory

if TYPE_CHECKING:
    from pathlib import Path

OLD = np.random.default_rng(1).standard_normal((70, 37)).astype(np.float32)  # 10,360 bytes: 3 pages
NEW = np.random.default_rng(2).standard_normal((90, 61)).astype(np.float32)


def write_rows(folder: Path, array: np.ndarray, *, overwrite: bool = False, os_io: OsIO = REAL_OS) -> None:
    settings = {"overwrite": overwrite, "os_io": os_io}
    with FeatureWriter(
        folder / "s", num_rows=array.shape[0], dim=array.shape[1], dtype="float32", **settings
    ) as writer:
        writer.append(array[:50])
        writer.append(array[50:])


class Create:
    """A new store where there is none."""

    before, after = "absent", "new"

    def prepare(self, folder: Path) -> None:
        pass

    def run(self, folder: Path, os_io: OsIO) -> None:
        write_rows(folder, NEW, os_io=os_io)


class CreateInNewFolder(Create):
    """A dataset of several arrays with a scratch folder."""

    def run(self, folder: Path, os_io: OsIO) -> None:
        with NewDirectory(folder / "s", manifest_name=STORE_MANIFEST, os_io=os_io) as directory:
            (directory.scratch() / "bucket").write_text("x")
            with directory.array("ids", dtype="int64", shape=(600,)) as writer:
                writer.append(np.arange(600))
            with directory.features("features", num_rows=90, dim=61, dtype="float32") as column:
                column.append(NEW)
            directory.commit("feature_store", {})


class Overwrite:
    """A new store in the place of an old one."""

    before, after = "old", "new"

    def prepare(self, folder: Path) -> None:
        write_rows(folder, OLD)

    def run(self, folder: Path, os_io: OsIO) -> None:
        write_rows(folder, NEW, overwrite=True, os_io=os_io)


class TakeOver(Create):
    """A new store where a dead creator left its unfinished folder."""

    def prepare(self, folder: Path) -> None:
        (folder / ".s.staging" / "scratch").mkdir(parents=True)
        (folder / ".s.staging" / "features.npy").write_bytes(b"half")


def write_typed(folder: Path, rows: np.ndarray, *, overwrite: bool = False, os_io: OsIO = REAL_OS) -> None:
    """Write a dataset of two types, one of them without nodes, of a relation and links: arrays that lie in folders."""
    relation, count = ("paper", "cites", "paper"), len(rows)
    with Dataset.create_hetero(
        folder / "s",
        name="typed",
        num_nodes={"paper": count, "author": 0},
        relations=[relation],
        num_classes=1,
        overwrite=overwrite,
        os_io=os_io,
    ) as writer:
        papers, edges = writer.nodes("paper"), writer.edges(relation)
        with papers.features(rows.shape[1], "float32") as column:
            column.append(rows)
        papers.labels(np.zeros(count, np.int64))
        papers.splits(train=np.arange(50), valid=np.arange(50, 60), test=np.arange(60, 70))
        with edges.indptr() as column:
            column.append(np.zeros(count + 1, np.int64))
        with edges.indices(0, "int32") as column:
            column.append(np.empty(0, np.int32))
        with edges.edge_time(0) as column:
            column.append(np.empty(0, np.int64))
        with writer.links("train", relation=relation).pairs(count) as pairs:
            pairs.append(np.repeat([[0, 1, -1, -1]], count, axis=0))


class OverwriteTyped:
    """A dataset of several types, with a link table, in the place of an old one."""

    before, after = "old", "new"

    def prepare(self, folder: Path) -> None:
        write_typed(folder, OLD)

    def run(self, folder: Path, os_io: OsIO) -> None:
        write_typed(folder, NEW, overwrite=True, os_io=os_io)


class CreatePart(Create):
    """The last but one of several parts of the rows: a file with holes at both ends."""

    def run(self, folder: Path, os_io: OsIO) -> None:
        part = RangePart(part=1, of=3)
        with NewDirectory(folder / "s", manifest_name=STORE_MANIFEST, part=part, os_io=os_io) as directory:
            with directory.features("features", num_rows=90, dim=61, dtype="float32") as column:
                column.append(NEW)
            directory.commit("feature_store", {})


CASES = [Create, CreateInNewFolder, Overwrite, TakeOver, OverwriteTyped, CreatePart]


def content_of(folder: Path) -> str:
    """Return what a reader finds: absent, refused, or one of the known contents; anything else fails."""
    path = folder / "s"
    if not path.exists():
        return "absent"
    try:
        manifest_name = find_manifest_name(path)
        manifest = load_manifest(path, manifest_name)
    except StoreError as error:
        return f"refused ({type(error).__name__})"
    report = verify_directory(path, manifest_name)
    assert report.is_ok, report.problems
    if manifest.ranges is not None:
        with FeatureStore.open(path) as store:
            first, past = store.held
            assert np.array_equal(store.load(np.arange(first, past)).array, NEW[first:past])
        return "new"
    arrays = {name: load_array(path, record) for name, record in manifest.arrays.items()}
    rows = arrays["nodes/paper/features" if "nodes/paper/features" in arrays else "features"]
    for name, array in (("old", OLD), ("new", NEW)):
        if np.array_equal(rows, array):
            return name
    raise AssertionError("the store holds rows that nobody wrote")


@pytest.fixture(name="content_of")
def _content_of():
    return content_of


@pytest.fixture(name="case", params=CASES, ids=lambda case: case.__name__)
def _case(request):
    return request.param()


@pytest.fixture(name="write_rows")
def _write_rows():
    return write_rows


@pytest.fixture(name="contents")
def _contents():
    return {"old": OLD, "new": NEW}
