"""From a folder of arrays to a dataset directory that holds the same, or to nothing at all."""

from dataclasses import replace

import numpy as np
import pytest
from convert_helpers import expected_neighbors, write_folder

from gloader.convert.csc import external_csc
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import plan_source, prepare
from gloader.convert.source import FeatureStream
from gloader.convert.sources.npy import open_npy
from gloader.dataset import Dataset
from gloader.errors import (
    BudgetError,
    GloaderError,
    GraphError,
    ShapeError,
    SourceError,
    StoreExistsError,
    StoreWriteError,
)

MB = 10**6
SMALL = PrepareOptions(memory_budget_bytes=40 * MB)


def run(folder, out, options=SMALL, **keywords):
    return prepare(open_npy(str(folder), SourceOptions()), out, options, **keywords)


def neighbors(graph):
    return [graph.indices[a:b].tolist() for a, b in zip(graph.indptr[:-1], graph.indptr[1:], strict=True)]


class Steps:
    def __init__(self):
        self.seen = []

    def advance(self, stage, done, total, unit):
        self.seen.append((stage, done, total, unit))


@pytest.mark.reliability("C4")
def test_dataset_holds_what_the_folder_held(tmp_path):
    arrays = write_folder(tmp_path / "tiny", num_nodes=50, num_edges=300)
    steps = Steps()
    report = run(tmp_path / "tiny", tmp_path / "out", progress=steps)
    dataset = Dataset.open(tmp_path / "out")
    graph = dataset.load_graph()
    expected = expected_neighbors([tuple(edge) for edge in arrays["edges"].tolist()], 50, SMALL.rules)
    assert neighbors(graph) == [[src for src, _ in entries] for entries in expected]
    with dataset.open_features() as features:
        rows = np.empty((50, 3), np.float32)
        features.read_into(np.arange(50), rows)
    assert np.array_equal(rows, arrays["features"])
    assert np.array_equal(dataset.labels, arrays["labels"])
    for part in ("train", "valid", "test"):
        assert np.array_equal(getattr(dataset, part), arrays[part])
    assert (dataset.name, dataset.num_classes, dataset.has_self_loops) == ("tiny", 3, False)
    assert (report.num_edges, report.edges_read, report.spilled_bytes) == (300, 300, 0)
    assert report.dataset_bytes == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    assert steps.seen[-1] == ("writing features", 600, 600, "bytes")
    assert {stage for stage, *_ in steps.seen} == {"reading edges", "sorting edges", "writing features"}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("given", ["float64", "float16", "uint8", "bool"])
def test_features_are_cast(tmp_path, dtype, given):
    values = np.arange(60).reshape(20, 3).astype(given)
    write_folder(tmp_path / "in", num_nodes=20, features=values)
    run(tmp_path / "in", tmp_path / "out", PrepareOptions(dtype=dtype, memory_budget_bytes=40 * MB))
    dataset = Dataset.open(tmp_path / "out")
    assert dataset.feature_dtype == dtype
    with dataset.open_features() as features:
        rows = np.empty((20, 3), np.float32)
        features.read_into(np.arange(20), rows)
    assert np.allclose(rows, values.astype(np.float32), atol=0.3 if dtype == "int8" else 0)


@pytest.mark.reliability("C5")
def test_rules_are_applied_and_noted(tmp_path):
    write_folder(tmp_path / "in", num_nodes=4, edges=np.array([[0, 1], [0, 1], [2, 2]]), train=np.array([0]))
    for name in ("valid", "test"):
        np.save(tmp_path / "in" / f"{name}.npy", np.array([], np.int64))
    report = run(
        tmp_path / "in",
        tmp_path / "out",
        PrepareOptions(symmetrize=True, self_loops=True, memory_budget_bytes=40 * MB),
    )
    dataset = Dataset.open(tmp_path / "out")
    assert neighbors(dataset.load_graph()) == [[0, 1], [0, 1], [2], [3]]
    assert dataset.has_self_loops
    assert dataset.metadata["options"]["symmetrize"] is True
    assert (report.edges_read, report.num_edges) == (3, 6)


def test_weights_arrive_beside_their_edges(tmp_path):
    edges, weight = np.array([[1, 0], [2, 0], [0, 2]]), np.array([0.25, 0.5, 4.0])
    write_folder(tmp_path / "in", num_nodes=4, edges=edges, edge_weight=weight)
    run(tmp_path / "in", tmp_path / "out")
    graph = Dataset.open(tmp_path / "out").load_graph()
    assert graph.indices.tolist() == [1, 2, 0]
    assert graph.edge_weight.tolist() == [0.25, 0.5, 4.0]


