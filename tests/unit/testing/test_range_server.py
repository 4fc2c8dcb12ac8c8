"""The range server does what an object store does, and each fault that it is asked for."""

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gloader.testing.range_server import RangeServer, range_server_process
from gloader.testing.served_folder import FAULT_KINDS, Faults, Flip

CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    served = tmp_path / "served"
    served.mkdir()
    (served / "rows").write_bytes(CONTENT)
    return served


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with RangeServer(folder) as running:
        yield running


def _ask(
    server: RangeServer, method: str, name: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    try:
        connection.request(
            method, f"/{name}", body, {key.replace("_", "-"): value for key, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.headers)
    finally:
        connection.close()


def test_a_range_is_served_with_the_etag_of_the_whole(server: RangeServer) -> None:
    whole, part = _ask(server, "GET", "rows"), _ask(server, "GET", "rows", Range="bytes=10-19")
    assert whole[:2] == (200, CONTENT)
    assert part[:2] == (206, CONTENT[10:20])
    assert part[2]["Content-Range"] == f"bytes 10-19/{len(CONTENT)}"
    assert part[2]["ETag"] == whole[2]["ETag"]


@pytest.mark.parametrize(
    ("asked", "expected"), [("bytes=255990-", CONTENT[255990:]), ("bytes=-7", CONTENT[-7:])]
)
def test_ranges_may_lack_an_end(server: RangeServer, asked: str, expected: bytes) -> None:
    assert _ask(server, "GET", "rows", Range=asked)[:2] == (206, expected)


def test_a_range_behind_the_end_is_416(server: RangeServer) -> None:
    status, _, headers = _ask(server, "GET", "rows", Range="bytes=256000-256009")
    assert (status, headers["Content-Range"]) == (416, "bytes */256000")


def test_head_tells_the_size_and_sends_nothing(server: RangeServer) -> None:
    status, body, headers = _ask(server, "HEAD", "rows")
    assert (status, body, headers["Content-Length"]) == (200, b"", "256000")


def test_what_is_not_there_is_404_and_nothing_outside_of_the_folder_is_there(
    server: RangeServer, folder: Path
) -> None:
    (folder.parent / "secret").write_bytes(b"x")
    assert _ask(server, "GET", "none")[0] == 404
    assert _ask(server, "GET", "../secret")[0] == 404
    assert _ask(server, "PUT", "%2e%2e/secret", b"y")[0] == 403
    assert (folder.parent / "secret").read_bytes() == b"x"


def test_a_replaced_file_is_refused_by_its_old_etag(server: RangeServer, folder: Path) -> None:
    etag = _ask(server, "HEAD", "rows")[2]["ETag"]
    other = folder.parent / "other"
    other.write_bytes(CONTENT)
    server.served.replace_after("rows", gets=1, by=other)
    assert _ask(server, "GET", "rows", Range="bytes=0-1", If_Match=etag)[0] == 206
    assert _ask(server, "GET", "rows", Range="bytes=2-3", If_Match=etag)[0] == 412
    assert _ask(server, "GET", "rows", Range="bytes=2-3", If_Match="*")[0] == 206


def test_uploads_are_there_whole_and_may_be_removed(server: RangeServer, folder: Path) -> None:
    status, _, headers = _ask(server, "PUT", "deep/new", CONTENT)
    assert (status, (folder / "deep" / "new").read_bytes()) == (201, CONTENT)
    assert headers["ETag"] == _ask(server, "HEAD", "deep/new")[2]["ETag"]
    assert _ask(server, "PUT", "deep/new", b"", If_None_Match="*")[0] == 412
    assert (folder / "deep" / "new").read_bytes() == CONTENT
    assert [_ask(server, "DELETE", "deep/new")[0] for _ in range(2)] == [204, 404]
    assert sorted(path.name for path in folder.rglob("*")) == ["deep", "rows"]


def test_an_upload_that_ends_early_leaves_what_was_there(server: RangeServer, folder: Path) -> None:
    with socket.create_connection(urlsplit(server.url).netloc.split(":"), timeout=10) as client:
        client.sendall(b"PUT /rows HTTP/1.1\r\nContent-Length: 100\r\n\r\nonly this")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
    assert (folder / "rows").read_bytes() == CONTENT
    assert [path.name for path in folder.iterdir()] == ["rows"]


def test_a_flipped_byte_is_the_only_one_that_differs(folder: Path) -> None:
    with RangeServer(folder, flips=(Flip(name="rows", offset=1000, mask=128),)) as server:
        served = _ask(server, "GET", "rows")[1]
        beside = _ask(server, "GET", "rows", Range="bytes=1001-2000")[1]
    assert [place for place, byte in enumerate(served) if byte != CONTENT[place]] == [1000]
    assert served[1000] == CONTENT[1000] ^ 128
    assert beside == CONTENT[1001:2001]


def test_faults_hit_the_share_that_was_asked_for_and_the_same_ones_each_time(folder: Path) -> None:
    faults = Faults(rate=0.25, kinds=("500", "503"), seed=3)

    def statuses() -> list[int]:
        with RangeServer(folder, faults=faults) as server:
            found = [_ask(server, "GET", "rows", Range=f"bytes={at}-{at}")[0] for at in range(200)]
            assert server.counts.faults == sum(status != 206 for status in found)
        return found

    first = statuses()
    assert 30 <= sum(status != 206 for status in first) <= 70
    assert {*first} == {206, 500, 503}
    assert statuses() == first


def test_a_request_that_failed_succeeds_in_the_end(folder: Path) -> None:
    with RangeServer(folder, faults=Faults(rate=0.5, kinds=("503",))) as server:
        assert 206 in [_ask(server, "GET", "rows", Range="bytes=0-9")[0] for _ in range(20)]


def test_a_cut_body_is_shorter_than_its_header_says(folder: Path) -> None:
    with RangeServer(folder, faults=Faults(rate=1.0, kinds=("cut",))) as server:
        with pytest.raises(http.client.IncompleteRead) as caught:
            _ask(server, "GET", "rows")
        assert caught.value.partial == CONTENT[: len(CONTENT) // 2]


def test_a_stalled_request_gets_no_answer_and_closing_ends_it(folder: Path) -> None:
    server = RangeServer(folder, faults=Faults(rate=1.0, kinds=("stall",), stall_s=600))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_ask, server, "GET", "rows")
        time.sleep(0.2)
        assert not asked.done()
        server.close()
        with pytest.raises((http.client.HTTPException, OSError)):
            asked.result(timeout=10)


def test_methods_that_are_not_named_have_no_faults(folder: Path) -> None:
    with RangeServer(folder, faults=Faults(rate=1.0, kinds=("500",), methods=("PUT",))) as server:
        assert _ask(server, "GET", "rows")[0] == 200
        assert _ask(server, "PUT", "new", b"x")[0] == 500
    assert [path.name for path in folder.iterdir()] == ["rows"]


def test_latency_is_waited_for_by_each_request_alone(folder: Path) -> None:
    with RangeServer(folder, latency_s=0.2) as server, ThreadPoolExecutor(8) as pool:
        started = time.monotonic()
        list(pool.map(lambda _: _ask(server, "HEAD", "rows"), range(8)))
        assert 0.2 <= time.monotonic() - started < 0.8


def test_the_cap_is_of_all_connections_together(folder: Path) -> None:
    with RangeServer(folder, bytes_per_s=2_000_000) as server, ThreadPoolExecutor(4) as pool:
        started = time.monotonic()
        assert [each[1] for each in pool.map(lambda _: _ask(server, "GET", "rows"), range(4))] == [
            CONTENT
        ] * 4
        assert 0.45 <= time.monotonic() - started < 1.5  # 1 MB


def test_everything_is_counted(server: RangeServer) -> None:
    _ask(server, "HEAD", "rows")
    _ask(server, "GET", "rows", Range="bytes=0-99")
    _ask(server, "PUT", "new", b"12345")
    counts = server.counts
    assert (counts.requests, counts.gets, counts.bytes_sent, counts.bytes_received) == (3, 1, 100, 5)
    assert counts.gets_of == {"rows": 1}
    with urllib.request.urlopen(server.url + "/-/counts", timeout=10) as answer:  # noqa: S310 - ours
        assert json.load(answer)["requests"] == 3
    server.served.forget()
    assert server.counts.requests == 0


def test_a_server_of_its_own_process_has_the_same_faults(folder: Path) -> None:
    with range_server_process(folder, faults=Faults(rate=1.0, kinds=("503",)), latency_s=0.01) as server:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(server.url + "/rows", timeout=10)  # noqa: S310 - ours
        caught.value.close()
        assert caught.value.code == 503
        assert server.counts.faults == 1


def test_faults_are_of_every_kind() -> None:
    faults = Faults(rate=1.0)
    assert {faults.of("GET", "rows", start, 0) for start in range(50)} == {*FAULT_KINDS}
