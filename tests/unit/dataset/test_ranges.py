"""A part of a dataset: rows of other parts are refused before anything is read, and its own are checked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.cli.main import main
from gloader.core.aligned_memory import mapped_bytes
from gloader.core.ids import RowRanges
from gloader.core.signals import NEVER
from gloader.dataset import Dataset
from gloader.dataset.verify import verify_dataset
from gloader.errors import (
    ChecksumError,
    ConfigError,
    FormatError,
    RowNotHereError,
    StoreExistsError,
    StoreOpenError,
    VersionError,
)
from gloader.ssd_store import FeatureStore, Packer
from gloader.ssd_store.format.format import DATASET_MANIFEST, load_manifest
from gloader.ssd_store.format.manifest import parse_manifest, seal_manifest
from gloader.ssd_store.miss_sources import DirectMisses, load_misses
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS, DIM = 1000, 300  # 1,200 bytes a row: most pages have rows of two parts at no more than each cut
ROWS = np.random.default_rng(0).standard_normal((NUM_ROWS, DIM)).astype(np.float32)
PAGE = 4096


def write(path: Path, **options: Any) -> Dataset:
    random = np.random.default_rng(1)
    return Dataset.from_numpy(
        path,
        features=ROWS,
        labels=random.integers(0, 3, NUM_ROWS),
        edge_index=random.integers(0, NUM_ROWS, (2, 4000)),
        **options,
    )


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return write(tmp_path / "d", ranges="1/4").root


def not_here(row: int, part: int) -> str:
    return (
        rf"features.npy: row {row} is not on this machine, which has rows 250 to 500 of 1,000 \(part 1 of 4\); "
        rf"part {part} has it: start the run with torchrun on the machines of all parts, .* or prepare a copy"
    )


@pytest.mark.parametrize(("row", "part"), [(0, 0), (249, 0), (500, 2), (749, 2), (999, 3)])
def test_a_row_of_another_part_is_refused_by_every_reader_before_anything_is_read(
    path: Path, tmp_path: Path, row: int, part: int
) -> None:
    system = FaultyOS(calls={"pread_into"})
    here = np.arange(260, 300)
    rows = np.sort(np.append(here, row))
    (tmp_path / "spill").mkdir()
    with (
        Dataset.open(path, os_io=system).open_features() as store,
        SpillFolder(tmp_path / "spill", budget_bytes=10**9) as folder,
        Packer(store, folder) as packer,
    ):
        out = np.empty((len(rows), DIM), np.float32)
        before = system.num_calls

        def refused() -> Any:
            return pytest.raises(RowNotHereError, match=not_here(row, part))

        with refused():
            store.read_into(rows, out)
        with refused():
            store.read_into(rows[::-1].copy(), out, at=np.arange(len(rows)))
        with refused():
            store.load(np.append(here, row))
        with refused():
            store.require_here(min(row, 300), max(row + 1, 300))
        with refused():
            DirectMisses(store).read_into(0, rows, out, at=np.arange(len(rows)))
        with refused():
            load_misses(store, [here, rows], cancellation=NEVER)
        with refused():
            packer.pack([here, np.empty(0, np.int64), rows], superbatch=0, cancellation=NEVER)
        assert system.num_calls == before
        store.read_into(here, out[:40])  # the store is as good as before
        np.testing.assert_array_equal(out[:40], ROWS[here])


def test_all_rows_are_refused_before_memory_is_taken_or_anything_is_read(path: Path) -> None:
    system = FaultyOS(calls={"pread_into"})
    dataset = Dataset.open(path, os_io=system)
    with dataset.open_features() as store:
        before = system.num_calls
        for read in (store.load, lambda: store.load(into=mapped_bytes(ROWS.nbytes))):
            with pytest.raises(RowNotHereError, match=not_here(0, 0)):
                read()
        assert system.num_calls == before
    with pytest.raises(RowNotHereError, match=not_here(0, 0)):
        dataset.node_tables["node"].all_features()
    with pytest.raises(RowNotHereError):
        dataset.to_numpy()


def test_rows_that_are_here_are_read_in_every_way(path: Path, tmp_path: Path) -> None:
    mine = np.arange(250, 500)
    (tmp_path / "spill").mkdir()
    with (
        Dataset.open(path).open_features(verify="open") as store,
        SpillFolder(tmp_path / "spill", budget_bytes=10**9) as folder,
        Packer(store, folder) as packer,
    ):
        assert store.held == (250, 500)
        out = np.empty((250, DIM), np.float32)
        for source in (
            load_misses(store, [mine], cancellation=NEVER),
            packer.pack([mine], superbatch=0, cancellation=NEVER),
        ):
            out[:] = 0
            source.read_into(0, mine, out, at=np.arange(250))
            np.testing.assert_array_equal(out, ROWS[mine])
            source.close()
        np.testing.assert_array_equal(store.load(mine).array, ROWS[mine])
        store.read_into(np.empty(0, np.int64), out[:0])
    assert Dataset.open(path).ranges == RowRanges(part=1, of=4, tables={"node": (0, 250, 500, 750, 1000)})


def test_a_part_takes_the_disk_of_a_part(tmp_path: Path) -> None:
    def on_disk(folder: Path) -> int:
        return sum(512 * file.stat().st_blocks for file in folder.rglob("*"))

    copy = write(tmp_path / "copy")
    others = on_disk(copy.root) - 512 * copy.features_path.stat().st_blocks
    for part in range(4):
        dataset = write(tmp_path / str(part), ranges=(part, 4))
        assert dataset.features_path.stat().st_size == copy.features_path.stat().st_size
        assert on_disk(dataset.root) - others <= ROWS.nbytes / 4 + 4 * PAGE
    assert write(tmp_path / "one", ranges="0/1").ranges is None


def test_damage_in_a_page_that_is_here_is_found_and_holes_are_not_looked_at(path: Path) -> None:
    file = path / "features.npy"
    report = verify_dataset(path)
    assert report.is_ok
    assert report.num_bytes < ROWS.nbytes / 2  # with labels and edges
    size = file.stat().st_size
    for offset, is_here in (
        (PAGE, False),
        (size - 1, False),
        (PAGE + 300 * 1200, True),
        (PAGE + 499 * 1200, True),
    ):
        with file.open("r+b") as opened:
            opened.seek(offset)
            byte = opened.read(1)[0]
            opened.seek(offset)
            opened.write(bytes([byte ^ 4]))
        found = verify_dataset(path)
        assert found.is_ok != is_here
        if is_here:
            (problem,) = found.problems
            page = (offset - PAGE) // PAGE
            assert (problem.file, problem.page, problem.offset) == ("features.npy", page, PAGE + page * PAGE)
            row = (offset - PAGE) // 1200
            with (
                pytest.raises(ChecksumError, match=f"page {page} "),
                Dataset.open(path).open_features() as store,
            ):
                store.read_into(np.array([row]), np.empty((1, DIM), np.float32))
        with file.open("r+b") as opened:
            opened.seek(offset)
            opened.write(bytes([byte]))
    with (path / "features.pages").open("r+b") as opened:
        opened.seek(PAGE)
        opened.write(b"\1")
    assert [problem.file for problem in verify_dataset(path).problems] == ["features.pages"]


def test_verify_and_info_say_which_rows_are_here(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1.2 MB, here rows 250 to 500 of 1,000 (part 1 of 4)" in shown
    assert main(["info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranges"] == {
        "part": 1,
        "of": 4,
        "tables": {"node": [0, 250, 500, 750, 1000]},
    }
    assert main(["verify", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "of the features, the pages of part 1 of 4 are here; the others are on other machines" in shown
    assert "every byte that is here is as it was written" in shown


def test_prepare_takes_the_part_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "synthetic:community,nodes=500,edges=900,dim=8"
    assert main(["prepare", source, str(tmp_path / "d"), "--ranges", "2/3"]) == 0
    dataset = Dataset.open(tmp_path / "d")
    assert dataset.ranges is not None
    assert dataset.ranges.held("node") == (333, 500)
    shown = " ".join(capsys.readouterr().out.split())
    assert "part 2 of 3 of the feature rows, all of the edges" in shown
    assert f"torchrun --nnodes 3 ... -m gloader train --dataset {tmp_path / 'd'}, on the machines" in shown
    assert main(["prepare", source, str(tmp_path / "e"), "--ranges", "3/3"]) != 0
    assert "0/4 is the first of four" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "e").exists()
    with pytest.raises(StoreExistsError):
        write(tmp_path / "d", ranges="0/2")
    with pytest.raises(ConfigError, match="names no part"):
        write(tmp_path / "f", ranges="2/2")


def test_another_part_at_the_same_path_is_not_taken_for_the_one_that_was_opened(path: Path) -> None:
    opened = Dataset.open(path)
    write(path, ranges="2/4", overwrite=True)
    assert Dataset.open(path).fingerprint == opened.fingerprint
    with pytest.raises(StoreOpenError, match="replaced after it was opened"):
        opened.open_features()


RANGES = {"part": 1, "of": 4, "bounds": {"features": [0, 250, 500, 750, 1000]}}


@pytest.mark.reliability("M4")
@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (None, "'ranges' must be an object of part, of and bounds, not None"),
        ([], "'ranges' must be an object"),
        (RANGES | {"more": 1}, "'ranges' must be an object"),
        (RANGES | {"part": 4}, r"'part' is 4; it must be a whole number in 0\.\.3"),
        (RANGES | {"part": -1}, "'part' is -1"),
        (RANGES | {"part": True}, "'part' is True"),
        (RANGES | {"of": 0}, r"'of' is 0; it must be a whole number in 1\.\.4096"),
        (RANGES | {"of": 10**9}, "'of' is 1000000000"),
        (RANGES | {"of": "4"}, "'of' is '4'"),
        (RANGES | {"bounds": {}}, "'bounds' must be an object with an entry"),
        (RANGES | {"bounds": {"features": [0, 500, 250, 750, 1000]}}, "ascend from 0 to 1000"),
        (RANGES | {"bounds": {"features": [1, 250, 500, 750, 1000]}}, "ascend from 0 to 1000"),
        (RANGES | {"bounds": {"features": [0, 250, 500, 750, 999]}}, "ascend from 0 to 1000"),
        (RANGES | {"bounds": {"features": [0, 500, 1000]}}, "they must be 5 rows"),
        (RANGES | {"bounds": {"features": [0, 250.0, 500, 750, 1000]}}, "they must be 5 rows"),
        (RANGES | {"bounds": {"features": 7}}, "they must be 5 rows"),
        (
            RANGES | {"bounds": {"labels": [0, 250, 500, 750, 1000]}},
            "'labels' is no matrix with page checksums",
        ),
        (RANGES | {"bounds": {"x": [0, 250, 500, 750, 1000]}}, "'x' is no matrix"),
    ],
)
def test_ranges_that_were_edited_by_hand_are_refused(path: Path, ranges: Any, message: str) -> None:
    body = json.loads((path / DATASET_MANIFEST).read_text())
    del body["checksum"]
    assert body["ranges"] == RANGES
    (path / DATASET_MANIFEST).write_bytes(seal_manifest(body | {"ranges": ranges}))
    with pytest.raises(FormatError, match=message):
        Dataset.open(path)


def test_ranges_need_their_feature_and_are_those_of_all_matrices(path: Path) -> None:
    body = json.loads((path / DATASET_MANIFEST).read_text())
    del body["checksum"]
    for wrong in ({"required_features": []}, {"ranges": None}):
        changed = {name: value for name, value in (body | wrong).items() if value is not None}
        with pytest.raises(FormatError, match="'ranges' and the required feature 'row-ranges' go together"):
            parse_manifest(seal_manifest(changed), "x")
    manifest = load_manifest(path, DATASET_MANIFEST)
    other = replace(
        manifest.arrays["features"], name="edge_features", shape=(manifest.arrays["indices"].shape[0], DIM)
    )
    arrays = {**manifest.arrays, "edge_features": other}
    features = (*manifest.required_features, "edge-columns")
    with pytest.raises(FormatError, match="both must be the same, and differ in 'edge_features'"):
        Dataset(path, replace(manifest, arrays=arrays, required_features=features))


def test_an_older_build_refuses_a_part_by_name(path: Path, monkeypatch: Any) -> None:
    """It would take the holes for damage."""
    monkeypatch.setattr("gloader.ssd_store.format.manifest.KNOWN_FEATURES", frozenset({"int8-row-scale"}))
    with pytest.raises(VersionError, match=r"needs features \['row-ranges'\] .* use a newer build"):
        Dataset.open(path)


def test_a_stand_alone_opening_knows_the_part(path: Path) -> None:
    with FeatureStore.open(path) as store, pytest.raises(RowNotHereError):
        store.read_into(np.array([0]), np.empty((1, DIM), np.float32))


def test_all_rows_are_refused_at_once_also_where_the_first_ones_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gloader.dataset.tables._CHUNK_ROWS", 100)
    root = write(tmp_path / "d", ranges="0/4").root
    system = FaultyOS(calls={"pread_into"})
    with Dataset.open(root, os_io=system).open_features():
        once = system.num_calls  # what opening reads
    with pytest.raises(RowNotHereError, match="row 999 is not on this machine"):
        Dataset.open(root, os_io=system).node_tables["node"].all_features()
    with Dataset.open(root, os_io=system).open_features():
        assert system.num_calls == 3 * once
