"""The folders of sources that are trained on directly, and the reasons to prepare them anew."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from ogb_layout import write_mag240m, write_ogb, write_ogbn_mag

from gloader.convert import prepared_cache
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import ensure_dataset, prepared_path
from gloader.core.paths import home_dir
from gloader.dataset import Dataset
from gloader.errors import ConfigError, StoreWriteError
from gloader.ssd_store.write.atomic_file import LockedFolder

if TYPE_CHECKING:
    from pathlib import Path

SOURCE, PREPARE = SourceOptions(), PrepareOptions()


def path_of(spec: str, source: SourceOptions = SOURCE, prepare: PrepareOptions = PREPARE) -> Path:
    return prepared_path(spec, source, prepare)


def test_home_follows_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "here"))
    assert home_dir() == tmp_path / "here"
    monkeypatch.setenv("GLOADER_HOME", "~/there")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_dir() == tmp_path / "there"
    monkeypatch.delenv("GLOADER_HOME")
    assert home_dir().name == "gloader"


def test_name_is_readable_and_stable() -> None:
    path = path_of("synthetic:rmat,nodes=5,edges=9")
    assert path == path_of("synthetic:rmat,nodes=5,edges=9")
    assert path.parent == home_dir() / "datasets"
    assert path.name.startswith("synthetic-rmat-nodes-5-edges-9-")
    assert "/" not in path_of("npy:../../x y/z" * 40).name
    assert len(path_of("npy:../../x y/z" * 40).name) < 100


def test_what_changes_the_content_changes_the_name() -> None:
    spec = "builtin:digits"
    others = [
        path_of("builtin:demo"),
        path_of(spec, replace(SOURCE, seed=1)),
        path_of(spec, SOURCE, replace(PREPARE, dtype="float16")),
        path_of(spec, SOURCE, replace(PREPARE, self_loops=True)),
    ]
    assert len({path_of(spec), *others}) == 5


def test_budget_does_not_change_the_name() -> None:
    spec = "builtin:digits"
    assert path_of(spec) == path_of(
        spec, replace(SOURCE, memory_budget_bytes=1), replace(PREPARE, memory_budget_bytes=2)
    )


def test_edited_files_are_another_dataset(tmp_path: Path) -> None:
    folder, labels = tmp_path / "graph", tmp_path / "labels.npy"
    folder.mkdir()
    (folder / "edges.npy").write_bytes(b"1234")
    labels.write_bytes(b"1")
    spec, source = f"npy:{folder}", replace(SOURCE, labels=labels)
    seen = {path_of(spec, source)}
    os.utime(folder / "edges.npy", ns=(1, 1))
    seen.add(path_of(spec, source))
    (folder / "features.npy").write_bytes(b"")
    seen.add(path_of(spec, source))
    os.utime(labels, ns=(1, 1))
    seen.add(path_of(spec, source))
    assert len(seen) == 4


def test_relative_and_absolute_paths_are_one_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "graph").mkdir()
    monkeypatch.chdir(tmp_path)
    assert (
        path_of("npy:graph").name.rpartition("-")[2]
        == path_of(f"npy:{tmp_path}/graph").name.rpartition("-")[2]
    )


def test_prepared_folder_is_used_as_it_is(tmp_path: Path) -> None:
    assert ensure_dataset(str(tmp_path), SOURCE, PREPARE) == tmp_path


def test_neither_folder_nor_source_is_told_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"'digits' is neither a folder nor a source; .*builtin:digits"):
        ensure_dataset("digits", SOURCE, PREPARE)


def write_igb(folder: Path, dim: int = 1024) -> Path:
    paper, cites = folder / "processed" / "paper", folder / "processed" / "paper__cites__paper"
    paper.mkdir(parents=True)
    cites.mkdir()
    np.save(paper / "node_feat.npy", np.zeros((10, dim), np.float32))
    np.save(paper / "node_label_19.npy", np.zeros(10, np.float32))
    np.save(cites / "edge_index.npy", np.zeros((5, 2), np.int64))
    return folder


@pytest.mark.reliability("J16")
@pytest.mark.parametrize(
    "kind", ["igb", "igb@19", "ogb", "ogb root", "ogbn-mag", "mag240m", "mag240m-papers"]
)
def test_every_file_that_a_source_reads_counts(tmp_path: Path, kind: str) -> None:
    source = SOURCE
    if kind.startswith("igb"):
        folder = write_igb(tmp_path / "tiny")
        spec = f"igb:{folder}" + kind.removeprefix("igb")
        read = ["paper/node_feat.npy", "paper/node_label_19.npy", "paper__cites__paper/edge_index.npy"]
        read = [f"processed/{name}" for name in read]
    elif kind == "ogbn-mag":
        folder = write_ogbn_mag(tmp_path)
        spec = f"ogb:ogbn-mag@{tmp_path}"
        read = ["raw/num-node-dict.csv.gz", "raw/relations/author___writes___paper/edge.csv.gz"]
        read += ["raw/node-feat/paper/node-feat.csv.gz", "split/time/paper/train.csv.gz"]
    elif kind.startswith("ogb"):
        folder = write_ogb(tmp_path, "ogbn-arxiv")
        spec = f"ogb:ogbn-arxiv@{tmp_path}"
        if kind == "ogb root":
            spec, source = "ogb:ogbn-arxiv", replace(SOURCE, root=tmp_path)
        read = ["raw/node-feat.csv.gz", "raw/edge.csv.gz", "split/time/train.csv.gz"]
    else:
        folder = write_mag240m(tmp_path, num_papers=10)
        spec = f"{kind}:{tmp_path}"
        read = ["meta.pt", "split_dict.pt", "processed/paper/node_feat.npy"]
        read += ["processed/paper___cites___paper/edge_index.npy"]
    seen = [path_of(spec, source)]
    for name in read:
        os.utime(folder / name, ns=(1, 1))
        seen.append(path_of(spec, source))
    assert len(set(seen)) == 1 + len(read)
    # Other files in the folder are other people's.
    (tmp_path / "notes.txt").write_text("of somebody else")
    assert path_of(spec, source) == seen[-1]


def test_files_of_edge_tables_count(tmp_path: Path) -> None:
    file = tmp_path / "valid.csv"
    file.write_text("src,dst\n0,1\n")
    options = replace(PREPARE, edge_tables=(f"valid={file}",))
    first = prepared_path("builtin:digits", SOURCE, options)
    assert first != path_of("builtin:digits")
    os.utime(file, ns=(1, 1))
    assert prepared_path("builtin:digits", SOURCE, options) != first


@pytest.mark.reliability("J16")
def test_a_source_edited_after_it_was_prepared_is_prepared_again(tmp_path: Path) -> None:
    spec = f"igb:{write_igb(tmp_path / 'tiny', dim=4)}"
    first = ensure_dataset(spec, SOURCE, PREPARE)
    assert ensure_dataset(spec, SOURCE, PREPARE) == first
    features = tmp_path / "tiny" / "processed" / "paper" / "node_feat.npy"
    np.save(features, np.ones((10, 6), np.float32))
    assert Dataset.open(ensure_dataset(spec, SOURCE, PREPARE)).feature_dim == 6


def test_a_source_that_is_downloaded_on_its_first_use_is_prepared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gloader.convert.downloads.fetch_ogb", lambda name, root: write_ogb(root, name))
    spec = f"ogb:ogbn-arxiv@{tmp_path}"
    assert ensure_dataset(spec, SOURCE, PREPARE) == ensure_dataset(spec, SOURCE, PREPARE)


def test_the_second_of_two_first_uses_waits_for_the_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = "synthetic:community,nodes=40,edges=80,dim=2,classes=2,seed=77"
    target = path_of(spec)
    target.parent.mkdir(parents=True, exist_ok=True)
    other = LockedFolder(target.with_name(f".{target.name}.staging"))
    other.acquire()
    looks: list[float] = []

    def wait(seconds: float) -> None:
        # The other process finishes during the second wait.
        looks.append(seconds)
        if len(looks) == 2:
            other.remove()

    monkeypatch.setattr(prepared_cache.time, "sleep", wait)
    with caplog.at_level(logging.INFO, "gloader"):
        assert ensure_dataset(spec, SOURCE, PREPARE) == target
    assert len(looks) == 2
    assert Dataset.open(target).num_nodes == 40
    assert [record.getMessage() for record in caplog.records].count(
        f"another process is preparing {spec}; waiting for it"
    ) == 1


@pytest.mark.reliability("J19")
@pytest.mark.parametrize("home", ["/proc/x", "FILE"])
def test_a_home_that_cannot_be_written_names_what_chooses_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "file") if home == "FILE" else home)
    with pytest.raises(StoreWriteError, match="set GLOADER_HOME to another folder"):
        ensure_dataset("builtin:digits", SourceOptions(), PrepareOptions())
