"""A type's input rows: stored features, and trained rows behind them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gloader.training.inference import embedded_features
from gloader.training.inference.embedded_features import EmbeddedFeatures
from gloader.types import ReadStats

N, F, D = 50, 3, 2
FEATURES = np.random.default_rng(0).normal(size=(N, F)).astype(np.float32)
TRAINED = np.random.default_rng(1).normal(size=(N, D)).astype(np.float32)


class Stored:
    """Features in memory, which count their reads."""

    num_rows, dim, dtype = N, F, np.dtype(np.float32)

    def read_into(self, rows: Any, out: Any, /, *, at: Any = None) -> ReadStats:
        assert at is None
        out[:] = FEATURES[rows]
        return ReadStats(rows=len(rows), requests=1, bytes_read=4 * F * len(rows))


@pytest.fixture(name="embedding")
def _embedding() -> Any:
    return SimpleNamespace(num_rows=N, dim=D, rows=lambda ids: torch.from_numpy(TRAINED)[ids])


@pytest.mark.parametrize("joined_bytes", [1, 64, 1 << 20])
@pytest.mark.parametrize("rows", [[], [4], [9, 2, 2, 49, 0], list(range(N))], ids=len)
def test_rows_of_both_stand_side_by_side_in_any_pieces(monkeypatch, embedding, rows, joined_bytes) -> None:
    monkeypatch.setattr(embedded_features, "_JOINED_BYTES", joined_bytes)
    source = EmbeddedFeatures(embedding, Stored())
    ids = np.array(rows, np.int64)
    assert (source.num_rows, source.dim, source.dtype) == (N, F + D, np.float32)
    expected = np.concatenate([FEATURES, TRAINED], axis=1)[ids]
    out = np.full((len(ids), F + D), np.nan, np.float32)
    stats = source.read_into(ids, out)
    np.testing.assert_array_equal(out, expected)
    assert (stats.rows, stats.bytes_read) == (len(ids), 4 * F * len(ids))
    # To places of a larger matrix; its other rows stay.
    places = np.random.default_rng(2).permutation(60)[: len(ids)]
    wide = np.zeros((60, F + D), np.float32)
    source.read_into(ids, wide, at=places)
    np.testing.assert_array_equal(wide[places], expected)
    assert not wide[np.setdiff1d(np.arange(60), places)].any()


def test_a_type_without_features_has_the_trained_rows_alone(embedding) -> None:
    source = EmbeddedFeatures(embedding, None)
    out = np.empty((2, D), np.float32)
    stats = source.read_into(np.array([7, 3]), out)
    np.testing.assert_array_equal(out, TRAINED[[7, 3]])
    assert (source.dim, stats.requests, stats.bytes_read) == (D, 0, 0)
