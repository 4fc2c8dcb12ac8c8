"""Requests through obstore: errors in gloader's words, and no secret in any of them."""

import errno
import http.server
import pickle
import sys
import threading
import time

import pytest

from gloader.errors import ConfigError, MissingDependencyError, StoreReadError, StoreWriteError
from gloader.ssd_store.mirror import open_objects

SECRETS = ("SECRETSIGNATURE", "SECRETKEY", "SECRETPASSWORD", "SECRETID")


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the name that is asked for."""

    protocol_version = "HTTP/1.1"
    elsewhere = ""  # the URL of another server

    def log_message(self, *_):
        pass

    def answer(self, status, body, length=None, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        name = self.path.split("/")[-1].split("?")[0]
        ranges = {"Content_Range": "bytes 0-99/1000", "ETag": '"a"'}
        if name.isdigit():
            body = b"<Error><Code>Some</Code><AWSAccessKeyId>SECRETID</AWSAccessKeyId></Error>"
            self.answer(int(name), body)
        elif name == "slow-down":
            self.answer(400, b"<Error><Code>SlowDown</Code></Error>")
        elif name == "cut":
            self.answer(206, b"x" * 50, 100, **ranges)
            self.close_connection = True
        elif name == "stall":
            time.sleep(1.0)
        elif name == "whole":
            self.answer(200, b"x" * 1000)
        elif name == "short":
            self.answer(206, b"x" * 50, **{**ranges, "Content_Range": "bytes 0-49/1000"})
        elif name == "other-range":
            self.answer(206, b"x" * 100, **{**ranges, "Content_Range": "bytes 100-199/1000"})
        elif name == "range-of-nothing":
            self.answer(206, b"x" * 100, **{**ranges, "Content_Range": "all of it"})
        elif name == "nameless":
            self.answer(206, b"x" * 100, Content_Range="bytes 0-99/1000")
        elif name == "huge":
            self.answer(200, b"x", 10**15, ETag='"a"')
            self.close_connection = True
        elif name in {"loop", "file"}:
            self.answer(302, b"", Location=name if name == "loop" else "file:///etc/passwd")
        elif name in {"near", "away", "near-then-away"}:
            places = {"near": "good", "near-then-away": "away"}
            self.answer(302, b"", Location=places.get(name) or f"{self.elsewhere}/{name}?sig=SECRETSIGNATURE")
        elif name == "weak":
            assert "If-Match" not in self.headers
            self.answer(206, b"x" * 100, **{**ranges, "ETag": 'W/"a"'})
        elif name == "good":
            self.answer(206, b"y" * 100, **ranges)

    do_HEAD = do_PUT = do_DELETE = do_GET  # noqa: N815


@pytest.fixture(scope="module", name="port")
def _port():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(name="elsewhere")
def _elsewhere(port):
    """Another host, which answers to anything, and what it was asked."""
    asked = []

    class Other(Handler):
        def do_GET(self):
            asked.append((self.command, self.path))
            self.answer(206, b"z" * 100, Content_Range="bytes 0-99/1000", ETag='"a"')

        do_HEAD = do_PUT = do_GET  # noqa: N815

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    Handler.elsewhere = f"http://127.0.0.1:{server.server_port}"
    yield asked
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(name="objects")
def _objects(port):
    url = f"http://user:SECRETPASSWORD@127.0.0.1:{port}/folder?sig=SECRETSIGNATURE"
    return open_objects(url, timeout_s=0.5)


def require_no_secrets(error):
    shown = [
        str(error),
        repr(error),
        repr(error.__cause__),
        repr(error.__context__),
        repr(pickle.dumps(error)),
    ]
    assert not [each for each in shown for secret in SECRETS if secret in each]
    assert error.__context__ is None


@pytest.mark.reliability("O15")
@pytest.mark.reliability("O16")
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("503", errno.EBUSY, "HTTP 503 Some"),
        ("429", errno.EBUSY, "HTTP 429"),
        ("slow-down", errno.EBUSY, "HTTP 400 SlowDown"),
        ("500", errno.EIO, "HTTP 500"),
        ("504", errno.ETIMEDOUT, "HTTP 504"),
        ("404", errno.ENOENT, "check the URL"),
        ("403", errno.EACCES, "check the credentials"),
        ("401", errno.EACCES, "check the credentials"),
        ("412", errno.ESTALE, "open the dataset again"),
        ("416", errno.EINVAL, "HTTP 416"),
        ("cut", errno.ECONNRESET, "connection"),
        ("stall", errno.ETIMEDOUT, "timed out"),
        ("whole", errno.EINVAL, "ranges of bytes"),
        ("short", errno.ESTALE, "shorter"),
        ("other-range", errno.ESTALE, "the object was replaced"),
        ("range-of-nothing", errno.EIO, "reports an internal error"),
        ("nameless", errno.ESTALE, "another ETag"),
        ("loop", errno.ECONNRESET, "check the network and the endpoint"),
        ("file", errno.EINVAL, "HTTP 302"),
    ],
)
def test_a_failing_request_says_what_happened_and_what_to_do_without_secrets(
    objects, port, name, code, words
):
    with pytest.raises(StoreReadError, match=words) as caught:
        objects.get(name, 0, 100, '"a"')
    assert caught.value.errno == code
    assert f"http://127.0.0.1:{port}/folder/{name}" in str(caught.value)
    assert "bytes 0 to 99" in str(caught.value)
    require_no_secrets(caught.value)


@pytest.mark.reliability("O15")
def test_a_record_of_any_size_is_refused_before_it_is_read(objects):
    with pytest.raises(StoreReadError, match="at most 1000 are expected: it is something else") as caught:
        objects.read("huge", max_bytes=1000)
    assert caught.value.errno == errno.EFBIG
    require_no_secrets(caught.value)


def test_nobody_listens():
    objects = open_objects("http://127.0.0.1:9/folder?sig=SECRETSIGNATURE", timeout_s=0.5)
    with pytest.raises(StoreReadError, match="check the network and the endpoint") as caught:
        objects.get("a", 0, 10, '"a"')
    assert caught.value.errno == errno.ECONNRESET
    require_no_secrets(caught.value)


def test_the_answer_has_the_tag_that_was_asked_for(objects):
    assert bytes(objects.get("good", 0, 100, '"a"')) == b"y" * 100
    with pytest.raises(StoreReadError, match="another ETag"):
        objects.get("good", 0, 100, '"b"')


def test_a_weak_tag_is_compared_and_not_sent(objects):
    assert bytes(objects.get("weak", 0, 100, 'W/"a"')) == b"x" * 100
    with pytest.raises(StoreReadError, match="another ETag"):
        objects.get("weak", 0, 100, 'W/"b"')


def test_a_refused_upload_is_an_error_of_writing(objects):
    with pytest.raises(StoreWriteError, match="check the credentials") as caught:
        objects.put("403", b"x")
    require_no_secrets(caught.value)


def test_no_representation_shows_a_secret(objects):
    assert not [secret for secret in SECRETS if secret in repr(objects) + objects.url]


@pytest.mark.parametrize(
    "url", ["s3://", "az://container/x", "ftp://host/x", "nonsense", "s3://b ?x=SECRETKEY"]
)
def test_a_url_that_is_none_is_refused_with_those_that_are(monkeypatch, url):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises((ConfigError, StoreReadError)) as caught:
        open_objects(url).get("a", 0, 1, '"a"')
    assert "SECRETKEY" not in str(caught.value)


@pytest.mark.reliability("O16")
def test_an_unencrypted_endpoint_is_allowed_only_where_it_is_named_as_one(monkeypatch, port):
    settings = {
        "AWS_ACCESS_KEY_ID": "SECRETID",
        "AWS_SECRET_ACCESS_KEY": "SECRETKEY",
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    objects = open_objects("s3://bucket/folder", timeout_s=0.5)
    assert bytes(objects.get("good", 0, 100, '"a"')) == b"y" * 100
    with pytest.raises(StoreReadError, match="check the credentials") as caught:
        objects.get("403", 0, 100, '"a"')
    require_no_secrets(caught.value)
    # An https endpoint is never asked without encryption.
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{port}")
    with pytest.raises(StoreReadError):
        open_objects("s3://bucket/folder", timeout_s=0.5).get("good", 0, 100, '"a"')


def test_without_obstore_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingDependencyError, match=r"s3://b/x is read with obstore; install .*\[object\]"):
        open_objects("s3://b/x")


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_objects_are_written_listed_read_and_removed(tmp_path, kind):
    (tmp_path / "up").write_bytes(b"z" * 5000)
    (tmp_path / "store").mkdir()
    objects = open_objects("memory://listed" if kind == "memory" else f"file://{tmp_path}/store")
    objects.put("a/b", b"12345")
    objects.put("a/c", tmp_path / "up")
    objects.put("d", iter([b"1", b"2"]))
    assert objects.list() == ["a/b", "a/c", "d"]
    assert objects.list("a") == ["a/b", "a/c"]
    facts = objects.head("a/c")
    assert facts is not None
    assert facts.size == 5000
    assert bytes(objects.get("a/b", 1, 3, objects.head("a/b").etag)) == b"234"
    assert objects.read("d", max_bytes=2)[0] == b"12"
    with pytest.raises(StoreReadError, match="at most 1 are expected") as caught:
        objects.read("d", max_bytes=1)
    assert caught.value.errno == errno.EFBIG
    objects.delete("d")
    objects.delete("d")
    assert objects.head("d") is None
    objects.put("a/b", b"54321")
    with pytest.raises(StoreReadError, match="the object was replaced") as caught:
        objects.get("a/c", 0, 10, objects.head("a/b").etag)
    assert caught.value.errno == errno.ESTALE


@pytest.mark.reliability("O15")
@pytest.mark.reliability("O16")
@pytest.mark.parametrize("name", ["away", "near-then-away"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda objects, name: objects.get(name, 0, 100, '"a"'),
        lambda objects, name: objects.read(name, max_bytes=1000),
        lambda objects, name: objects.head(name),
        lambda objects, name: objects.put(name, b"x"),
    ],
    ids=["get", "read", "head", "put"],
)
def test_a_redirect_to_another_host_is_refused_and_that_host_is_not_asked(objects, elsewhere, ask, name):
    words = r"sends requests on to http://127.0.0.1:\d+.*--object-redirects"
    with pytest.raises(StoreReadError, match=words) as caught:
        ask(objects, name)
    require_no_secrets(caught.value)
    assert not elsewhere


@pytest.mark.reliability("O15")
def test_a_redirect_to_another_host_is_followed_where_that_is_allowed(port, elsewhere):
    objects = open_objects(f"http://127.0.0.1:{port}/folder", timeout_s=0.5, redirects=True)
    assert bytes(objects.get("away", 0, 100, '"a"')) == b"z" * 100
    assert [command for command, _ in elsewhere] == ["GET"]


def test_a_redirect_within_a_host_is_followed(objects):
    assert bytes(objects.get("near", 0, 100, '"a"')) == b"y" * 100
