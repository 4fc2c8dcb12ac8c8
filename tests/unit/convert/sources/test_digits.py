from __future__ import annotations

import numpy as np
import pytest

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source
from gloader.convert.sources.digits import nearest_neighbor_edges, stratified_splits
from gloader.errors import ConfigError


def test_digits_are_a_symmetric_graph_whose_neighbours_agree():
    source = open_source("builtin:digits", SourceOptions())
    (chunk,) = source.edges.chunks(1 << 20)
    (rows,) = source.features.chunks(1 << 20)
    pairs = set(zip(chunk.src.tolist(), chunk.dst.tolist(), strict=True))
    assert len(pairs) == source.edges.num_edges == len(chunk.src)
    assert pairs == {(v, u) for u, v in pairs}
    assert all(u != v for u, v in pairs)
    assert np.bincount(chunk.dst).min() >= 10
    assert np.mean(source.labels[chunk.src] == source.labels[chunk.dst]) > 0.95
    assert rows.shape == (1797, 64)
    assert (rows.min(), rows.max()) == (0.0, 1.0)
    assert source.num_classes == 10


def test_the_seed_decides_the_split_only():
    first, other = (open_source("builtin:digits", SourceOptions(seed=seed)) for seed in (0, 1))
    assert not np.array_equal(first.splits.train, other.splits.train)
    ours, theirs = (next(source.edges.chunks(10**6)) for source in (first, other))
    assert np.array_equal(ours.src, theirs.src)
    assert [len(ids) for ids in (first.splits.train, first.splits.valid, first.splits.test)] == [
        1078,
        360,
        359,
    ]


def test_splits_are_stratified():
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    splits = stratified_splits(labels, train=0.6, valid=0.2, seed=0)
    assert np.bincount(labels[splits.train]).tolist() == [30, 18, 12]
    assert np.bincount(labels[splits.valid]).tolist() == [10, 6, 4]
    everyone = np.concatenate([splits.train, splits.valid, splits.test])
    assert np.array_equal(np.sort(everyone), np.arange(100))


def test_nearest_neighbours_equal_a_plain_search_with_ties_to_the_lower_id():
    points = np.random.default_rng(0).integers(0, 3, (40, 2))  # many ties
    expected = set()
    for u in range(40):
        others = sorted((int(((points[u] - points[v]) ** 2).sum()), v) for v in range(40) if v != u)
        for _, v in others[:3]:
            expected |= {(u, v), (v, u)}
    src, dst = nearest_neighbor_edges(points, 3)
    assert set(zip(src.tolist(), dst.tolist(), strict=True)) == expected
    assert np.all(np.diff(dst * 40 + src) > 0)


def test_only_digits_are_built_in():
    with pytest.raises(ConfigError, match="the only built-in data set is builtin:digits"):
        open_source("builtin:letters", SourceOptions())
