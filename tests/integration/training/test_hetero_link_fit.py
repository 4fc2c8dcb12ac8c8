from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_forward import dense_rows

from gloader import Dataset
from gloader.config import LinkConfig, LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.errors import CheckpointError, ConfigError
from gloader.training import train
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.link_judge import LinkJudge, LinkMetric, auc
from gloader.training.predict import embed, predict, score_pairs
from gloader.training.train import FitResult, RunFiles

USERS, ITEMS, KINDS = 80, 60, 3
BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")
LOADER = LoaderSettings.of(fanouts=(5, 5), batch_size=64, threads=1, memory_budget=300_000_000)


def fit(dataset, *, name="rsage", links=None, epochs=8, loader=LOADER, **files) -> FitResult:
    settings = TrainSettings(
        model=ModelConfig(name=name, hidden=16, dropout=0.0, heads=2),
        optim=OptimConfig(epochs=epochs, lr=0.02),
        loader=loader,
        task="link",
        links=links or LinkConfig(exclude="reverse"),
    )
    return train.fit(dataset, settings, files=RunFiles(**files))


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Dataset:
    """Users without features, items with noisy ones, and purchases within a kind."""
    rng = np.random.default_rng(0)
    likes, kind = rng.integers(0, KINDS, USERS), rng.integers(0, KINDS, ITEMS)
    pairs = np.array([(u, i) for u in range(USERS) for i in range(ITEMS) if likes[u] == kind[i]])
    pairs = rng.permutation(pairs)[:600]
    parts = dict(zip(("train", "valid", "test"), np.split(pairs, [480, 540]), strict=True))
    features = np.eye(KINDS, 6)[kind] + rng.normal(scale=0.5, size=(ITEMS, 6))
    path = tmp_path_factory.mktemp("shop") / "dataset"
    return Dataset.from_numpy_hetero(
        path,
        num_nodes={"user": USERS, "item": ITEMS},
        edges={BUYS: parts["train"].T.copy()},
        add_reverse=True,
        features={"item": features.astype(np.float32)},
        labels={"item": np.full(ITEMS, -1)},
        links={
            name: {"edge_index": part.T.copy(), "relation": BUYS, "reverse": BOUGHT}
            for name, part in parts.items()
        },
    )


@pytest.mark.parametrize("name", ["rsage", "rgcn", "rgat"])
def test_links_between_types_are_learned_and_judged_on_the_whole_graph(shop, tmp_path, name) -> None:
    found = fit(shop, name=name, out=tmp_path)
    losses = [record.loss for record in found.runs[0].epochs]
    assert losses[-1] < 0.9 * losses[0]
    assert found.summary["test_auc"] > 0.75
    network = load_checkpoint(tmp_path).model().eval()
    features = {"item": shop.to_numpy()["features"]["item"]}
    rows = dense_rows(network.encoder, shop.load_hetero_graph(), features, num_layers=2)
    table = shop.link_table("test")
    with table.open(max_bytes=1 << 20) as opened:
        edges = opened.read(np.arange(table.num_rows))
    wrong = LinkJudge.of(shop, table, LinkMetric("auc"))._drawn(0, table.num_rows)
    positives, negatives = (
        (rows["user"][edges.sources] * rows["item"][ids]).sum(1).float().numpy()
        for ids in (edges.destinations, wrong)
    )
    assert found.summary["test_auc"] == pytest.approx(auc([positives], lambda: [negatives]), abs=1e-3)


def test_embeddings_and_scores_of_a_run_are_those_of_its_checkpoint(shop, tmp_path) -> None:
    fit(shop, out=tmp_path, epochs=1)
    checkpoint = load_checkpoint(tmp_path)
    made = {}
    for name in ("user", "item"):
        with embed(shop, checkpoint, node_type=name) as opened:
            made[name] = np.concatenate(list(opened.chunks))
    assert {name: rows.shape for name, rows in made.items()} == {"user": (USERS, 16), "item": (ITEMS, 16)}
    pairs = np.array([[0, 1], [79, 59], [3, 1]])
    expected = (made["user"][pairs[:, 0]] * made["item"][pairs[:, 1]]).sum(1)
    assert score_pairs(shop, checkpoint, pairs) == pytest.approx(expected, rel=1e-4)
    assert score_pairs(shop, checkpoint, pairs[:0]).shape == (0,)
    with (
        pytest.raises(ConfigError, match="links lead from type 'user' to 'item': choose one"),
        embed(shop, checkpoint),
    ):
        pass
    with pytest.raises(ConfigError, match="the checkpoint predicts links, and knows no classes"):
        predict(shop, checkpoint)


def test_a_resumed_run_with_learned_rows_is_the_uninterrupted_one(shop, tmp_path) -> None:
    whole = fit(shop, epochs=4, out=tmp_path / "whole")
    fit(shop, epochs=2, out=tmp_path / "cut")
    resumed = fit(shop, epochs=4, out=tmp_path / "cut", resume=True)
    assert [r.loss for r in whole.runs[0].epochs] == [r.loss for r in resumed.runs[0].epochs]
    first, second = (load_checkpoint(tmp_path / name) for name in ("whole", "cut"))
    assert all(torch.equal(first.weights[name], value) for name, value in second.weights.items())


def test_a_checkpoint_of_another_graph_is_refused(shop, tmp_path, communities) -> None:
    fit(shop, epochs=1, out=tmp_path)
    with pytest.raises(CheckpointError, match="the checkpoint is of another dataset: its node types"):
        score_pairs(communities, load_checkpoint(tmp_path), np.zeros((1, 2), np.int64))


def test_a_model_of_one_type_is_refused(shop) -> None:
    with pytest.raises(ConfigError, match="model 'graphsage' is for graphs of one node type"):
        fit(shop, name="graphsage")
