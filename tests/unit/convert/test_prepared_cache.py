"""Where sources that are trained on directly are kept, and when they are prepared anew."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import ensure_dataset, prepared_path
from gloader.core.paths import home_dir
from gloader.errors import ConfigError

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
