"""`gloader prepare SRC URL`: every file, then the record; or no dataset."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gloader import Dataset
from gloader.cli.main import main
from gloader.convert.upload import require_target, upload_dataset
from gloader.errors import ConfigError, StoreExistsError, StoreReadError, StoreWriteError
from gloader.testing.range_server import RangeServer
from gloader.testing.served_folder import Faults

Json = dict[str, Any]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


def small(path: Path, *, nodes: int = 300, weights: bool = False) -> Dataset:
    rng = np.random.default_rng(nodes)
    edges = rng.integers(0, nodes, (2, 2000))
    return Dataset.from_numpy(
        path,
        features=rng.standard_normal((nodes, 9)).astype(np.float32),
        labels=rng.integers(0, 3, nodes),
        edge_index=edges,
        **({"edge_weight": rng.random(2000).astype(np.float32)} if weights else {}),
    )


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_every_file_is_uploaded_and_the_record_last(tmp_path: Path, store: Path) -> None:
    dataset = small(tmp_path / "here")
    with RangeServer(store) as server:
        report = upload_dataset(dataset.root, server.url + "/a/b")
        puts = [each.name for each in server.served.log if each.method == "PUT"]
    assert puts[-1] == "a/b/dataset.json"
    assert files(store / "a" / "b") == files(dataset.root)
    assert (report.num_files, report.replaced) == (len(files(dataset.root)), False)
    assert Dataset.open(store / "a" / "b").fingerprint == dataset.fingerprint


def test_a_folder_of_a_url_of_its_own_is_uploaded_to(tmp_path: Path, store: Path) -> None:
    dataset = small(tmp_path / "here")
    upload_dataset(dataset.root, f"file://{store}/deep/down")
    assert files(store / "deep" / "down") == files(dataset.root)


def test_a_dataset_that_is_there_is_replaced_only_where_that_was_said(tmp_path: Path, store: Path) -> None:
    old, new = small(tmp_path / "old", weights=True), small(tmp_path / "new", nodes=200)
    with RangeServer(store) as server:
        url = server.url + "/papers"
        upload_dataset(old.root, url)
        before = files(store)
        for refused in (
            lambda: upload_dataset(new.root, url),
            lambda: require_target(url, overwrite=False),
        ):
            with pytest.raises(StoreExistsError) as caught:
                refused()
            assert caught.value.errno == errno.EEXIST
            assert files(store) == before
        server.served.forget()
        assert upload_dataset(new.root, url, overwrite=True).replaced
        changes = [(each.method, each.name) for each in server.served.log if each.method in {"PUT", "DELETE"}]
    assert changes[0] == ("DELETE", "papers/dataset.json")
    # What the old record named and the new one does not is removed, behind the new record.
    assert changes.index(("PUT", "papers/dataset.json")) < changes.index(("DELETE", "papers/edge_weight.npy"))
    assert files(store / "papers") == files(new.root)


@pytest.mark.reliability("O18")
def test_an_upload_that_fails_leaves_no_record_and_the_next_one_replaces_what_it_left(
    tmp_path: Path, store: Path
) -> None:
    old, new = small(tmp_path / "old"), small(tmp_path / "new", nodes=200)
    with RangeServer(store) as server:
        url = server.url + "/papers"
        upload_dataset(old.root, url)
        server.served.faults = Faults(rate=1.0, kinds=("cut",), methods=("PUT",))
        with pytest.raises((StoreWriteError, StoreReadError)) as caught:
            upload_dataset(new.root, url, overwrite=True)
        assert any("there is no dataset at" in note for note in caught.value.__notes__)
        assert not (store / "papers" / "dataset.json").exists()
        server.served.faults = Faults()
        upload_dataset(new.root, url)
    assert files(store / "papers") == files(new.root)


def test_a_foreign_record_is_never_replaced(tmp_path: Path, store: Path) -> None:
    dataset = small(tmp_path / "here")
    (store / "dataset.json").write_text('{"of": "another program"}')
    with pytest.raises(StoreExistsError, match="was not written by gloader"):
        upload_dataset(dataset.root, f"file://{store}", overwrite=True)
    assert files(store) == {"dataset.json": b'{"of": "another program"}'}


def test_an_object_that_is_not_whole_is_no_dataset(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = small(tmp_path / "here")
    from gloader.ssd_store.mirror import object_store

    put = object_store.ObstoreClient.put

    def truncated(client: Any, name: str, source: Any) -> None:
        pieces = source if isinstance(source, bytes) else b"".join(source)
        put(client, name, pieces[:-1])

    monkeypatch.setattr(object_store.ObstoreClient, "put", truncated)
    with pytest.raises(StoreWriteError, match=r"was uploaded with [\d,]+ bytes and has [\d,]+ bytes"):
        upload_dataset(dataset.root, f"file://{store}")
    assert "dataset.json" not in files(store)


def test_a_part_of_a_dataset_is_not_uploaded(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{store}"
    assert main(["prepare", "builtin:digits", str(tmp_path / "part"), "--ranges", "1/4"]) == 0
    with pytest.raises(ConfigError, match="part 1 of 4 of its rows"):
        upload_dataset(tmp_path / "part", url)
    assert main(["prepare", "builtin:digits", url, "--ranges", "1/4"]) == 2
    assert "--ranges is for a folder" in capsys.readouterr().err
    assert files(store) == {}


def test_a_query_is_refused_without_being_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="query") as caught:
        require_target("https://host/papers?sig=s3cr3t", overwrite=False)
    assert "s3cr3t" not in str(caught.value)


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., Json]:
    def run(*words: str | Path, status: int = 0) -> Json:
        capsys.readouterr()
        assert main([*map(str, words), "--json"]) == status
        parsed = json.loads(capsys.readouterr().out or "{}")
        assert isinstance(parsed, dict)
        return parsed

    return run


def test_a_source_is_prepared_and_uploaded(
    tmp_path: Path, store: Path, run_json: Callable[..., Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(spill))
    with RangeServer(store) as server:
        report = run_json("prepare", "builtin:digits", server.url + "/digits")
        assert report["path"] == server.url + "/digits"
        assert report["uploaded"]["num_bytes"] == report["dataset_bytes"] - len(
            files(store / "digits")["dataset.json"]
        )
        info = run_json("info", server.url + "/digits", "--mirror-dir", tmp_path / "mirrors")
        assert (info["path"], info["num_nodes"]) == (server.url + "/digits", 1797)
    local = run_json("prepare", "builtin:digits", tmp_path / "here")
    assert run_json("info", tmp_path / "here")["fingerprint"] == info["fingerprint"]
    assert local["num_nodes"] == report["num_nodes"]
    assert list(spill.iterdir()) == []


def test_a_prepared_folder_is_uploaded_as_it_is(
    tmp_path: Path, store: Path, run_json: Callable[..., Json], capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = small(tmp_path / "here")
    url = f"file://{store}/papers"
    assert run_json("prepare", dataset.root, url)["path"] == url
    assert files(store / "papers") == files(dataset.root)
    assert main(["prepare", str(dataset.root), url]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["prepare", str(dataset.root), url, "--overwrite"]) == 0
    assert main(["prepare", str(dataset.root), url, "--dtype", "float16", "--overwrite"]) == 2
    assert "uploaded as it is" in capsys.readouterr().err


def test_a_target_that_is_taken_is_told_before_anything_is_prepared(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upload_dataset(small(tmp_path / "here").root, f"file://{store}")
    assert main(["prepare", "npy:/nowhere", f"file://{store}"]) == 2
    assert "there is a dataset" in capsys.readouterr().err
