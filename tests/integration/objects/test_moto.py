"""The S3 protocol, against moto: what is asked of a store is what S3 answers. Part of `make test-cluster`."""

from __future__ import annotations

import errno
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gloader import Dataset, Loader
from gloader.convert.upload import upload_dataset
from gloader.errors import StoreExistsError, StoreReadError
from gloader.ssd_store.mirror import ObjectStore, open_objects
from gloader.testing.resume import batch_digest

pytest.importorskip("moto.server", reason="moto is not installed; `make test-cluster` installs it")

SECRET = "s3cr3t/of+nobody"  # noqa: S105 - moto takes any
SERVER = """
import time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
time.sleep(3600)
"""
PART_BYTES = 16 * 2**20


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    # In another process: moto leaves temporary files open, and logs every request.
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.kill()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The URL of a new bucket, and the environment that obstore finds it by."""
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{abs(hash(request.node.name))}"
    # No library of ours makes buckets.
    made = urllib.request.Request(f"{endpoint}/{name}", method="PUT")  # noqa: S310 - ours
    with urllib.request.urlopen(made, timeout=30):  # noqa: S310
        return f"s3://{name}"


@pytest.fixture
def store(bucket: str) -> ObjectStore:
    return open_objects(f"{bucket}/deep/papers")


def test_an_object_comes_back_as_it_went(store: ObjectStore) -> None:
    assert store.head("rows") is None
    store.put("rows", bytes(range(256)))
    facts = store.head("rows")
    assert facts is not None
    assert facts.size == 256
    assert bytes(store.get("rows", 10, 20, facts.etag)) == bytes(range(10, 30))
    assert store.read("rows", max_bytes=256)[0] == bytes(range(256))


def test_an_object_that_was_replaced_is_refused(store: ObjectStore) -> None:
    store.put("rows", b"before")
    before = store.head("rows")
    store.put("rows", b"behind")
    assert before is not None
    with pytest.raises(StoreReadError) as caught:
        store.get("rows", 0, 6, before.etag)
    assert caught.value.errno == errno.ESTALE


def test_a_large_object_goes_in_parts(store: ObjectStore) -> None:
    content = np.random.default_rng(0).integers(0, 256, 2 * PART_BYTES + 12_345, dtype=np.uint8).tobytes()
    store.put("rows", (content[at : at + 2**23] for at in range(0, len(content), 2**23)))
    facts = store.head("rows")
    assert facts is not None
    assert facts.size == len(content)
    assert "-" in facts.etag  # as S3 marks what came in parts
    assert (
        bytes(store.get("rows", PART_BYTES - 5, 10, facts.etag)) == content[PART_BYTES - 5 : PART_BYTES + 5]
    )


def test_objects_are_listed_and_removed(store: ObjectStore) -> None:
    for name in ("b", "a/c", "a/b"):
        store.put(name, b"x")
    assert store.list() == ["a/b", "a/c", "b"]
    store.delete("a/b")
    store.delete("a/b")  # what is not there is no error
    assert store.list() == ["a/c", "b"]


def test_a_dataset_is_uploaded_and_loaded(
    bucket: str, local: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"{bucket}/papers"
    upload_dataset(local.root, url)
    with pytest.raises(StoreExistsError):
        upload_dataset(local.root, url)
    settings = {"fanouts": [4, 3], "batch_size": 100, "threads": 1, "memory_budget": "200MB", "epochs": 1}
    dataset = Dataset.open(url, mirror_dir=tmp_path / "mirrors")
    try:
        with Loader(dataset, **settings, features="ssd", cache="1MB", superbatch=3) as loader:
            ours = [batch_digest(batch) for batch in loader]
            said = loader.explain()
    finally:
        dataset.close()
    with Loader(local, **settings, features="ram") as loader:
        assert ours == [batch_digest(batch) for batch in loader]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*.json"))
    assert b"s3cr3t" not in kept
    assert url.encode() in kept
    assert "s3cr3t" not in said + "".join(capfd.readouterr())


def test_credentials_that_are_wrong_are_never_said(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreReadError) as caught:
        Dataset.open(f"{bucket}/papers", mirror_dir=tmp_path)
    assert "s3cr3t" not in repr(caught.value) + str(caught.value.__context__)
