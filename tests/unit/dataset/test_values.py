"""Sealed datasets whose values cannot be: record and checksums hold, and no kernel sees an id that is no node."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader import Loader
from gloader.cli.main import main
from gloader.config import ModelConfig
from gloader.dataset import Dataset
from gloader.dataset.values import ValueCheck, ValueLimits
from gloader.dataset.verify import verify_dataset
from gloader.errors import FormatError, GraphError
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.format.format import DATASET_MANIFEST, data_bytes, read_manifest
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.training.model_spec import ModelSpec
from gloader.training.predict import predict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

N, E, CLASSES = 700, 2100, 4
pytestmark = pytest.mark.reliability("J3")


def arrays() -> dict[str, NDArray[Any]]:
    nodes = np.arange(N)
    return {
        "indptr": np.arange(N + 1) * 3,
        "indices": (np.arange(E) * 7 % N).astype(np.int32),
        "edge_weight": np.linspace(0, 1, E, dtype=np.float32),
        "features": np.ones((N, 3), np.float32),
        "labels": nodes % (CLASSES + 1) - 1,
        "train": nodes[:100],
        "valid": nodes[100:200],
        "test": nodes[200:],
        "original_ids": nodes[::-1].copy(),
    }


def seal(root: Path, changes: dict[str, NDArray[Any]], **metadata: Any) -> Path:
    """Write a dataset by the real writer's lower layer, which knows bytes and no meaning."""
    with NewDirectory(root, manifest_name=DATASET_MANIFEST) as directory:
        for name, array in (arrays() | changes).items():
            with directory.array(name, dtype=array.dtype.name, shape=array.shape) as writer:
                writer.append(array)
        directory.commit("dataset", {"name": "x", "num_classes": CLASSES} | metadata)
    return root


def changed(name: str, position: int, value: float) -> dict[str, NDArray[Any]]:
    array = arrays()[name]
    array[position] = value
    return {name: array}


def use(dataset: Dataset, name: str) -> object:
    return dataset.load_graph() if name in ("indptr", "indices", "edge_weight") else getattr(dataset, name)


BAD_VALUES = [
    ("indices", E - 1, N, f"indices[2099] = {N} is not a node: it must be in 0..699"),
    ("indices", 5, -1, "indices[5] = -1 is not a node: it must be in 0..699"),
    ("indices", 5, 2**31 - 1, "indices[5] = 2147483647 is not a node: it must be in 0..699"),
    ("indptr", 650, 3, "indptr[650] = 3 is smaller than 1947 before it; offsets must not decrease"),
    ("indptr", 650, E + 1, "indptr[650] = 2101 is not an edge position: it must be in 0..2100"),
    ("indptr", 0, 1, "indptr[0] is 1; it must be 0"),
    ("indptr", N, E - 1, "indptr[700], its end, is 2099; it must be the number of edges, 2100"),
    (
        "edge_weight",
        9,
        -1e-9,
        "edge_weight[9] = -9.999999717180685e-10: weights must be finite and at least 0",
    ),
    ("edge_weight", 9, np.inf, "edge_weight[9] = inf: weights must be finite and at least 0"),
    ("edge_weight", E - 1, np.nan, "edge_weight[2099] = nan: weights must be finite and at least 0"),
    ("labels", N - 1, CLASSES, "labels[699] = 4 is not a class: it must be in -1..3"),
    ("labels", 0, -2, "labels[0] = -2 is not a class: it must be in -1..3"),
    ("labels", 0, -100, "labels[0] = -100 is not a class: it must be in -1..3"),
    ("train", 3, N, "train[3] = 700 is not a node: it must be in 0..699"),
    ("valid", 3, -1, "valid[3] = -1 is not a node: it must be in 0..699"),
    ("test", 3, 2**62, "test[3] = 4611686018427387904 is not a node: it must be in 0..699"),
    ("original_ids", 3, N, "original_ids[3] = 700 is not a node: it must be in 0..699"),
    ("original_ids", 3, 0, "original_ids[699] = 0 occurs twice; each id occurs once"),
]


