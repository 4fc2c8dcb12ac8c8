from __future__ import annotations

import numpy as np
import pytest
import torch

from gloader.errors import DivergedError
from gloader.models import build_decoder
from gloader.training.link_judge import PairScorer

CPU = torch.device("cpu")
WIDTH = 6


class Rows:
    """Embeddings in memory, which remember how they were asked for."""

    def __init__(self, num_rows: int, seed: int) -> None:
        self.matrix = np.random.default_rng(seed).normal(size=(num_rows, WIDTH)).astype(np.float32)
        self.width = WIDTH
        self.asked: list[np.ndarray] = []

    def take(self, rows: np.ndarray, out: np.ndarray) -> None:
        self.asked.append(rows.copy())
        out[:] = self.matrix[rows]


def _scorer(decoder: torch.nn.Module, budget: int) -> tuple[PairScorer, Rows, Rows]:
    sources, destinations = Rows(30, seed=1), Rows(50, seed=2)
    return (
        PairScorer(decoder, sources, destinations, budget_bytes=budget, place=CPU),
        sources,
        destinations,
    )


def _decoder(name: str, num_outputs: int = 1) -> torch.nn.Module:
    torch.manual_seed(3)
    return build_decoder(name, dim=WIDTH, hidden=5, dropout=0.5, num_outputs=num_outputs).eval()


@pytest.mark.reliability("S5")
@pytest.mark.parametrize("name", ["dot", "mlp"])
def test_scores_that_are_no_numbers_are_not_ranked(name) -> None:
    scorer, sources, _ = _scorer(_decoder(name), 10**6)
    sources.matrix[3] = np.nan
    with pytest.raises(DivergedError, match="2 of 4 scores of pairs are NaN"):
        scorer.score(np.array([1, 3, 3, 2]), np.array([0, 1, 2, 3]))


@pytest.mark.parametrize("name", ["dot", "mlp"])
@pytest.mark.parametrize("budget", [1, 2000, 10**6])
@pytest.mark.parametrize("k", [None, 1, 7])
def test_scores_are_those_of_the_decoder_whatever_fits(name, budget, k) -> None:
    decoder = _decoder(name)
    scorer, sources, destinations = _scorer(decoder, budget)
    rng = np.random.default_rng(5)
    source_ids = rng.integers(0, 30, 40)
    ids = rng.integers(0, 50, (40,) if k is None else (40, k))
    found = scorer.score(source_ids, ids)
    wide = np.broadcast_to(source_ids[:, None], (40, k or 1)).ravel()
    with torch.no_grad():
        expected = decoder(
            torch.from_numpy(sources.matrix[wide]), torch.from_numpy(destinations.matrix[ids.ravel()])
        )
    assert found.shape == ids.shape
    assert np.allclose(found.ravel(), expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("budget", [1, 2000, 10**6])
def test_rows_are_read_once_and_in_ascending_order(budget) -> None:
    scorer, sources, destinations = _scorer(_decoder("dot"), budget)
    rng = np.random.default_rng(6)
    ids = rng.integers(0, 50, (40, 5))
    scorer.score(rng.integers(0, 30, 40), ids)
    assert len(sources.asked) == 1
    for asked, wanted in ((sources.asked[0], None), (np.concatenate(destinations.asked), ids)):
        assert (np.diff(asked) > 0).all()
        assert wanted is None or (asked == np.unique(wanted)).all()


def test_blocks_of_destinations_keep_to_the_budget() -> None:
    budget = 8 * 4 * WIDTH * 4
    scorer, _, destinations = _scorer(_decoder("dot"), budget)
    scorer.score(np.arange(8), np.arange(48).reshape(8, 6))
    assert max(map(len, destinations.asked)) == 8
    assert (scorer.rows_per_call(), scorer.rows_per_call(2), scorer.rows_per_call(9)) == (4, 2, 1)


def test_classes_come_in_a_row_of_their_own() -> None:
    scorer, *_ = _scorer(_decoder("mlp", num_outputs=3), 10**6)
    assert scorer.score(np.arange(9), np.arange(9)).shape == (9, 3)


def test_no_pairs_have_no_scores() -> None:
    scorer, *_ = _scorer(_decoder("dot"), 10**6)
    nothing = np.empty(0, np.int64)
    assert scorer.score(nothing, nothing).shape == (0,)
