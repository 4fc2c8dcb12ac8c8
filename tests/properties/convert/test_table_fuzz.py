"""Random tables with keys, columns, labels and splits: the dataset is what was meant, or the graph is refused."""

from collections import Counter

import numpy as np
import pytest
from keyed_worlds import KeyedWorld

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.dataset import Dataset
from gloader.errors import GloaderError

BUDGET = 10**8


def prepared(folder):
    """Return the dataset that was prepared of a folder with ``graph.yaml``."""
    options = SourceOptions(memory_budget_bytes=BUDGET)
    prepare(
        open_source(f"tables:{folder}", options), folder / "out", PrepareOptions(memory_budget_bytes=BUDGET)
    )
    return Dataset.open(folder / "out")


def edges_of(dataset, has_items):
    """Return the edges as texts of keys with weights, sorted."""
    arrays = dataset.to_numpy()
    if has_items:
        relation = ("user", "knows", "item")
        src, dst = arrays["edges"][relation]
        weight = arrays.get("edge_weight", {}).get(relation)
        ends = dataset.keys_of(src, "user"), dataset.keys_of(dst, "item")
    else:
        dst = np.repeat(np.arange(dataset.num_nodes), np.diff(arrays["indptr"]))
        weight = arrays.get("edge_weight")
        ends = dataset.keys_of(arrays["indices"]), dataset.keys_of(dst)
    weight = np.ones(len(dst)) if weight is None else weight
    return sorted(zip(*(map(str, keys) for keys in ends), weight.tolist(), strict=True))


def labels_of(dataset):
    """Return each user's label as a text."""
    labels = dataset.labels
    if labels.dtype.kind == "f":
        return ["-" if np.isnan(value) else f"{value:.4f}" for value in labels[:, 0]]
    names = dataset.label_names or [str(number) for number in range(dataset.num_classes)]
    return ["-" if label < 0 else names[label] for label in labels]


def outcome(seed, folder):
    """Return "read" or "refused"; fail if a graph was read as another one, or refused without a reason."""
    world = KeyedWorld.make(seed)
    world.write(folder)
    how = f"seed {seed}: {world.writer.told}, {sorted(world.reasons)}\n{world.yaml_text}"
    refusal = None
    try:
        dataset = prepared(folder)
    except GloaderError as error:
        refusal = str(error)
    if refusal is not None:
        assert world.reasons, f"{how}: refused without a reason: {refusal}"
        assert str(folder) in refusal, f"{how}: the file is not named: {refusal}"
        assert not (folder / "out").exists(), how
        return "refused"
    assert not world.faults, f"{how}: read"
    assert [str(key) for key in dataset.keys_of(np.arange(dataset.labelled.num_nodes))] == [
        str(key) for key in world.nodes
    ], how
    assert edges_of(dataset, world.has_items) == world.expected_edges, how
    features = dataset.to_numpy()["features"]
    rows = features["user"] if world.has_items else features
    assert rows.shape == world.expected_features().shape, how
    assert np.array_equal(rows, world.expected_features()), how
    assert labels_of(dataset) == world.expected_labels(), how
    if world.has_split:
        for part in ("train", "valid", "test"):
            wanted = np.flatnonzero(world.columns["fold"] == part).tolist()
            assert sorted(getattr(dataset, part).tolist()) == wanted, f"{how}: {part}"
    return "read"


def run(seeds, tmp_path):
    counts = Counter()
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        counts[outcome(seed, tmp_path / str(seed))] += 1
    return counts


@pytest.mark.reliability("S1")
@pytest.mark.parametrize("first", [0, 40, 80])
def test_graphs_with_keys_are_read_as_they_were_meant_or_refused(tmp_path, first):
    counts = run(range(first, first + 40), tmp_path)
    assert counts["read"] > 20, counts
    assert counts["refused"] > 2, counts


@pytest.mark.long
@pytest.mark.reliability("S1")
@pytest.mark.parametrize("first", range(10_000, 30_000, 2_000))
def test_many_graphs_with_keys(tmp_path, first):
    counts = run(range(first, first + 2_000), tmp_path)
    assert counts["read"] > 1000, counts