def test_spilled_conversion_equals_the_one_in_memory(tmp_path, monkeypatch):
    write_folder(tmp_path / "in", num_nodes=3000, num_edges=400_000, dim=8)
    run(tmp_path / "in", tmp_path / "a", PrepareOptions(deduplicate=True, memory_budget_bytes=400 * MB))
    monkeypatch.setattr(external_csc, "PIECE_BYTES", 1 << 16)
    report = run(
        tmp_path / "in", tmp_path / "b", PrepareOptions(deduplicate=True, memory_budget_bytes=27 * MB)
    )
    assert report.spilled_bytes == 400_000 * 8
    assert Dataset.open(tmp_path / "a").fingerprint == Dataset.open(tmp_path / "b").fingerprint


@pytest.mark.reliability("C6")
def test_one_node_without_edges(tmp_path):
    none = np.array([], np.int64)
    write_folder(
        tmp_path / "in", num_nodes=1, edges=none.reshape(0, 2), labels=[-1], train=none, valid=none, test=none
    )
    run(tmp_path / "in", tmp_path / "out")
    dataset = Dataset.open(tmp_path / "out")
    assert (dataset.num_nodes, dataset.num_edges) == (1, 0)
    assert dataset.load_graph().indptr.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("replaced", "error", "text"),
    [
        pytest.param(
            {"edges": np.array([[0, 1], [10, 2]])},
            GraphError,
            "edge 1 .* has source 10; node ids must lie in 0..9",
            marks=pytest.mark.reliability("C2"),
        ),
        pytest.param(
            {"edges": np.array([[0, 1.5]])},
            GraphError,
            "edges.npy has dtype '<f8'",
            marks=pytest.mark.reliability("C3"),
        ),
        pytest.param(
            {"edge_weight": -np.ones(40)},
            GraphError,
            r"edge 0 \(counted from 0\) has weight -1.0",
            marks=pytest.mark.reliability("C2"),
        ),
        pytest.param(
            {"labels": np.zeros(9, int)},
            ShapeError,
            r"labels.*has shape \(9,\); labels must be",
            marks=pytest.mark.reliability("C13"),
        ),
        pytest.param(
            {"features": np.zeros((10, 0))},
            ShapeError,
            "features have 0 columns",
            marks=pytest.mark.reliability("C13"),
        ),
        ({"train": np.array([0, 1])}, SourceError, "node 1 is in train and in valid"),
        ({"valid": np.array([99])}, SourceError, "valid holds node 99 at position 0"),
    ],
)
def test_malformed_input_leaves_nothing(tmp_path, replaced, error, text):
    write_folder(tmp_path / "in", **replaced)
    with pytest.raises(error, match=text):
        run(tmp_path / "in", tmp_path / "deep" / "below" / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


@pytest.mark.reliability("C14")
def test_budget_too_small_leaves_nothing(tmp_path):
    write_folder(tmp_path / "in")
    with pytest.raises(BudgetError, match="the memory budget allows 1 MB"):
        run(tmp_path / "in", tmp_path / "out", PrepareOptions(memory_budget_bytes=MB))
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_file_truncated_midway_leaves_nothing(tmp_path):
    write_folder(tmp_path / "in", num_nodes=1000, dim=100)
    source = open_npy(str(tmp_path / "in"), SourceOptions())
    path = tmp_path / "in" / "features.npy"
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(SourceError, match=r"features\.npy .*early"):
        prepare(source, tmp_path / "out", SMALL)
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_interrupt_passes_unchanged_and_leaves_nothing(tmp_path):
    class Interrupting:
        def advance(self, stage, *_):
            if stage == "writing features":
                raise KeyboardInterrupt

    write_folder(tmp_path / "in")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "in", tmp_path / "out", progress=Interrupting())
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_existing_target_is_kept_unless_overwritten(tmp_path):
    write_folder(tmp_path / "in", seed=1)
    write_folder(tmp_path / "other", seed=2)
    run(tmp_path / "in", tmp_path / "out")
    first = Dataset.open(tmp_path / "out").fingerprint
    with pytest.raises(StoreExistsError):
        run(tmp_path / "other", tmp_path / "out")
    assert Dataset.open(tmp_path / "out").fingerprint == first
    run(tmp_path / "other", tmp_path / "out", PrepareOptions(overwrite=True, memory_budget_bytes=40 * MB))
    assert Dataset.open(tmp_path / "out").fingerprint != first


def test_full_disk_is_known_before_anything_is_written(tmp_path):
    def chunks(_max_rows):
        raise AssertionError("nothing may be read")

    huge = FeatureStream(chunks=chunks, num_rows=10, dim=10**13, dtype=np.dtype(np.float32))
    write_folder(tmp_path / "in")
    source = open_npy(str(tmp_path / "in"), SourceOptions())
    huge = replace(source, features=huge)
    with pytest.raises(StoreWriteError, match=r"writing needs 40\d{13} bytes"):
        plan_source(huge, tmp_path / "out" / "deep", PrepareOptions(memory_budget_bytes=10**15))
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_every_error_is_one_of_ours(tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(GloaderError):
        run(tmp_path / "in", tmp_path / "out")
