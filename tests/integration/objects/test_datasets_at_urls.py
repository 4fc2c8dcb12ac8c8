"""A dataset at a URL is the dataset in a folder: the same batches, whatever goes wrong on the way."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gloader import Dataset, Loader
from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.errors import ChecksumError, ConfigError, StoreError
from gloader.pipeline import flow
from gloader.testing.range_server import RangeServer
from gloader.testing.resume import batch_digest
from gloader.testing.served_folder import Faults, Flip
from gloader.training.train import fit

from .conftest import BLOCK_BYTES, DIM, make_small_blocks

Serve = Callable[..., RangeServer]
Open = Callable[..., Dataset]

SAMPLING: dict[str, Any] = {"fanouts": [4, 3], "batch_size": 100, "threads": 1, "memory_budget": "200MB"}
ON_SSD: dict[str, Any] = {"features": "ssd", "cache": 500 * DIM * 4, "superbatch": 3}
WAYS: dict[str, dict[str, Any]] = {
    "ram": {"features": "ram"},
    **{way: {**ON_SSD, "io_strategy": way} for way in ("direct", "staged", "packed")},
}


def streams(dataset: Dataset, *, epochs: int = 2, **settings: Any) -> list[list[str]]:
    with Loader(dataset, **SAMPLING, **settings, epochs=epochs) as loader:
        return [[batch_digest(batch) for batch in loader] for _ in range(epochs)]


@pytest.fixture(scope="session")
def expected(local: Dataset) -> list[list[str]]:
    return streams(local, **WAYS["ram"])


@pytest.mark.parametrize("way", WAYS)
def test_batches_are_those_of_a_folder_in_every_way_of_reading(
    way: str, serve: Serve, opened: Open, expected: list[list[str]]
) -> None:
    server = serve()
    dataset = opened(server.url + "/papers")
    assert streams(dataset, **WAYS[way]) == expected


def test_what_came_once_is_asked_for_never_again(
    serve: Serve, opened: Open, expected: list[list[str]], local: Dataset
) -> None:
    server = serve()
    dataset = opened(server.url + "/papers")
    with Loader(dataset, **SAMPLING, **WAYS["packed"], epochs=2) as loader:
        first = [batch_digest(batch) for batch in loader]
        server.served.forget()
        second = [batch_digest(batch) for batch in loader]
        assert server.counts.requests == 0
    assert [first, second] == expected
    dataset.close()
    again = opened(server.url + "/papers")
    assert streams(again, epochs=1, **WAYS["direct"]) == expected[:1]
    # Another process asks whether the dataset is still the same, and for nothing else.
    assert set(server.counts.gets_of) <= {"papers/dataset.json"}


def test_blocks_are_asked_for_once_each(serve: Serve, opened: Open, local: Dataset) -> None:
    server = serve()
    streams(opened(server.url + "/papers"), epochs=1, **WAYS["staged"])
    blocks = -(-local.features_path.stat().st_size // BLOCK_BYTES)
    assert server.counts.gets_of["papers/features.npy"] <= blocks


def test_batches_come_with_the_blocks_that_the_first_one_brings(
    serve: Serve, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "_LATER", 1000)  # however long the others take to be sampled
    url = serve().url + "/papers"
    sizes = []
    for _ in range(2):  # the second time nothing is missing
        with Loader(opened(url), **SAMPLING, **WAYS["staged"], epochs=1) as loader:
            for _ in loader:
                pass
            sizes.append([report.num_batches for report in loader.reports])
    assert sizes == [[3, 3], [1, 2, 3]]


@pytest.mark.parametrize("way", ["auto", "staged", "packed"])
def test_a_mirror_smaller_than_the_features_gives_the_same_batches(
    way: str, serve: Serve, opened: Open, expected: list[list[str]], tmp_path: Path
) -> None:
    url = serve().url + "/papers"
    make_small_blocks(url, tmp_path / "mirrors")
    dataset = opened(url, mirror_budget="12MB", object_limit="400MB/s")
    with Loader(dataset, **SAMPLING, **ON_SSD, io_strategy=way, epochs=2) as loader:
        assert [[batch_digest(batch) for batch in loader] for _ in range(2)] == expected
        if way == "auto":  # every row would bring a block of its own
            assert {report.choice.strategy for report in loader.reports} <= {"staged", "packed"}
    used = sum(512 * path.stat().st_blocks for path in dataset.root.rglob("*") if path.is_file())
    assert used <= 12_500_000  # the first page of each file holds its header


def test_an_evaluated_training_is_that_of_a_folder(serve: Serve, opened: Open, local: Dataset) -> None:
    settings = TrainSettings(
        model=ModelConfig(hidden=8, dropout=0.0),
        optim=OptimConfig(epochs=2),
        # A run holds its code and blocks of the store beside batches.
        loader=LoaderSettings.of(**SAMPLING | {"memory_budget": "400MB"}, **WAYS["staged"]),
    )
    dataset = opened(serve().url + "/papers", object_price="1/1000req,2/GB")
    ours, theirs = (fit(each, settings, device="cpu") for each in (dataset, local))
    for name in ("test_acc", "valid_acc", "best_epoch"):
        assert ours.summary[name] == theirs.summary[name]
    losses = [[epoch.loss for epoch in each.runs[0].epochs] for each in (ours, theirs)]
    assert losses[0] == losses[1]
    assert "objects" not in theirs.summary
    told = ours.summary["objects"]
    assert told["url"] == dataset.location
    assert told["num_bytes"] > dataset.feature_bytes
    assert told["cost"] == pytest.approx(told["requests"] / 1000 + 2 * told["num_bytes"] / 1e9)
    epochs = [epoch.stats for epoch in ours.runs[0].epochs]
    assert epochs[0].object_bytes > dataset.feature_bytes
    assert (epochs[1].object_bytes, epochs[1].object_requests) == (0, 0)
    assert f"from {dataset.location} so far" in ours.runs[0].explanation


@pytest.mark.reliability("O3")
def test_an_epoch_that_waits_for_the_store_says_so(serve: Serve, opened: Open) -> None:
    dataset = opened(serve(latency_s=0.3).url + "/papers")
    with Loader(dataset, **SAMPLING, **WAYS["packed"], epochs=2) as loader:
        said = []
        for _ in range(2):
            for _ in loader:
                pass
            said.append(loader.bottleneck())
    assert said[0].startswith("the loop waits for the object store")
    assert "object store" not in said[1]


@pytest.mark.reliability("O5")
def test_faults_of_the_store_change_no_byte(serve: Serve, opened: Open, expected: list[list[str]]) -> None:
    server = serve(faults=Faults(rate=0.3, kinds=("500", "503", "cut"), seed=1, methods=("GET", "HEAD")))
    dataset = opened(server.url + "/papers")
    assert streams(dataset, **WAYS["packed"]) == expected
    assert server.counts.faults > 0
    assert dataset.mirrored is not None
    stats = dataset.mirrored.os_io.stats()
    assert stats.retries > 0
    gets = server.counts.gets - server.counts.gets_of["papers/dataset.json"]
    assert gets <= stats.blocks + stats.retries


@pytest.mark.reliability("O7")
def test_a_byte_that_changed_on_the_way_is_never_handed_out(serve: Serve, opened: Open) -> None:
    server = serve(flips=(Flip(name="papers/features.npy", offset=BLOCK_BYTES + 12_345),))
    dataset = opened(server.url + "/papers")
    with pytest.raises(ChecksumError) as caught:
        streams(dataset, epochs=1, **WAYS["staged"])
    said = str(caught.value)
    assert "features.npy" in said
    assert "block 1" in said
    assert server.counts.gets_of["papers/features.npy"] >= 5  # it was asked for once more


@pytest.mark.reliability("O6")
def test_a_dataset_that_is_replaced_while_it_is_read_is_refused(
    serve: Serve, opened: Open, served: Path, tmp_path: Path
) -> None:
    server = serve()
    other = tmp_path / "other"
    shutil.copy(served / "papers" / "features.npy", other)
    server.served.replace_after("papers/features.npy", gets=1, by=other)
    dataset = opened(server.url + "/papers", object_requests=1)
    with pytest.raises(StoreError) as caught:
        streams(dataset, epochs=1, **WAYS["direct"])
    assert "replaced" in str(caught.value) or "changed" in str(caught.value)


def test_opening_brings_no_array(serve: Serve, opened: Open, local: Dataset) -> None:
    server = serve()
    dataset = opened(server.url + "/papers")
    assert dataset.fingerprint == local.fingerprint
    assert (dataset.num_nodes, dataset.feature_dim) == (local.num_nodes, local.feature_dim)
    assert set(server.counts.gets_of) == {"papers/dataset.json"}


def test_features_that_fit_are_brought_into_memory_in_one_pass(
    serve: Serve, opened: Open, expected: list[list[str]], local: Dataset
) -> None:
    server = serve()
    dataset = opened(server.url + "/papers")
    with Loader(dataset, **SAMPLING, features="auto", epochs=1) as loader:
        assert loader.memory_plan.features == "ram"
        # What it takes is said before a batch is made: a user who wants it otherwise gives features="ssd".
        assert server.url in loader.explain()
        blocks = -(-local.features_path.stat().st_size // BLOCK_BYTES)
        assert server.counts.gets_of["papers/features.npy"] == blocks
        assert [batch_digest(batch) for batch in loader] == expected[0]
    # They are in the mirror, too: another run reads them from the disk.
    server.served.forget()
    dataset.close()
    assert streams(opened(server.url + "/papers"), epochs=1, features="auto") == expected[:1]
    assert "papers/features.npy" not in server.counts.gets_of


def test_two_processes_worth_of_readers_share_a_mirror(
    serve: Serve, opened: Open, expected: list[list[str]]
) -> None:
    server = serve()
    first, second = opened(server.url + "/papers"), opened(server.url + "/papers")
    assert first.root == second.root
    assert streams(first, **WAYS["direct"]) == expected
    assert streams(second, **WAYS["packed"]) == expected


def test_a_folder_that_is_mounted_is_mirrored_too(
    opened: Open, served: Path, expected: list[list[str]]
) -> None:
    dataset = opened(f"file://{served}/papers")
    assert streams(dataset, epochs=1, **WAYS["direct"]) == expected[:1]
    assert dataset.location == f"file://{served}/papers"
    assert dataset.root != served / "papers"


def test_where_no_dataset_is_none_is_opened(serve: Serve, opened: Open) -> None:
    with pytest.raises(StoreError, match=r"/nothing"):
        opened(serve().url + "/nothing")


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"object_limit": "fast"}, "fast"),
        ({"object_requests": 0}, "object_requests is 0"),
        ({"object_price": "cheap"}, "cheap"),
        ({"mirror_budget": "-1GB"}, "-1GB"),
    ],
)
def test_settings_that_cannot_be_are_refused(keywords: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        Dataset.open("s3://bucket/papers", mirror_dir=tmp_path, **keywords)


def test_a_url_that_was_made_a_path_is_told_of() -> None:
    with pytest.raises(ConfigError, match="one slash where a URL has two"):
        Dataset.open(Path("s3://bucket/papers"))


def test_what_stands_behind_a_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="query") as caught:
        Dataset.open("https://host/papers?sig=s3cr3t", mirror_dir=tmp_path)
    assert "s3cr3t" not in str(caught.value)


def test_a_dataset_of_several_types_comes_from_a_url(opened: Open, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    local = Dataset.from_numpy_hetero(
        tmp_path / "typed",
        num_nodes={"author": 500, "paper": 900},
        edges={("author", "writes", "paper"): rng.integers(0, 500, (2, 4000))},
        features={"paper": rng.standard_normal((900, 8)).astype(np.float32)},
        labels={"paper": rng.integers(0, 3, 900)},
    )
    mirrored = opened(f"file://{tmp_path}/typed")
    assert mirrored.fingerprint == local.fingerprint
    for name, values in local.to_numpy()["features"].items():
        np.testing.assert_array_equal(mirrored.to_numpy()["features"][name], values)
    ours, theirs = mirrored.load_hetero_graph(), local.load_hetero_graph()
    for relation, edges in theirs.relations.items():
        np.testing.assert_array_equal(ours.relations[relation].indices, edges.indices)


@pytest.mark.reliability("O15")
def test_a_dataset_that_another_host_answers_for_is_opened_where_that_is_allowed(
    serve: Serve, opened: Open, local: Dataset
) -> None:
    server = serve()

    class SendOn(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", server.url + self.path)
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), SendOn) as first:
        thread = threading.Thread(target=first.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        url = f"http://127.0.0.1:{first.server_port}/papers"
        try:
            with pytest.raises(StoreError, match=r"sends requests on to .*--object-redirects"):
                opened(url)
            assert server.counts.requests == 0
            found = opened(url, object_redirects=True)
            np.testing.assert_array_equal(found.labels, local.labels)
        finally:
            first.shutdown()
            thread.join()
