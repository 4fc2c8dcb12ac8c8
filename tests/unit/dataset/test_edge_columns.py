"""Features and times of edges: written, read and checked as the other arrays; times that are not sorted are told."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from linked import BOUGHT, BUYS, NUM_EDGES, EdgeArrays, edge_arrays, write_linked, write_linked_types

from gloader.dataset import Dataset
from gloader.dataset.verify import TimeCheck, verify_dataset
from gloader.errors import ChecksumError, FormatError, GraphError, VersionError
from gloader.samplers.graph import describe_unsorted_time
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.format.format import DATASET_MANIFEST, load_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.types import IdArray

PROMISED = "times that are not sorted where sorted ones were promised"


@pytest.mark.parametrize(
    ("dtype", "error"), [("float32", 0), ("float16", 1e-3), ("bfloat16", 1e-2), ("int8", 1e-2)]
)
def test_features_of_edges_are_a_column_like_those_of_nodes(tmp_path: Path, dtype: str, error: float) -> None:
    edges = edge_arrays(40, 40, 300)
    dataset = write_linked(tmp_path / "d", {}, edges=edges, dtype=dtype)
    (table,) = dataset.edge_tables.values()
    rows = table.feature_rows
    assert rows is not None
    assert table.has_edge_features
    assert (rows.name, rows.number, rows.num_rows) == ("edges", 1, 300)
    assert (rows.feature_dim, rows.feature_dtype) == (3, dtype)
    assert rows.feature_bytes == 300 * 3 * {"float32": 4, "int8": 1}.get(dtype, 2)
    assert rows.features_path == dataset.root / "edge_features.npy"
    np.testing.assert_allclose(rows.all_rows(), edges.features, rtol=error, atol=3 * error)
    wanted, out = np.array([299, 3, 3]), np.empty((3, 3), np.float32)
    for store in (rows.open_features(), FeatureStore.open(dataset.root, column="edge_features")):
        with store:
            store.read_into(wanted, out)
            np.testing.assert_array_equal(out, rows.all_rows()[wanted])


def test_tables_of_features_are_numbered_types_first(tmp_path: Path) -> None:
    dataset = write_linked(tmp_path / "d", {})
    assert [(rows.name, rows.number) for rows in dataset.feature_rows(edges=True)] == [
        ("node", 0),
        ("edges", 1),
    ]
    assert [rows.name for rows in dataset.feature_rows(edges=False)] == ["node"]
    nodes = dataset.node_tables["node"]
    assert nodes.feature_rows is dataset.feature_rows(edges=False)[0]
    assert (nodes.feature_dim, nodes.feature_bytes) == (4, 40 * 4 * 4)

    edges = {
        relation: edge_arrays(count, {"user": 25, "item": 40}[relation[2]], NUM_EDGES[relation])
        for relation, count in ((BUYS, 25), (BOUGHT, 40))
    }
    edges[BUYS] = replace(edges[BUYS], features=None, times=None)
    typed = write_linked_types(tmp_path / "t", {}, edges=edges)
    assert [(rows.name, rows.number) for rows in typed.feature_rows(edges=True)] == [
        ("item:rev_buys:user", 3)
    ]
    assert typed.feature_rows(edges=False) == ()
    buys, bought = typed.edge_tables[BUYS], typed.edge_tables[BOUGHT]
    assert (buys.has_edge_features, buys.has_times, buys.feature_rows) == (False, False, None)
    assert (bought.has_edge_features, bought.has_times) == (True, True)
    assert (bought.topology_bytes, bought.time_bytes) == (8 * 41 + 4 * 280, 8 * 280)
    arrays = typed.to_numpy()
    np.testing.assert_array_equal(arrays["edge_features"].pop(BOUGHT), edges[BOUGHT].features)
    np.testing.assert_array_equal(arrays["edge_time"].pop(BOUGHT), edges[BOUGHT].times)
    assert arrays["edge_features"] == arrays["edge_time"] == {}


def test_arrays_in_memory_have_the_columns_of_edges(tmp_path: Path) -> None:
    edges = edge_arrays(40, 40, 300)
    arrays = write_linked(tmp_path / "d", {}, edges=edges).to_numpy()
    np.testing.assert_array_equal(arrays["edge_features"], edges.features)
    np.testing.assert_array_equal(arrays["edge_time"], edges.times)
    bare = write_linked(tmp_path / "e", {}, edges=replace(edges, features=None, times=None))
    assert bare.to_numpy().keys().isdisjoint({"edge_features", "edge_time", "links"})


def test_times_are_read_with_the_graph(tmp_path: Path) -> None:
    edges = edge_arrays(40, 40, 300)
    (table,) = write_linked(tmp_path / "d", {}, edges=edges).edge_tables.values()
    times = table.load_times(edges.indptr)
    assert times is not None
    assert times.dtype == np.int64
    np.testing.assert_array_equal(times, edges.times)


def swapped(edges: EdgeArrays, at: int) -> EdgeArrays:
    """Return the edges with the times of ``at - 1`` and ``at``, of one list, the other way round."""
    assert edges.times is not None
    times = edges.times.copy()
    times[[at - 1, at]] = times[[at, at - 1]]
    return replace(edges, times=times)


@pytest.mark.reliability("M2")
@pytest.mark.parametrize("where", ["first list", "last list"])
def test_times_that_are_not_sorted_are_told_by_file_and_edge(tmp_path: Path, where: str) -> None:
    edges = edge_arrays(40, 40, 300)
    at = 1 if where == "first list" else 299
    wrong = swapped(edges, at)
    assert wrong.times is not None
    dataset = write_linked(tmp_path / "d", {}, edges=wrong)
    said = rf"edge_time\[{at}\] = {wrong.times[at]} is less than {wrong.times[at - 1]} before it, .* sorted by time"
    (table,) = dataset.edge_tables.values()
    with pytest.raises(GraphError, match=rf"d/edge_time\.npy: {said}; its checksums hold"):
        table.load_times(edges.indptr)
    with pytest.raises(GraphError, match="must be sorted by time"):
        dataset.to_numpy()
    (problem,) = verify_dataset(dataset.root).problems
    assert problem.file == "edge_time.npy"
    assert PROMISED in problem.message


@pytest.mark.reliability("M1")
def test_verify_names_offsets_that_are_damaged_and_not_the_times_beside_them(tmp_path: Path) -> None:
    dataset = write_linked(tmp_path / "d", {})
    for file in ("indptr.npy", "indptr.pages"):
        data = (dataset.root / file).read_bytes()
        (dataset.root / file).write_bytes(data[:4097] + bytes([data[4097] ^ 1]) + data[4098:])
        assert {problem.file for problem in verify_dataset(dataset.root).problems} == {file}
        (dataset.root / file).write_bytes(data)


@pytest.mark.reliability("M1")
def test_damaged_times_and_features_are_told(tmp_path: Path) -> None:
    dataset = write_linked(tmp_path / "d", {}, dtype="int8")
    (table,) = dataset.edge_tables.values()
    assert table.feature_rows is not None
    for name in ("edge_time", "edge_features", "edge_features.scale"):
        path = dataset.root / f"{name}.npy"
        data = path.read_bytes()
        path.write_bytes(data[:4097] + bytes([data[4097] ^ 1]) + data[4098:])
        with pytest.raises(ChecksumError, match=rf"{name}\.npy: page 0"):
            table.load_times(np.array([0, 300])) if name == "edge_time" else table.feature_rows.all_rows()
        path.write_bytes(data)


def record_with(path: Path, **changes: Any) -> Dataset:
    manifest = load_manifest(path, DATASET_MANIFEST)
    features = changes.pop("required", manifest.required_features)
    arrays = {
        name: replace(record, **changes.get(name, {}))
        for name, record in manifest.arrays.items()
        if changes.get(name, {}) is not None
    }
    return Dataset(path, replace(manifest, arrays=arrays, required_features=features))


@pytest.mark.reliability("M4")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_time": {"shape": (299,)}}, r"edge_time \(299,\) with 40 rows of features and 300 edges"),
        ({"edge_time": {"shape": (300, 1)}}, r"edge_time \(300, 1\) with"),
        ({"edge_time": {"dtype": "float32"}}, "edge_time has dtype float32; it must be int64"),
        ({"edge_features": {"shape": (40, 3)}}, r"edge_features \(40, 3\) with"),
        ({"edge_features": {"shape": (300,)}}, r"edge_features \(300,\) with"),
        (
            {"edge_features": {"dtype": "int64"}},
            "edge_features has dtype int64; it must be float32 or float16 or",
        ),
        ({"edge_features.scale": {"shape": (40,)}}, r"edge_features\.scale \(40,\) with"),
        (
            {"edge_features.scale": None},
            r"edge_features are int8 and have no scales; edge_features\.scale must hold",
        ),
        (
            {"required": ("int8-row-scale",)},
            "with the array 'edge_features', the record must name the required feature 'edge-columns'",
        ),
    ],
)
def test_a_record_of_edge_columns_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: Any, message: str
) -> None:
    write_linked(tmp_path / "d", {}, dtype="int8")
    record_with(tmp_path / "d")
    with pytest.raises(FormatError, match=message):
        record_with(tmp_path / "d", **changes)


@pytest.mark.parametrize("column", ["features", "times"])
def test_an_older_build_refuses_edge_columns_by_name(tmp_path: Path, monkeypatch: Any, column: str) -> None:
    """It would overlook them: train without the one, and draw edges that came after their seeds without the other."""
    edges = replace(edge_arrays(40, 40, 300), **{column: None})
    path = write_linked(tmp_path / "d", {}, edges=edges).root
    older = frozenset({"int8-row-scale", "array-folders"})
    monkeypatch.setattr("gloader.ssd_store.format.manifest.KNOWN_FEATURES", older)
    with pytest.raises(
        VersionError, match=r"needs features \['edge-columns'\] that this build .* use a newer build"
    ):
        Dataset.open(path)


def test_the_fingerprint_is_that_of_the_edge_columns_too(tmp_path: Path) -> None:
    edges = edge_arrays(40, 40, 300)
    prints = set()
    for number, changes in enumerate(
        ({}, {"features": None}, {"times": None}, {"features": None, "times": None})
    ):
        prints.add(write_linked(tmp_path / str(number), {}, edges=replace(edges, **changes)).fingerprint)
    assert len(prints) == 4


def in_pieces(indptr: IdArray, times: IdArray, cuts: list[int], every: int) -> str | None:
    check = TimeCheck(indptr[start : start + every].copy() for start in range(0, len(indptr), every))
    for piece in np.split(times, cuts):
        if (message := check.wrong(piece)) is not None:
            return message
    return check.wrong_end()


def test_the_pieces_that_times_and_offsets_come_in_decide_nothing() -> None:
    """Lists that are empty, of one edge and of many, with pieces that end within and between them."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        degrees = rng.integers(0, 4, rng.integers(1, 12))
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        times = rng.integers(0, 3, indptr[-1])
        wrong = next(
            (
                at
                for start, end in pairwise(indptr)
                for at in range(start + 1, end)
                if times[at] < times[at - 1]
            ),
            None,
        )
        messages = set()
        for every in (1, 2, 100):
            cuts = sorted(rng.integers(0, len(times) + 1, 3).tolist())
            messages.add(in_pieces(indptr, times, cuts, every))
        (message,) = messages
        held = describe_unsorted_time(indptr, times)
        assert (message or "").partition(" = ")[0] == (held or "").partition(" = ")[0]
        assert (message is None) == (wrong is None)
        if message is not None:
            assert message.startswith(f"edge_time[{wrong}] = ")
