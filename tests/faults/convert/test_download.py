from __future__ import annotations

import hashlib
import socket
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gloader.convert import downloads as module
from gloader.convert.downloads import download, fetch_ogb
from gloader.errors import DownloadError, MissingDependencyError, SourceError, UnsafeArchiveError

BODY = bytes(range(256)) * 9000


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        where = self.path.partition("?to=")[2]
        if where:
            self.send_response(302)
            self.send_header("Location", where)
            self.end_headers()
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/unsized":
            self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[: len(BODY) // 2] if self.path == "/short" else BODY)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.mark.parametrize("path", ["/whole", "/unsized"])
def test_a_file_arrives_with_progress(server, tmp_path, path):
    seen = []

    class Note:
        def advance(self, stage, done, total, unit):
            seen.append((stage, done, total, unit))

    digest = hashlib.sha256(BODY).hexdigest()
    download(server + path, tmp_path / "new" / "file", sha256=digest, progress=Note())
    assert (tmp_path / "new" / "file").read_bytes() == BODY
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["file"]
    assert seen[-1] == ("download", len(BODY), None if path == "/unsized" else len(BODY), "bytes")


def test_redirects_are_followed_within_the_scheme(server, tmp_path):
    download(f"{server}/?to=/whole", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY


@pytest.mark.reliability("H5")
@pytest.mark.parametrize(
    ("path", "digest", "message"),
    [
        ("/whole", "00" * 32, "has the SHA-256 digest .*, expected 00"),
        ("/short", None, f"ended after {len(BODY) // 2} of {len(BODY)} bytes|cannot be downloaded"),
        ("/missing", None, r"/missing cannot be downloaded \(Not Found\)"),
        ("/?to=file:///etc/passwd", None, "leaves its scheme|not allowed"),
        ("/?to=ftp://127.0.0.1/x", None, "leaves its scheme"),
        ("/?to=https://127.0.0.1/x", None, "leaves its scheme"),
    ],
)
def test_nothing_is_installed_when_it_fails(server, tmp_path, path, digest, message):
    with pytest.raises(DownloadError, match=message):
        download(server + path, tmp_path / "file", sha256=digest)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("H5")
@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "/etc/passwd"])
def test_only_web_addresses_are_downloaded(tmp_path, url):
    with pytest.raises(DownloadError, match="not an https address"):
        download(url, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_cannot_fit_is_not_begun(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SPARE_BYTES", 1 << 60)
    with pytest.raises(DownloadError, match="the disk has"):
        download(server + "/whole", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def serve_zip(monkeypatch, content):
    """Stand in for the network: whatever is asked for, ``content`` arrives."""
    asked = []

    def fake(url, target, **_):
        asked.append(url)
        with zipfile.ZipFile(target, "w") as archive:
            for name in content:
                archive.writestr(name, b"x")

    monkeypatch.setattr(module, "download", fake)
    return asked


def test_ogb_data_is_fetched_over_https_once(tmp_path, monkeypatch):
    asked = serve_zip(monkeypatch, ["arxiv/raw/edge.csv.gz", "arxiv/RELEASE_v1.txt"])
    folder = fetch_ogb("ogbn-arxiv", tmp_path)
    assert folder == tmp_path / "ogbn_arxiv"
    assert (folder / "raw" / "edge.csv.gz").read_bytes() == b"x"
    assert fetch_ogb("ogbn-arxiv", tmp_path) == folder
    assert len(asked) == 1
    assert asked[0].startswith("https://")
    assert asked[0].endswith("/arxiv.zip")
    assert [entry.name for entry in tmp_path.iterdir()] == ["ogbn_arxiv"]


@pytest.mark.reliability("H5")
def test_offline_it_says_what_to_put_where(tmp_path, monkeypatch):
    address = f"http://127.0.0.1:{closed_port()}/arxiv.zip"
    real = module.download
    monkeypatch.setattr(module, "download", lambda _, target, **how: real(address, target, **how))
    with pytest.raises(DownloadError) as caught:
        fetch_ogb("ogbn-arxiv", tmp_path / "new")
    message = str(caught.value)
    assert "\n" not in message
    assert f"{tmp_path}/new/ogbn_arxiv/raw exists" in message
    assert "ogb:ogbn-arxiv@DIR" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("H5")
@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (["other/raw/x"], DownloadError, "does not hold arxiv/raw"),
        (["arxiv/raw/x", "../x"], UnsafeArchiveError, "outside the target"),
    ],
)
def test_a_wrong_archive_leaves_nothing(tmp_path, monkeypatch, content, error, message):
    serve_zip(monkeypatch, content)
    with pytest.raises(error, match=message):
        fetch_ogb("ogbn-arxiv", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_gets_the_nearest(tmp_path):
    with pytest.raises(SourceError, match="did you mean ogbn-arxiv"):
        fetch_ogb("ogbn-arxive", tmp_path)


def test_without_ogb_the_install_command_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[ogb\]' -c constraints\.txt"):
        fetch_ogb("ogbn-arxiv", tmp_path)
