"""Every command that takes a dataset takes its URL, and none of them says or keeps what is secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

import gloader
from gloader.cli.main import main
from gloader.config import ObjectSettings
from gloader.dataset.mirrored import Mirrored, mirrors_dir
from gloader.errors import StoreReadError
from gloader.ssd_store.mirror import block_fetch
from gloader.testing.range_server import RangeServer
from gloader.testing.served_folder import Flip

Json = dict[str, Any]
SMALL = [
    "--fanout",
    "5,5",
    "--hidden",
    "16",
    "--batch-size",
    "256",
    "--memory-budget",
    "300MB",
    "--epochs",
    "2",
]
ON_SSD = ["--features", "ssd", "--cache", "10%", "--superbatch", "2"]
SECRET = "s3cr3t"  # noqa: S105 - nobody's


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the digits at ``digits``, prepared once."""
    folder = tmp_path_factory.mktemp("served")
    assert main(["prepare", "builtin:digits", str(folder / "digits")]) == 0
    return folder


@pytest.fixture(autouse=True)
def _all_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a command opened at a URL it closed, also where it failed."""
    opened: list[Mirrored] = []
    closed: list[Mirrored] = []
    begin, end = Mirrored.__init__, Mirrored.close
    monkeypatch.setattr(Mirrored, "__init__", lambda self, *args: opened.append(self) or begin(self, *args))
    monkeypatch.setattr(Mirrored, "close", lambda self: closed.append(self) or end(self))
    yield
    assert {*map(id, opened)} == {*map(id, closed)}


@pytest.fixture
def run_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Json]:
    """Return a function that runs a command with --json; mirrors are made below ``tmp_path``."""
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))

    def run(*words: str | Path, status: int = 0) -> Json:
        capsys.readouterr()
        assert main([*map(str, words), "--json"]) == status
        parsed = json.loads(capsys.readouterr().out)
        assert isinstance(parsed, dict)
        return parsed

    return run


def test_info_fetches_the_record_alone(digits: Path, run_json: Callable[..., Json], tmp_path: Path) -> None:
    with RangeServer(digits) as server:
        info = run_json("info", server.url + "/digits")
        assert set(server.counts.gets_of) == {"digits/dataset.json"}
        assert info["path"] == server.url + "/digits"
    local = run_json("info", digits / "digits")
    assert {**info, "path": ""} == {**local, "path": ""}
    assert (tmp_path / "home" / "mirrors").is_dir()


def test_propagate_reads_a_url_as_a_folder(
    digits: Path, run_json: Callable[..., Json], tmp_path: Path
) -> None:
    run_json("propagate", digits / "digits", tmp_path / "local", "--hops", "2")
    with RangeServer(digits) as server:
        run_json("propagate", server.url + "/digits", tmp_path / "far", "--hops", "2")
    far, local = (gloader.Dataset.open(tmp_path / name) for name in ("far", "local"))
    assert far.fingerprint == local.fingerprint
    # A mirror has holes, so its files get no second names.
    assert (far.root / "indices.npy").stat().st_nlink == 1
    assert (local.root / "indices.npy").stat().st_nlink > 1
    assert run_json("verify", tmp_path / "far")["ok"]


def test_verify_fetches_everything_and_compares_it(digits: Path, run_json: Callable[..., Json]) -> None:
    with RangeServer(digits) as server:
        assert run_json("verify", server.url + "/digits")["ok"]
        files = {path.name for path in (digits / "digits").iterdir()}
        assert {name.partition("/")[2] for name in server.counts.gets_of} == files


def test_verify_says_where_a_store_is_damaged(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RangeServer(digits, flips=(Flip(name="digits/features.npy", offset=9000),)) as server:
        assert main(["verify", server.url + "/digits", "--mirror-dir", str(tmp_path / "mirrors")]) == 1
    captured = capsys.readouterr()
    assert "features.npy" in captured.out + captured.err


def test_a_run_tells_what_came_from_the_store_and_is_repeated_by_its_configuration(
    digits: Path, run_json: Callable[..., Json], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RangeServer(digits) as server:
        url = server.url + "/digits"
        flags = ["--mirror-dir", str(tmp_path / "mirrors"), "--object-price", "1/1000req,2/GB"]
        flags += ["--object-limit", "900MB/s", "--object-requests", "7"]
        result = run_json("train", "--dataset", url, *flags, *SMALL, *ON_SSD, "--out", tmp_path / "run")
        moved = result["objects"]
        assert (moved["url"], moved["retries"]) == (url, 0)
        assert moved["num_bytes"] > 1797 * 64 * 4
        assert moved["cost"] == pytest.approx(moved["requests"] / 1000 + 2e-9 * moved["num_bytes"])
        lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert [line["object_requests"] > 0 for line in lines] == [True, False]
        recorded = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
        assert recorded["dataset"]["path"] == url
        assert recorded["objects"]["object_requests"] == 7
        # In a table for people, too; another run finds all of it here.
        words = ["train", "--config", str(tmp_path / "run" / "config.yaml"), "--out", str(tmp_path / "again")]
        assert main([*words, "--explain"]) == 0
        said = capsys.readouterr().out
        assert f"mirror of {url} in {tmp_path / 'mirrors'}" in said
        assert "up to 7 requests at a time, at most 900MB/s" in said
        assert "from the store" in said
        assert ", cost 0.00" in said
    again = json.loads((tmp_path / "again" / "result.json").read_text())
    assert again["test_acc"] == result["test_acc"]
    local = run_json("train", "--dataset", digits / "digits", *SMALL, *ON_SSD, "--out", tmp_path / "local")
    assert local["test_acc"] == result["test_acc"]
    assert "objects" not in local
    assert "objects" not in yaml.safe_load((tmp_path / "local" / "config.yaml").read_text())


def test_predictions_are_those_of_a_folder(
    digits: Path, run_json: Callable[..., Json], tmp_path: Path
) -> None:
    run_json("train", "--dataset", digits / "digits", *SMALL, "--out", tmp_path / "run")
    with RangeServer(digits) as server:
        places = {"url": server.url + "/digits", "folder": digits / "digits"}
        for name, place in places.items():
            out = tmp_path / f"{name}.npy"
            told = run_json("infer", "--dataset", place, "--checkpoint", tmp_path / "run", "--out", out)
            assert told["dataset"] == str(place)
    assert (tmp_path / "url.npy").read_bytes() == (tmp_path / "folder.npy").read_bytes()


def test_inspect_looks_at_a_url(digits: Path, run_json: Callable[..., Json]) -> None:
    flags = ["--fanout", "4,3", "--batch-size", "300"]
    with RangeServer(digits) as server:
        ours = run_json("inspect", "--dataset", server.url + "/digits", *flags)
    assert ours == run_json("inspect", "--dataset", digits / "digits", *flags)


def test_an_epoch_is_measured_at_a_url(digits: Path, run_json: Callable[..., Json]) -> None:
    flags = ["--fanout", "2", "--epochs", "1", "--threads", "1"]
    with RangeServer(digits) as server:
        url = server.url + "/digits"
        run_json("bench", "epoch", "--dataset", url, *flags)
        asked = server.counts.gets_of["digits/features.npy"]
        assert asked > 0
        # The disk reads nothing while all comes from the store, which a first superbatch may cover; now all is here.
        report = run_json("bench", "epoch", "--dataset", url, *flags)
        assert report["bytes_read_per_epoch"] > 0
        assert server.counts.gets_of["digits/features.npy"] == asked


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--object-price", "cheap"], "--object-price is cheap"),
        (["--object-requests", "0"], "--object-requests is 0"),
        (["--object-limit", "fast"], "fast"),
        (["--mirror-budget", "none"], "none"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["info", "s3://bucket/papers", "--mirror-dir", str(tmp_path), *words]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.reliability("O16")
def test_what_is_secret_in_a_url_is_nowhere_to_be_found(
    digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    mirrors = ["--mirror-dir", str(tmp_path / "mirrors")]
    with RangeServer(digits) as server:
        host = server.url.removeprefix("http://")
        url = f"http://me:{SECRET}@{host}/digits"
        out = ["--out", str(tmp_path / "run"), "--explain", "--trace"]
        assert main(["train", "--dataset", url, *mirrors, *SMALL, *ON_SSD, *out]) == 0
        assert main(["info", url, *mirrors]) == 0
        assert main(["verify", url, *mirrors]) == 0
        # Errors, too: nothing there, something that is refused, and nobody who answers.
        assert main(["info", url + "-not", *mirrors]) != 0
        assert main(["info", f"{url}?sig={SECRET}", *mirrors]) == 2
        assert main(["prepare", "builtin:digits", url]) == 2
    assert main(["info", f"http://me:{SECRET}@127.0.0.1:1/digits", *mirrors]) != 0
    captured = capfd.readouterr()
    said = captured.out + captured.err + caplog.text
    assert host in said
    assert SECRET not in said
    for path in tmp_path.rglob("*"):
        assert SECRET not in path.name
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_a_run_says_what_is_still_to_come(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirrors = tmp_path / "mirrors"
    with RangeServer(digits) as server:
        url = server.url + "/digits"
        words = ["train", "--dataset", url, *SMALL, *ON_SSD, "--mirror-dir", str(mirrors)]
        assert main([*words, "--out", str(tmp_path / "first")]) == 0
        said = capsys.readouterr()
        assert f"{url}: 0 of " in said.out + said.err
        assert "blocks are in the mirror" in said.out + said.err
        assert main(["verify", url, "--mirror-dir", str(mirrors)]) == 0
        capsys.readouterr()
        assert main([*words, "--out", str(tmp_path / "second")]) == 0
    said = capsys.readouterr()
    assert "blocks are in the mirror" not in said.out + said.err


@pytest.mark.parametrize("out", ["ftp://host/x", "s3:/bucket/x"])
def test_prepare_makes_no_folder_for_a_misspelt_url(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", "builtin:digits", out]) == 2
    assert "URL" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.reliability("O2")
def test_a_store_that_goes_away_is_named_by_its_url(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_fetch, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(block_fetch, "_LONGEST_PAUSE_S", 0.002)
    with RangeServer(digits) as server:
        url = server.url + "/digits"
        dataset = gloader.Dataset.open(url, mirror_dir=tmp_path)
    with closing(dataset), pytest.raises(StoreReadError, match="no connection") as caught:
        dataset.labels()
    assert caught.value.filename.startswith(url)


def test_machines_of_one_host_have_mirrors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = mirrors_dir(ObjectSettings())
    monkeypatch.setenv("GLOADER_MACHINE", "a")
    assert mirrors_dir(ObjectSettings()) == alone / "a"
    assert mirrors_dir(ObjectSettings(mirror_dir=Path("/x"))) == Path("/x")
