"""Whatever is damaged in a mirror is fetched again: a block of any array, and what the mirror keeps of itself."""

import logging
import os
import shutil

import numpy as np
import pytest
from mirrored import open_mirrored, read_range, settle, upload

from gloader import Loader
from gloader.dataset import Dataset
from gloader.errors import StoreOpenError, StoreReadError
from gloader.testing.resume import batch_digest

NODES, EDGES = 3000, 30_000
KINDS = {
    "features.npy": "features",
    "features.pages": "page checksums",
    "features.scale.npy": "scales of a quantized matrix",
    "indptr.npy": "offsets",
    "indices.npy": "sources",
    "edge_weight.npy": "weights",
    "edge_features.npy": "features of edges",
    "edge_time.npy": "times of edges",
    "labels.npy": "labels",
    "train.npy": "a split",
    "links/train/pairs.npy": "pairs of a link table",
    "links/train/labels.npy": "labels of links",
    "links/train/times.npy": "times of links",
    "links/train/negatives.npy": "negatives of links",
}


@pytest.fixture(scope="module", name="remote")
def _remote(tmp_path_factory):
    """A dataset with an array of each kind, in a store."""
    rng = np.random.default_rng(5)
    links = {
        "edge_index": rng.integers(0, NODES, (2, 900)),
        "labels": rng.random(900),
        "times": rng.integers(0, 100, 900),
        "negatives": rng.integers(0, NODES, (900, 3)),
    }
    folder = tmp_path_factory.mktemp("healing") / "all"
    Dataset.from_numpy(
        folder,
        features=rng.standard_normal((NODES, 48)).astype(np.float32),
        labels=rng.integers(0, 5, NODES),
        edge_index=rng.integers(0, NODES, (2, EDGES)),
        edge_weight=rng.random(EDGES).astype(np.float32),
        edge_features=rng.standard_normal((EDGES, 4)).astype(np.float32),
        edge_time=rng.integers(0, 100, EDGES),
        links={"train": links},
        dtype="int8",
    )
    return upload(folder, f"memory://{folder.parent.name}")


@pytest.fixture(name="full")
def _full(remote, mirror_dir):
    """The folder of a mirror that has every block."""
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    for name, content in remote.files.items():
        assert read_range(os_io, root / name, 0, len(content)) == content
    settle(os_io)
    os_io.close_mirror()
    return root


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def flattened(values, prefix=""):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", value


def require_all(remote, root, os_io):
    wanted, found = Dataset.open(remote.folder), Dataset.open(root, os_io=os_io)
    arrays = dict(flattened(found.to_numpy()))
    for name, value in flattened(wanted.to_numpy()):
        np.testing.assert_array_equal(arrays[name], value, err_msg=name)
    nodes = np.arange(0, NODES, 7)
    np.testing.assert_array_equal(found.labelled.labels_of(nodes), wanted.labelled.labels_of(nodes))


def test_there_is_an_array_of_each_kind(remote):
    assert KINDS.keys() <= remote.files.keys()


@pytest.mark.reliability("O8")
@pytest.mark.parametrize("name", KINDS, ids=KINDS.get)
def test_a_damaged_block_of_any_array_is_fetched_again(remote, mirror_dir, full, name):
    flip(full / name, 4096 + 17)
    root, os_io, objects = open_mirrored(remote, mirror_dir)
    require_all(remote, root, os_io)
    assert [asked.name for asked in objects.asked] == [name]
    assert (full / name).read_bytes() == remote.files[name]


@pytest.mark.reliability("O8")
@pytest.mark.parametrize("name", KINDS, ids=KINDS.get)
def test_a_block_that_is_damaged_while_the_mirror_is_open_is_fetched_again(remote, mirror_dir, full, name):
    root, os_io, objects = open_mirrored(remote, mirror_dir)
    require_all(remote, root, os_io)
    flip(full / name, 4096 + 17)
    require_all(remote, root, os_io)
    assert [asked.name for asked in objects.asked] == [name]


