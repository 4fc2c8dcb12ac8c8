from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source


def joined(chunks, field):
    return np.concatenate([np.empty(0, np.int64), *(getattr(chunk, field) for chunk in chunks)])


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["community", "rmat"]),
    nodes=st.integers(1, 300),
    pairs=st.integers(0, 200),
    classes=st.integers(1, 5),
    seed=st.integers(0, 2**63 - 1),
    chunk=st.integers(1, 401),
)
def test_chunks_of_any_size_hold_the_same_graph(kind, nodes, pairs, classes, seed, chunk):
    classes = min(classes, nodes)
    spec = f"synthetic:{kind},nodes={nodes},edges={2 * pairs},dim=3,classes={classes},seed={seed}"
    source = open_source(spec, SourceOptions())
    whole, parts = list(source.edges.chunks(10**6)), list(source.edges.chunks(chunk))
    assert all(len(part.src) <= chunk for part in parts)
    for field in ("src", "dst"):
        ids = joined(whole, field)
        assert np.array_equal(ids, joined(parts, field))
        assert len(ids) == 2 * pairs
        assert np.all((ids >= 0) & (ids < nodes))
    rows = np.concatenate(list(source.features.chunks(10**6)))
    assert np.array_equal(rows, np.concatenate(list(source.features.chunks(chunk))))
    assert rows.shape == (nodes, 3)
    assert np.all((source.labels >= 0) & (source.labels < classes))
    splits = source.splits
    everyone = np.sort(np.concatenate([splits.train, splits.valid, splits.test]))
    assert np.array_equal(everyone, np.arange(nodes))


@pytest.mark.parametrize("kind", ["community", "rmat"])
def test_streams_start_again(kind):
    source = open_source(f"synthetic:{kind},nodes=50,edges=100,dim=2,classes=2", SourceOptions())
    started = source.edges.chunks(10)
    next(started)
    assert np.array_equal(joined(source.edges.chunks(10), "src"), joined(source.edges.chunks(10), "src"))
    assert sum(len(chunk.src) for chunk in started) == 90