@pytest.mark.parametrize(("name", "position", "value", "message"), BAD_VALUES)
def test_a_value_that_cannot_be_is_refused_at_first_use_and_by_verify(
    tmp_path: Path, name: str, position: int, value: float, message: str
) -> None:
    path = seal(tmp_path / "d", changed(name, position, value))
    started = time.perf_counter()
    error = GraphError if name in ("indptr", "indices", "edge_weight") else FormatError
    with pytest.raises(error, match=re.escape(f"{path / name}.npy: {message}")):
        use(Dataset.open(path), name)
    (problem,) = verify_dataset(path).problems
    assert (problem.file, problem.message) == (f"{name}.npy", f"{message}; it was written so")
    assert time.perf_counter() - started < 10  # a second where nothing is compiled


def test_what_can_be_is_accepted(tmp_path: Path) -> None:
    path = seal(tmp_path / "d", {"edge_weight": np.full(E, -0.0, np.float32)})
    assert verify_dataset(path).is_ok
    dataset = Dataset.open(path)
    for name, array in arrays().items():
        if name != "features":
            assert use(dataset, name) is not None, array


def test_a_label_of_one_node_is_checked_where_it_is_read(tmp_path: Path) -> None:
    dataset = Dataset.open(seal(tmp_path / "d", changed("labels", 600, CLASSES)))
    assert dataset.labels_of(np.array([3, 599])).tolist() == [2, 3]
    with pytest.raises(FormatError, match=r"labels\[600\] = 4 is not a class"):
        dataset.labels_of(np.array([3, 600]))


@pytest.mark.parametrize("classes", [10**7, 10**12, [3], True, "3", 0, -1, 2.0, None])
def test_a_number_of_classes_that_cannot_be_is_refused_at_open(tmp_path: Path, classes: object) -> None:
    path = seal(tmp_path / "d", {}, num_classes=classes)
    for read in (Dataset.open, verify_dataset):
        with pytest.raises(
            FormatError, match=re.escape(f"num_classes is {classes!r}; it must be a whole number in")
        ):
            read(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": np.zeros(E, np.float32)}, "indices has dtype float32; it must be int32 or int64"),
        ({"labels": np.zeros(N, np.uint8)}, "labels has dtype uint8; it must be int64"),
        ({"features": np.zeros((N, 3), np.int64)}, "features has dtype int64; it must be float32 or"),
        ({"features": np.zeros((N, 3), np.int8)}, "features are int8 and have no scales"),
        ({"edge_weight": np.zeros(E - 1, np.float32)}, "shapes contradict each other: edge_weight (2099,)"),
        ({"original_ids": np.arange(N + 1)}, "shapes contradict each other: original_ids (701,)"),
        ({"indptr": np.arange(N)}, "shapes contradict each other: indptr (700,)"),
        ({"train": np.zeros((3, 1), np.int64)}, "shapes contradict each other: train (3, 1)"),
        (
            {"features": np.zeros((N, 3), np.int8), "features.scale": np.ones(1, np.float32)},
            "shapes contradict each other: features.scale (1,)",
        ),
    ],
)
def test_an_array_of_another_kind_is_refused_at_open(
    tmp_path: Path, changes: dict[str, NDArray[Any]], message: str
) -> None:
    path = seal(tmp_path / "d", changes)
    for read in (Dataset.open, verify_dataset):
        with pytest.raises(FormatError, match=re.escape(message)):
            read(path)


def test_scales_that_are_not_one_for_each_row_are_refused(tmp_path: Path) -> None:
    """Of a store that is no dataset: kernels take the scale of a row by its number."""
    path = seal(
        tmp_path / "s", {"features": np.zeros((N, 3), np.int8), "features.scale": np.ones(1, np.float32)}
    )
    with pytest.raises(
        FormatError, match=r"the scales of 'features' are float32 of shape \(1,\); they must be"
    ):
        FeatureStore.open(path)


def test_a_damaged_header_of_the_scales_is_noticed(tmp_path: Path) -> None:
    path = seal(
        tmp_path / "s", {"features": np.zeros((N, 3), np.int8), "features.scale": np.ones(N, np.float32)}
    )
    file = path / "features.scale.npy"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(FormatError, match=r"features\.scale\.npy"):
        FeatureStore.open(path)