@pytest.mark.reliability("O8")
def test_labels_that_are_looked_up_are_fetched_again_where_they_are_damaged(remote, mirror_dir, full):
    flip(full / "labels.npy", 4096 + 8 * 1000)
    root, os_io, objects = open_mirrored(remote, mirror_dir)
    nodes = np.array([3, 1000, 2999])
    found = Dataset.open(root, os_io=os_io).labelled.labels_of(nodes)
    np.testing.assert_array_equal(found, Dataset.open(remote.folder).labelled.labels_of(nodes))
    assert [asked.name for asked in objects.asked] == ["labels.npy"]


@pytest.mark.reliability("O8")
@pytest.mark.parametrize("edges", ["direct", "sweep"])
def test_a_loader_over_a_mirror_with_damage_in_every_file_brings_the_same_batches(
    remote, mirror_dir, full, edges
):
    settings = {
        "fanouts": [4, 3],
        "batch_size": 200,
        "threads": 1,
        "features": "ssd",
        "cache": "5%",
        "memory_budget": "200MB",
        "topology": edges,
    }

    def stream(dataset):
        with Loader(dataset, **settings) as loader:
            return [batch_digest(batch) for batch in loader]

    wanted = stream(Dataset.open(remote.folder))
    for name in KINDS:
        flip(full / name, 4096 + 33)
    root, os_io, objects = open_mirrored(remote, mirror_dir)
    assert stream(Dataset.open(root, os_io=os_io)) == wanted
    assert {"features.npy", "indices.npy", "labels.npy"} <= {asked.name for asked in objects.asked}


@pytest.mark.reliability("O8")
@pytest.mark.parametrize("what", ["gone", "cut", "grown", "header"])
@pytest.mark.parametrize("part", ["files", "blocks"])
@pytest.mark.parametrize("name", ["features.npy", "links/train/pairs.npy"])
def test_a_mirror_writes_its_own_files_again_where_they_are_damaged(
    remote, mirror_dir, full, caplog, name, part, what
):
    path = full.parent / part / name
    content = path.read_bytes()
    if what == "gone":
        path.unlink()
    elif what == "header":
        flip(path, 20 if part == "files" else 0)  # a mark that is neither of ours
    else:
        path.write_bytes(content[:-1] if what == "cut" else content + b"\1")
    with caplog.at_level(logging.WARNING):
        root, os_io, objects = open_mirrored(remote, mirror_dir)
    require_all(remote, root, os_io)
    assert {asked.name for asked in objects.asked} == {name}
    assert (root / name).read_bytes() == remote.files[name]
    if (part, what) != ("blocks", "header"):
        assert "is fetched again" in caplog.text
    settle(os_io)
    stats = os_io.stats()
    assert stats.blocks_here == stats.blocks


@pytest.mark.reliability("O8")
def test_folders_and_the_record_of_a_mirror_come_again(remote, mirror_dir, full):
    shutil.rmtree(full / "links")
    shutil.rmtree(full.parent / "blocks")
    flip(full / "dataset.json", 30)
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    require_all(remote, root, os_io)
    assert (root / "dataset.json").read_bytes() == remote.files["dataset.json"]
    assert all((path.stat().st_mode & 0o077) == 0 for path in full.parent.rglob("*"))


@pytest.mark.reliability("O8")
def test_damage_that_is_not_the_mirrors_own_says_what_to_remove(remote, mirror_dir, full):
    (full / "features.npy").unlink()
    os.mkfifo(full / "features.npy")
    with pytest.raises(StoreOpenError, match="remove the folder and open it again"):
        open_mirrored(remote, mirror_dir)


@pytest.mark.reliability("O1")
@pytest.mark.parametrize("name", ["features.npy", "dataset.json"])
def test_a_damaged_mirror_is_none_that_is_whole(remote, mirror_dir, full, name):
    (full / name).write_bytes((full / name).read_bytes()[:-1])
    with pytest.raises(StoreReadError, match="no network"):
        open_mirrored(remote, mirror_dir, is_away=True)
