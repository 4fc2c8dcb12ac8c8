"""Random tables of nodes and edges, written with pandas: what is read is what was meant, or it is refused."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from table_worlds import World

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.readers.checked_rows import CheckedRows
from gloader.convert.sources.edge_source import open_edges
from gloader.dataset import Dataset
from gloader.errors import GloaderError

BUDGET = 60 * 10**6


def read(world: World):
    """Return edges, features and labels as the readers give them to a conversion."""
    options = SourceOptions(
        features=world.feature_path, labels=world.label_path, memory_budget_bytes=BUDGET, needs_labels=True
    )
    source = open_edges(str(world.edge_path), options)
    edges = []
    for chunk in source.edges.chunks(7):
        weight = np.ones(len(chunk.src)) if chunk.weight is None else chunk.weight
        edges += zip(chunk.src.tolist(), chunk.dst.tolist(), weight.tolist(), strict=True)
    checked = CheckedRows(
        source.features, where=str(world.feature_path), stored_as=None, flag="--dtype", allow_nan=False
    )
    rows = np.concatenate(list(checked.chunks(5)))
    features = np.full_like(rows, np.nan)
    features[np.arange(len(rows)) if source.row_ids is None else source.row_ids] = rows
    return sorted(edges), features, source.labels


def stored(world: World, out: Path):
    """Return edges, features and labels of a dataset that was prepared of the files."""
    options = SourceOptions(features=world.feature_path, labels=world.label_path, memory_budget_bytes=BUDGET)
    source = open_edges(str(world.edge_path), options)
    prepare(source, out, PrepareOptions(memory_budget_bytes=BUDGET))
    held = Dataset.open(out).to_numpy()
    dst = np.repeat(np.arange(len(held["labels"])), np.diff(held["indptr"]))
    weight = held.get("edge_weight", np.ones(len(dst)))
    edges = zip(held["indices"].tolist(), dst.tolist(), weight.tolist(), strict=True)
    return sorted(edges), held["features"], held["labels"]


def outcome(seed: int, folder: Path, *, is_prepared: bool) -> str:
    """Return "read" or "refused"; fail where a table was read as something else, or refused without a reason."""
    world = World.make(seed)
    world.write(folder)
    how = f"seed {seed}: {world.told}, {sorted(world.reasons)}"
    refusal = None
    try:
        found = stored(world, folder / "out") if is_prepared else read(world)
    except GloaderError as error:
        refusal = str(error)
    if refusal is not None:
        assert world.reasons, f"{how}: refused without a reason: {refusal}"
        assert str(folder) in refusal, f"{how}: the file is not named: {refusal}"
        return "refused"
    for name, value, meant in zip(("edges", "features", "labels"), found, world.expected, strict=True):
        if isinstance(meant, list):
            assert value == meant, f"{how}: {name}"
        else:
            assert value.shape == meant.shape, f"{how}: {name}"
            assert np.allclose(value, meant, atol=1e-6), f"{how}: {name}"
    assert not world.faults, f"{how}: read"
    return "read"


def run(seeds: range, tmp_path: Path, *, is_prepared: bool = False) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        counts[outcome(seed, tmp_path / str(seed), is_prepared=is_prepared)] += 1
    return counts


@pytest.mark.reliability("S1")
@pytest.mark.parametrize("first", [0, 100, 200])
def test_tables_are_read_as_they_were_meant_or_refused(tmp_path, first):
    counts = run(range(first, first + 100), tmp_path)
    assert counts["read"] > 30, counts


@pytest.mark.reliability("S1")
def test_datasets_hold_what_the_tables_meant(tmp_path):
    counts = run(range(1000, 1024), tmp_path, is_prepared=True)
    assert counts["read"] > 5, counts


@pytest.mark.long
@pytest.mark.reliability("S1")
@pytest.mark.parametrize("first", range(10_000, 30_000, 2_000))
def test_many_tables(tmp_path, first):
    counts = run(range(first, first + 2_000), tmp_path)
    assert counts["read"] > 600, counts
