"""Correct and smooth equals the paper's formulas on whole matrices, whatever the budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gloader.config import ModelConfig
from gloader.models import build_model
from gloader.samplers import CscGraph
from gloader.ssd_store import RamFeatures
from gloader.training import correct_and_smooth
from gloader.training.correct_and_smooth import HOPS, SHARE, TrainingLabels, smoothed
from gloader.training.inference.layerwise_inference import HeteroInference

N, F = 60, 4
LARGE = 1 << 30

Wide = NDArray[np.float64]


def _graph(random: np.random.Generator, num_edges: int) -> CscGraph:
    """A graph with parallel edges, self loops, and nodes without in-edges."""
    destinations = np.sort(random.integers(0, N - 5, num_edges))
    indptr = np.zeros(N + 1, dtype=np.int64)
    np.cumsum(np.bincount(destinations, minlength=N), out=indptr[1:])
    return CscGraph(indptr=indptr, indices=random.integers(0, N, num_edges).astype(np.int32))


def _model(random: np.random.Generator, width: int) -> Any:
    """One Linear with weights of few bits: sums of such products are exact, in any order."""
    config = ModelConfig(name="correct-and-smooth", hidden=8)
    model = build_model(config, in_dim=F, out_dim=width, num_layers=1)
    for parameter in model.parameters():
        values = random.integers(-8, 9, tuple(parameter.shape)) / 8
        parameter.data = torch.from_numpy(values.astype(np.float32))
    return model.eval()


def _labels(random: np.random.Generator, num_train: int, width: int) -> TrainingLabels:
    return TrainingLabels(
        nodes=np.sort(random.choice(N, num_train, replace=False)),
        classes=random.integers(0, max(width, 2), num_train),
        num_classes=max(width, 2),
        is_binary=width == 1,
    )


def _found(
    model: Any, graph: CscGraph, x: NDArray[np.float32], labels: TrainingLabels, budget: int, **options: Any
) -> NDArray[np.float32]:
    inference = HeteroInference.of_one_type(
        graph=graph, features=RamFeatures(x), memory_budget_bytes=budget, **options
    )
    with smoothed(model, inference, labels, lambda _: None) as outputs:
        parts = [rows.numpy() for _, rows in outputs.logits(model, np.arange(N))]
    return np.concatenate(parts)


def _spread(norm: Wide, start: Wide, low: float) -> Wide:
    rows = start
    for _ in range(HOPS):
        rows = np.clip(SHARE * norm @ rows + (1 - SHARE) * start, low, 1)
    return rows


def _oracle(graph: CscGraph, base: Wide, labels: TrainingLabels) -> Wide:
    """Sections 2.1 to 2.3 of the paper, with dense matrices in float64: the rows after both steps."""
    edges = np.zeros((N, N))
    np.add.at(edges, (np.repeat(np.arange(N), np.diff(graph.indptr)), graph.indices), 1)
    edges += np.eye(N)
    root = 1 / np.sqrt(edges.sum(axis=1))
    norm = root[:, None] * edges * root
    known = np.eye(labels.num_classes)[labels.classes]
    errors = np.zeros_like(base)
    errors[labels.nodes] = known - base[labels.nodes]
    size = np.abs(errors[labels.nodes]).sum(axis=1).mean()
    spread = _spread(norm, errors, -1)
    guesses = base.copy()
    for node in range(N):
        length = np.abs(spread[node]).sum()
        scale = size / length if length and size / length <= 1000 else 1
        guesses[node] += scale * spread[node]
    guesses[labels.nodes] = known
    return _spread(norm, guesses, 0)


@given(
    seed=st.integers(0, 2**32 - 1),
    num_edges=st.integers(0, 400),
    num_train=st.integers(1, N),
    width=st.integers(1, 5),
)
def test_rows_equal_the_formulas_in_float64(seed: int, num_edges: int, num_train: int, width: int) -> None:
    random = np.random.default_rng(seed)
    graph, model = _graph(random, num_edges), _model(random, width)
    labels = _labels(random, num_train, width)
    x = random.integers(-4, 5, (N, F)).astype(np.float32)
    logits = _dense(model, x)
    wide = np.concatenate([np.zeros_like(logits), logits], axis=1) if width == 1 else logits
    base = np.exp(wide - wide.max(axis=1, keepdims=True))
    expected = _oracle(graph, base / base.sum(axis=1, keepdims=True), labels)
    expected /= expected.sum(axis=1, keepdims=True)
    found = torch.from_numpy(_found(model, graph, x, labels, LARGE))
    made = torch.cat([1 - found.sigmoid(), found.sigmoid()], dim=1) if width == 1 else found.softmax(dim=1)
    # Float32 rounding, multiplied by a scale of at most 1000.
    np.testing.assert_allclose(made.numpy(), expected, atol=2e-4)


def _dense(model: Any, x: NDArray[np.float32]) -> Wide:
    linear = model.convs[0].lin
    result: Wide = x.astype(np.float64) @ linear.weight.detach().double().numpy().T
    return result + linear.bias.detach().double().numpy()


@pytest.mark.parametrize("small", [255_000, 265_000, 280_000])
def test_rows_on_the_disk_are_those_in_memory_bit_for_bit(tmp_path, monkeypatch, small: int) -> None:
    random, width = np.random.default_rng(1), 100
    graph, model = _graph(random, 100), _model(random, width)
    labels = _labels(random, 20, width)
    x = random.integers(-4, 5, (N, F)).astype(np.float32)
    in_memory = _found(model, graph, x, labels, LARGE)
    monkeypatch.setattr(correct_and_smooth, "RamRows", None)  # rows in memory would fail
    on_disk = _found(model, graph, x, labels, small, scratch=tmp_path)
    assert in_memory.tobytes() == on_disk.tobytes()
    assert list(tmp_path.iterdir()) == []