def first_batch(dataset: Dataset, **settings: Any) -> None:
    with Loader(dataset, fanouts=(2,), batch_size=10, features="ssd", **settings) as loader:
        next(iter(loader))


USERS: dict[str, Callable[[Dataset], Any]] = {
    "loader": first_batch,
    "static policy": lambda dataset: first_batch(dataset, policy="static", cache=2400),
    "degree hotness": lambda dataset: first_batch(dataset, device_hotness="degree"),
    "vip hotness": lambda dataset: first_batch(dataset, device_hotness="vip"),
    "inference": lambda dataset: predict(
        dataset,
        SimpleNamespace(  # type: ignore[arg-type]
            task="node",
            table=None,
            spec=ModelSpec(
                config=ModelConfig(), in_dim=3, out_dim=CLASSES, num_layers=1, add_self_loops=True
            ),
        ),
    ),
    "numpy": lambda dataset: dataset.to_numpy(),
}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("value", [N, N + 1000, -1])
def test_no_user_of_the_topology_sees_an_id_that_is_no_node(tmp_path: Path, user: str, value: int) -> None:
    """The id is one of the last node's, which no batch reaches."""
    dataset = Dataset.open(seal(tmp_path / "d", changed("indices", E - 1, value)))
    with pytest.raises(GraphError, match=rf"indices\.npy: indices\[2099\] = {value} is not a node"):
        USERS[user](dataset)


def test_commands_refuse_it_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = seal(tmp_path / "d", changed("indices", E - 1, N))
    for words in (["inspect", "--dataset", str(path)], ["verify", str(path)]):
        assert main(words) != 0
        said = capsys.readouterr()
        assert "indices[2099] = 700 is not a node: it must be in 0..699" in " ".join(
            (said.out + said.err).split()
        )
        assert "Traceback" not in said.err


@pytest.mark.reliability("J19")
def test_a_record_of_more_nodes_than_memory_has_bits_is_reported(tmp_path: Path) -> None:
    path = seal(tmp_path / "d", {})
    manifest = read_manifest(path, DATASET_MANIFEST)
    many = 2**45
    shapes = {"features": (many, 3), "labels": (many,), "original_ids": (many,), "indptr": (many + 1,)}
    arrays = {
        name: replace(record, shape=shape, num_bytes=data_bytes(record.dtype, shape))
        for name, record in manifest.arrays.items()
        for shape in (shapes.get(name, record.shape),)
    }
    (path / DATASET_MANIFEST).write_bytes(replace(manifest, arrays=arrays).to_bytes())
    assert {problem.file for problem in verify_dataset(path).problems} == {
        f"{name}.{kind}" for name in shapes for kind in ("npy", "pages")
    }


@pytest.mark.parametrize("name", ["indptr", "indices", "edge_weight", "labels", "original_ids"])
def test_pieces_say_what_the_whole_says(name: str) -> None:
    limits = ValueLimits(num_nodes=N, num_edges=E, num_classes=CLASSES, num_sources=N)
    random = np.random.default_rng(1)
    for position in random.integers(0, len(arrays()[name]), 40).tolist():
        array = arrays()[name]
        array[position] = random.choice([-1, -5, 0, 1, N, E])
        told = []
        for cuts in ([], sorted(random.integers(0, len(array) + 1, 3))):
            check = ValueCheck(name, limits)
            messages = [check.wrong(piece) for piece in np.split(array, cuts)] + [check.wrong_end()]
            told.append(next((message for message in messages if message), None))
        assert told[0] == told[1]
        assert (told[0] is None) == is_sound(name, array)


def is_sound(name: str, array: NDArray[Any]) -> bool:
    if name == "indptr":
        return array[0] == 0 and array[-1] == E and bool((np.diff(array) >= 0).all())
    if name == "original_ids":
        return np.array_equal(np.sort(array), np.arange(N))
    low, high = {"labels": (-1, CLASSES - 1), "indices": (0, N - 1), "edge_weight": (0, np.inf)}[name]
    return bool(((array >= low) & (array <= high)).all())
