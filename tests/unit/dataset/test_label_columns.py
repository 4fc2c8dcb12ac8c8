"""A dataset whose labels are columns of values: its record, its arrays, and every way in and out."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.dataset import Dataset
from gloader.dataset.values import first_infinite, has_label, label_kind_of
from gloader.dataset.verify import verify_dataset
from gloader.errors import ChecksumError, ConfigError, FormatError, ShapeError, SourceError
from gloader.ssd_store.format import array_reader
from gloader.ssd_store.format.format import DATA_OFFSET, read_manifest
from gloader.ssd_store.format.manifest import LABEL_VALUES_FEATURE

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

N, K = 2000, 7  # rows of 28 bytes: some cross a page


@pytest.fixture
def labels() -> NDArray[np.float32]:
    random = np.random.default_rng(0)
    values = random.normal(size=(N, K)).astype(np.float32)
    values[random.random((N, K)) < 0.2] = np.nan
    values[:10] = np.nan
    return values


def make(path: Path, labels: NDArray[Any], **options: Any) -> Dataset:
    ids = np.arange(len(labels))
    return Dataset.from_numpy(
        path,
        features=np.zeros((len(labels), 1), np.float32),
        labels=labels,
        edge_index=np.stack([ids, ids[::-1]]),
        **options,
    )


def test_labels_are_stored_as_they_were_given(tmp_path: Path, labels: NDArray[np.float32]) -> None:
    dataset = make(tmp_path / "d", labels, label_names=list("abcdefg"))
    assert (dataset.label_kind, dataset.label_width, dataset.num_classes) == ("values", K, K)
    assert dataset.label_names == tuple("abcdefg")
    np.testing.assert_array_equal(dataset.labels, labels)
    assert not dataset.labels.flags.writeable
    assert LABEL_VALUES_FEATURE in read_manifest(dataset.root, "dataset.json").required_features
    assert dataset.metadata["labels"] == {"kind": "values", "names": list("abcdefg")}
    assert not verify_dataset(dataset.root).problems


@pytest.mark.parametrize("step", [1, 8, 1 << 20])
def test_labels_of_some_nodes_are_rows(
    tmp_path: Path, labels: NDArray[np.float32], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_reader, "_STEP_ELEMENTS", step)
    dataset = make(tmp_path / "d", labels)
    nodes = np.random.default_rng(1).integers(0, N, 300)
    nodes[:4] = [N - 1, 0, N - 1, 146]  # row 146 crosses the first page
    np.testing.assert_array_equal(dataset.labels_of(nodes), labels[nodes])
    assert dataset.labels_of(nodes).dtype == np.float32
    assert dataset.labels_of(np.empty(0, np.int64)).shape == (0, K)
    with pytest.raises(ShapeError, match=r"positions in 'labels' must be in 0\.\.1999"):
        dataset.labels_of(np.array([N]))


def test_damage_is_found_where_it_is_wanted(tmp_path: Path, labels: NDArray[np.float32]) -> None:
    dataset = make(tmp_path / "d", labels)
    with (dataset.root / "labels.npy").open("r+b") as file:
        file.seek(DATA_OFFSET + 4096 * 3 + 5)
        file.write(b"\x07")
    np.testing.assert_array_equal(dataset.labels_of(np.array([5])), labels[[5]])
    for read in (lambda: dataset.labels_of(np.array([5, 500])), lambda: dataset.labels):
        with pytest.raises(ChecksumError, match="with rows 438 to 585, does not match its checksum"):
            read()


def test_an_infinite_label_is_named_by_row_and_column(tmp_path: Path) -> None:
    values = np.zeros((50, 3), np.float32)
    values[40, 2] = np.inf
    with Dataset.create(tmp_path / "d", name="d", num_nodes=50, num_classes=3) as writer:
        with writer.indptr() as column:
            column.append(np.zeros(51, np.int64))
        with writer.indices(0, "int32"):
            pass
        with writer.features(1, "float32") as column:
            column.append(np.zeros((50, 1), np.float32))
        writer.labels(values)
        writer.splits(train=np.arange(9), valid=np.arange(0), test=np.arange(0))
    dataset = Dataset.open(tmp_path / "d")
    assert dataset.label_kind == "values"  # as the record does not say more
    assert dataset.label_names is None
    said = r"labels\[40, 2\] = inf is not finite; a label is a number, or NaN where it is unknown"
    for read in (lambda: dataset.labels, lambda: dataset.labels_of(np.array([3, 40]))):
        with pytest.raises(FormatError, match=said):
            read()
    (problem,) = verify_dataset(tmp_path / "d").problems
    assert re.search(said, problem.message)


def test_arrays_of_labels_must_fit_the_nodes(tmp_path: Path) -> None:
    with (
        pytest.raises(ShapeError, match=r"labels has shape \(9, 3\); it must be \(50, k\)"),
        Dataset.create(tmp_path / "d", name="d", num_nodes=50, num_classes=3) as writer,
    ):
        writer.labels(np.zeros((9, 3), np.float32))
    with pytest.raises(ConfigError, match="num_classes is 5, and the labels are 2 columns of values instead"):
        make(tmp_path / "d", np.full((50, 2), 0.5), num_classes=5)
    with pytest.raises(SourceError, match=r"3 names for 2 classes or label columns \('a', 'b', 'c'\)"):
        make(tmp_path / "d", np.full((50, 2), 0.5), label_names="abc")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"required_features": []}, "the record must name the required feature 'label-values'"),
        ({"num_classes": 3}, "labels have 7 columns and num_classes is 3; both must be the same"),
        (
            {"labels": {"kind": "classes"}},
            "kind of the labels is 'classes'; with float32 .* binary or multilabel",
        ),
        ({"labels": {"kind": "binary"}}, "kind of the labels is 'binary'"),
        ({"labels": "values"}, "kind of the labels is None"),
        ({"labels": {"kind": "values", "names": ["a"]}}, "must be a list of 7 different texts"),
        ({"labels": {"kind": "values", "names": ["a"] * 7}}, "must be a list of 7 different texts"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(
    tmp_path: Path, labels: NDArray[np.float32], change: dict[str, Any], said: str
) -> None:
    from dataclasses import replace

    dataset = make(tmp_path / "d", labels)
    manifest = read_manifest(dataset.root, "dataset.json")
    changed = (
        replace(manifest, required_features=())
        if "required_features" in change
        else replace(manifest, metadata={**manifest.metadata, **change})
    )
    with pytest.raises(FormatError, match=said):
        Dataset(dataset.root, changed)


def test_classes_keep_the_record_that_they_had(tmp_path: Path) -> None:
    dataset = make(tmp_path / "d", np.arange(N) % 3)
    assert (dataset.label_kind, dataset.label_names, dataset.label_width) == ("classes", None, 1)
    assert "labels" not in dataset.metadata
    assert not json.loads((dataset.root / "dataset.json").read_text())["required_features"]
    named = make(tmp_path / "e", np.arange(N) % 3, label_names=["x", "y", "z"])
    assert (named.label_kind, named.label_names) == ("classes", ("x", "y", "z"))
    assert named.metadata["receipt"]["labels by class"] == "x: 667, y: 667, z: 666"


@pytest.mark.parametrize("order", ["none", "degree", "community"])
def test_reordered_nodes_keep_their_labels(tmp_path: Path, labels: NDArray[np.float32], order: str) -> None:
    dataset = make(tmp_path / "d", labels, order=order)
    np.testing.assert_array_equal(dataset.in_original_order(dataset.labels), labels)
    assert has_label(dataset.labels_of(dataset.train)).all()


def test_arrays_come_back_as_they_went_out(tmp_path: Path, labels: NDArray[np.float32]) -> None:
    whole = (np.arange(N)[:, None] % 2).astype(np.float32)  # would be classes without labels_as
    for name, given, more in (
        ("a", labels, {"label_names": tuple("abcdefg")}),
        ("b", whole, {"labels_as": "values"}),
    ):
        dataset = make(tmp_path / name, given, **more)
        again = Dataset.from_numpy(tmp_path / f"{name}2", **dataset.to_numpy())
        assert again.fingerprint == dataset.fingerprint
        assert (again.label_kind, again.label_names) == (dataset.label_kind, dataset.label_names)


def test_typed_arrays_and_data_of_pyg_come_back(tmp_path: Path, labels: NDArray[np.float32]) -> None:
    ids = np.arange(N)
    typed = Dataset.from_numpy_hetero(
        tmp_path / "a",
        edges={("a", "to", "b"): np.stack([ids, ids])},
        num_nodes={"a": N, "b": N},
        labels={"b": labels},
        label_names=tuple("abcdefg"),
    )
    assert typed.labelled.name == "b"
    np.testing.assert_array_equal(typed.labels, labels)
    with pytest.raises(ConfigError, match="nodes of type 'a' have no labels and splits"):
        _ = typed.node_tables["a"].label_kind
    again = Dataset.from_numpy_hetero(tmp_path / "b", **typed.to_numpy())
    assert again.fingerprint == typed.fingerprint
    for dataset, name in ((typed, "c"), (make(tmp_path / "d", labels), "e")):
        data = dataset.to_pyg()
        back = Dataset.from_pyg(data, tmp_path / name)
        np.testing.assert_array_equal(back.labels, labels)
        np.testing.assert_array_equal(back.train, dataset.train)


def test_the_receipt_counts_each_column(tmp_path: Path) -> None:
    flags = np.array([[0, 1, 1], [np.nan, 0, 1], [np.nan] * 3, [1, 1, 1]] * 10, np.float32)
    receipt = make(tmp_path / "a", flags, label_names=["red", "round", "big"]).metadata["receipt"]
    assert receipt["labels"] == "3 columns of 0 and 1, multilabel; 10 nodes have none"
    assert receipt["labels by column"] == "red: 10 of 20 are 1, round: 20 of 30 are 1, big: 30 of 30 are 1"
    values = make(tmp_path / "b", np.arange(40.0) / 8).metadata["receipt"]
    assert values["labels"] == "1 column of values"
    assert values["labels by column"] == "0: 40 from 0 to 4.875"
    one_hot = make(tmp_path / "c", np.eye(4, dtype=np.int64)[np.arange(40) % 4]).metadata["receipt"]
    assert one_hot["labels"] == (
        "4 columns of 0 and 1, multilabel; one class per node is labels.argmax(axis=1)"
    )
    many = make(tmp_path / "d", np.tile(flags, (1, 4))).metadata["receipt"]
    assert many["labels by column"] == "20 to 30 known in a column, 10 to 30 of them 1"
    even = make(tmp_path / "f", np.tile(flags[3::4], (1, 4))).metadata["receipt"]
    assert even["labels by column"] == "10 known in a column, 10 of them 1"
    wide = make(tmp_path / "e", np.tile(flags / 4, (1, 4))).metadata["receipt"]
    assert wide["labels by column"] == "20 to 30 known in a column, from 0 to 0.25"


def test_the_kind_follows_from_the_values() -> None:
    nan = np.float32(np.nan)
    assert label_kind_of(np.array([0, 1])) == "classes"
    for values, kind in (
        ([[0], [1], [nan]], "binary"),
        ([[0, nan], [1, 1]], "multilabel"),
        ([[0, 2]], "values"),
        ([[nan, nan]], "values"),
        ([[0.5]], "values"),
    ):
        assert label_kind_of(np.array(values, np.float32)) == kind
    large = np.zeros((1_500_000, 2), np.float32)
    assert label_kind_of(large) == "multilabel"
    large[-1, 1] = np.inf
    assert label_kind_of(large) == "values"
    assert first_infinite(large.reshape(-1)) == 2_999_999
    large[:] = np.nan
    large[-1, 0] = 0
    assert np.flatnonzero(has_label(large)).tolist() == [1_499_999]
