"""Random tables with keys, columns, labels and splits: the dataset is what was meant, or the graph is refused.

A failing seed is repeated by ``outcome(SEED, FOLDER)``; the message has the folder, where its files are kept.
"""

import json
import os
import re
import shutil
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
# Faults of one row, whose number the message must have.
OF_A_ROW = {
    "a key twice",
    "a user without a key",
    "an end without a key",
    "a missing feature",
    "a key that no node has",
    "a number that float32 rounds",
}


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch):
    """Leave out the waits for the disk, which take most of the time with small datasets."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)


def prepared(folder):
    """Return the dataset that was prepared of a folder with ``graph.yaml``."""
    options = SourceOptions(memory_budget_bytes=BUDGET)
    prepare(
        open_source(f"tables:{folder}", options), folder / "out", PrepareOptions(memory_budget_bytes=BUDGET)
    )
    return Dataset.open(folder / "out")


def edges_of(dataset, arrays, has_items):
    """Return the edges as texts of keys with weights, times and features, sorted."""

    def column(name):
        held = arrays.get(name)
        return held.get(("user", "knows", "item")) if has_items and held is not None else held

    if has_items:
        src, dst = arrays["edges"]["user", "knows", "item"]
        ends = dataset.keys_of(src, "user"), dataset.keys_of(dst, "item")
    else:
        dst = np.repeat(np.arange(dataset.num_nodes), np.diff(arrays["indptr"]))
        ends = dataset.keys_of(arrays["indices"]), dataset.keys_of(dst)
    count = len(dst)
    weight, time, rows = column("edge_weight"), column("edge_time"), column("edge_features")
    weight = np.ones(count) if weight is None else weight
    time = np.zeros(count, np.int64) if time is None else time
    rows = np.zeros((count, 0), np.float32) if rows is None else rows
    return sorted(
        (str(src), str(dst), float(value), int(second), *row.tolist())
        for src, dst, value, second, row in zip(*ends, weight, time, rows, strict=True)
    )


def labels_of(dataset):
    """Return each user's label as a text, or as a tuple of texts."""
    labels = dataset.labels
    names = dataset.label_names or [str(number) for number in range(dataset.num_classes)]
    if labels.dtype.kind == "i":
        return ["-" if label < 0 else names[label] for label in labels]
    is_bits = dataset.label_kind == "multilabel"
    rows = [
        tuple("-" if np.isnan(value) else str(int(value)) if is_bits else f"{value:.4f}" for value in row)
        for row in labels
    ]
    return rows if labels.shape[1] > 1 else [value for (value,) in rows]


def outcome(seed, folder):
    """Return "read" or "refused"; fail if a graph was read as another one, or refused without a reason."""
    world = KeyedWorld.make(seed)
    world.write(folder)
    how = f"seed {seed} in {folder}: {world.writer.told}, {sorted(world.reasons)}\n{world.yaml_text}"
    refusal = None
    try:
        dataset = prepared(folder)
    except GloaderError as error:
        refusal = str(error)
    except Exception as error:
        raise AssertionError(f"{how}: another error: {error!r}") from error
    if refusal is not None:
        assert world.reasons, f"{how}: refused without a reason: {refusal}"
        assert str(folder) in refusal, f"{how}: the file is not named: {refusal}"
        assert re.search(r"rows? \d", refusal) or not world.reasons <= OF_A_ROW, (
            f"{how}: no row is named: {refusal}"
        )
        assert not (folder / "out").exists(), how
        return "refused"
    assert not world.faults, f"{how}: read"
    require_equal(world, dataset, folder, how)
    return "read"


def require_equal(world, dataset, folder, how):
    """Fail if a dataset is not what was meant."""
    keys = dataset.keys_of(np.arange(dataset.labelled.num_nodes))
    assert [str(key) for key in keys] == [str(key) for key in world.nodes], how
    assert dataset.ids_of(keys).tolist() == list(range(len(keys))), how
    if world.has_items:
        items = dataset.keys_of(np.arange(dataset.node_tables["item"].num_nodes), "item")
        assert [str(key) for key in items] == world.items, how
    arrays = dataset.to_numpy()
    found, wanted = edges_of(dataset, arrays, world.has_items), world.expected_edges
    assert [each[:4] for each in found] == [each[:4] for each in wanted], how
    assert all(
        np.allclose(each[4:], other[4:], rtol=1e-5, atol=1e-6)
        for each, other in zip(found, wanted, strict=True)
    ), how
    assert list(map(len, found)) == list(map(len, wanted)), how
    rows = arrays["features"]["user"] if world.has_items else arrays["features"]
    wanted_rows = world.expected_features(dataset.train)
    assert rows.shape == wanted_rows.shape, how
    assert np.allclose(rows, wanted_rows, rtol=1e-5, atol=1e-6), f"{how}\n{rows}\n{wanted_rows}"
    assert labels_of(dataset) == world.expected_labels(), how
    parts = {part: sorted(getattr(dataset, part).tolist()) for part in ("train", "valid", "test")}
    if world.parts is None:
        unknown = "-" if len(world.labels) == 1 else ("-", "-")
        labelled = [node for node, label in enumerate(world.expected_labels()) if label != unknown]
        assert sorted(node for ids in parts.values() for node in ids) == labelled, how
    else:
        for part, ids in parts.items():
            assert ids == [row for row, each in enumerate(world.parts) if each == part], f"{how}: {part}"
    dropped = int((~world.is_kept).sum())
    record = (folder / "out" / "dataset.json").read_text()
    assert (f"{dropped} edges of" in json.loads(json.dumps(record))) == (dropped > 0), (
        f"{how}: {dropped} dropped"
    )


def run(seeds, tmp_path):
    counts = Counter()
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        counts[outcome(seed, folder)] += 1
        shutil.rmtree(folder)
    return counts


@pytest.mark.reliability("S1")
@pytest.mark.parametrize("first", [0, 100, 200])
def test_graphs_with_keys_are_read_as_they_were_meant_or_refused(tmp_path, first):
    counts = run(range(first, first + 100), tmp_path)
    assert counts["read"] > 60, counts
    assert counts["refused"] > 5, counts


@pytest.mark.long
@pytest.mark.reliability("S1")
@pytest.mark.parametrize("first", range(10_000, 30_000, 2_000))
def test_many_graphs_with_keys(tmp_path, first):
    counts = run(range(first, first + 2_000), tmp_path)
    assert counts["read"] > 1200, counts
