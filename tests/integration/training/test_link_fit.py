from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from link_datasets import community_edges, split_communities, write_links

from gloader import Dataset
from gloader.cli.main import main
from gloader.config import LinkConfig, LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.errors import CheckpointError, ConfigError, ShapeError, StateError
from gloader.lab.report.build_page import read_training
from gloader.lab.report.run_facts import facts_of
from gloader.loader import LinkLoader
from gloader.training import train
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.link_judge import LinkJudge, LinkMetric, auc, hits, reciprocal_ranks
from gloader.training.predict import score_pairs
from gloader.training.train import FitResult, RunFiles

N = 120
MODEL = ModelConfig(hidden=16, dropout=0.0)
OPTIM = OptimConfig(epochs=3, lr=0.02)
LOADER = LoaderSettings.of(fanouts=(5, 5), batch_size=64, threads=1, memory_budget=300_000_000)
LINKS = LinkConfig()
BATCHES = 6  # of 384 training edges


def fit(
    dataset, links: LinkConfig = LINKS, *, model=MODEL, optim=OPTIM, loader=LOADER, runs=1, **rest
) -> FitResult:
    settings = TrainSettings(model=model, optim=optim, loader=loader, task="link", links=links, runs=runs)
    keywords = {name: rest.pop(name) for name in ("reporter", "loader_factory") if name in rest}
    return train.fit(dataset, settings, files=RunFiles(**rest), **keywords)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return split_communities(tmp_path_factory.mktemp("plain") / "dataset")


@pytest.fixture(scope="module")
def per_row(tmp_path_factory):
    return split_communities(tmp_path_factory.mktemp("per_row") / "dataset", per_row=20)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return split_communities(tmp_path_factory.mktemp("shared") / "dataset", shared=200)


@pytest.mark.parametrize("exclude", ["none", "self", "reverse"])
@pytest.mark.parametrize("decoder", ["dot", "mlp"])
def test_communities_are_learned_from_their_edges(plain, decoder, exclude) -> None:
    links = LinkConfig(decoder=decoder, exclude=exclude)
    found = fit(plain, links, optim=replace(OPTIM, epochs=6))
    losses = [record.loss for record in found.runs[0].epochs]
    assert losses[-1] < 0.8 * losses[0]
    assert found.runs[0].epochs[-1].train_acc > 0.7
    assert found.summary["metric"] == "auc"
    assert found.summary["test_auc"] > 0.8


@pytest.mark.parametrize(
    "negatives", ["uniform:3", "uniform:1,strict", "binary:1.5", "in_batch", "table:wrong"]
)
def test_every_kind_of_negatives_is_trained_with(tmp_path, negatives) -> None:
    of, edges = community_edges(N)
    rng = np.random.default_rng(3)
    tables = {"train": {"pairs": edges}, "wrong": {"pairs": rng.integers(0, N, (300, 2))}}
    dataset = write_links(tmp_path / "ds", tables, num_nodes=N, graph=edges, features=np.eye(4, 8)[of])
    found = fit(dataset, LinkConfig(negatives=negatives)).runs[0]
    assert found.epochs[-1].loss < found.epochs[0].loss
    assert (found.best_epoch, found.valid_acc, found.test_acc) == (2, None, None)


@pytest.mark.parametrize(("name", "metric"), [("plain", "auc"), ("per_row", "mrr"), ("shared", "hits@50")])
def test_the_metric_is_that_of_the_given_negatives(request, tmp_path, name, metric) -> None:
    found = fit(request.getfixturevalue(name), out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result == found.summary
    assert (result["task"], result["metric"]) == ("link", metric)
    assert result[f"valid_{metric}"] == max(line[f"valid_{metric}"] for line in lines)
    assert 0.3 < result[f"test_{metric}"] <= 1
    assert "valid_acc" not in lines[0]
    assert "test_acc" not in result
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["task"] == "link"
    assert config["links"]["negatives"] == "uniform:1"


def _whole_graph(dataset, folder) -> tuple[np.ndarray, Any]:
    """Return the embeddings of all nodes by plain torch on the whole graph, and the decoder."""
    network = load_checkpoint(folder).model().eval()
    arrays = dataset.to_numpy()
    matrix = torch.zeros(N, N)
    matrix[np.repeat(np.arange(N), np.diff(arrays["indptr"])), arrays["indices"].copy()] = 1
    x = torch.from_numpy(arrays["features"])
    with torch.no_grad():
        for depth, conv in enumerate(network.encoder.convs):
            x = torch.relu(x) if depth else x
            mean = matrix @ x / matrix.sum(1, keepdim=True).clamp(min=1)
            x = conv.lin_l(mean) + conv.lin_r(x)
    return x, network.decoder


@pytest.mark.parametrize("decoder", ["dot", "mlp"])
@pytest.mark.parametrize(
    ("name", "metric"), [("plain", "auc"), ("per_row", "mrr"), ("shared", "hits@20"), ("per_row", "hits@3"),
                         ("per_row", "auc"), ("shared", "auc"), ("plain", "hits@5")],
)  # fmt: skip
def test_evaluation_is_that_of_plain_torch_on_the_whole_graph(
    request, tmp_path, name, metric, decoder
) -> None:
    dataset = request.getfixturevalue(name)
    links = LinkConfig(decoder=decoder, metric=metric)
    found = fit(dataset, links, optim=replace(OPTIM, epochs=1), out=tmp_path).summary
    rows, decode = _whole_graph(dataset, tmp_path)

    def score(pairs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return decode(rows[pairs[:, 0]], rows[pairs[:, 1]]).numpy()

    for split in ("valid", "test"):
        table = dataset.link_table(split)
        with table.open(max_bytes=1 << 20) as opened:
            edges = opened.read(np.arange(table.num_rows))
        pairs = np.stack([edges.sources, edges.destinations], axis=1)
        positives = score(pairs)
        if edges.negatives is not None:
            wrong = np.stack([np.repeat(edges.sources, 20), edges.negatives.ravel()], axis=1)
        elif name == "shared":
            with dataset.link_table(f"{split}_neg").open(max_bytes=1 << 20) as opened:
                given = opened.read(np.arange(200))
            wrong = np.stack([given.sources, given.destinations], axis=1)
        else:
            judge = LinkJudge.of(dataset, table, LinkMetric("auc"))
            wrong = np.stack([edges.sources, judge._drawn(0, len(pairs))], axis=1)
        negatives = score(wrong)
        if metric == "auc":
            expected = auc([positives], lambda scores=negatives: [scores])
        elif metric == "mrr":
            expected = reciprocal_ranks(positives, negatives.reshape(-1, 20)).mean()
        elif name == "per_row":
            as_good = (negatives.reshape(-1, 20) >= positives[:, None]).sum(1)
            expected = (as_good < int(metric[5:])).mean()
        else:
            expected = hits([positives], [negatives], int(metric[5:]))
        assert found[f"{split}_{metric}"] == pytest.approx(expected, abs=1e-4)
        assert expected > 0.05


def test_embeddings_on_the_disk_give_the_same_figures(per_row, monkeypatch) -> None:
    expected = fit(per_row).summary
    taken = []

    def small(self, *args, budget_bytes, **rest):
        taken.append(args)
        return init(self, *args, budget_bytes=20_000, **rest)

    from gloader.training.inference import layer_plan
    from gloader.training.link_judge import PairScorer

    init = PairScorer.__init__
    monkeypatch.setattr(PairScorer, "__init__", small)
    plan = layer_plan.plan_inference
    monkeypatch.setattr(
        "gloader.training.inference.placement.plan_inference",
        lambda *a, **k: tuple(
            {name: replace(part, is_on_disk=True) for name, part in types.items()} for types in plan(*a, **k)
        ),
    )
    found = fit(per_row, loader=LOADER.changed(features="ssd", cache=1000)).summary
    assert len(taken) == 4
    for name in ("valid_mrr", "test_mrr"):
        assert found[name] == pytest.approx(expected[name], abs=1e-6)


class InterruptingLoader(LinkLoader):
    """Fails instead of handing out batch ``fail_at``, counted over all epochs."""

    fail_at = 0

    def __iter__(self):
        for batch in super().__iter__():
            if batch.id.epoch * BATCHES + batch.id.index == self.fail_at:
                raise RuntimeError("the power went out")
            yield batch


@pytest.mark.parametrize("fail_at", [3, BATCHES + 2])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(per_row, tmp_path, monkeypatch, fail_at) -> None:
    links = LinkConfig(decoder="mlp", exclude="reverse", negatives="uniform:2")
    model, optim = replace(MODEL, dropout=0.3), replace(OPTIM, checkpoint_every=2)
    whole = fit(per_row, links, model=model, optim=optim, out=tmp_path / "whole")
    monkeypatch.setattr(InterruptingLoader, "fail_at", fail_at)
    monkeypatch.setattr("gloader.training.link_prediction.LinkLoader", InterruptingLoader)
    with pytest.raises(RuntimeError, match="the power went out"):
        fit(per_row, links, model=model, optim=optim, out=tmp_path / "cut")
    monkeypatch.undo()
    resumed = fit(per_row, links, model=model, optim=optim, out=tmp_path / "cut", resume=True)
    for a, b in zip(whole.runs[0].epochs, resumed.runs[0].epochs, strict=True):
        assert (a.loss, a.train_acc, a.valid_acc) == (b.loss, b.train_acc, b.valid_acc)
    assert whole.runs[0].test_acc == resumed.runs[0].test_acc
    first, second = (load_checkpoint(tmp_path / name) for name in ("whole", "cut"))
    assert all(torch.equal(first.weights[name], value) for name, value in second.weights.items())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"exclude": "self"}, StateError),
        ({"negatives": "uniform:2"}, StateError),
        ({"metric": "hits@5"}, StateError),
        ({"eval_edges": ("test", "valid")}, StateError),
        ({"decoder": "mlp"}, CheckpointError),
    ],
)
def test_a_run_does_not_go_on_with_other_settings_of_links(plain, tmp_path, change, error) -> None:
    optim = replace(OPTIM, epochs=1)
    fit(plain, LINKS, optim=optim, out=tmp_path)
    (name,) = change
    with pytest.raises(error, match=f"the checkpoint is of a run with other settings: {name} is "):
        fit(plain, LinkConfig(**change), optim=optim, out=tmp_path, resume=True)


def test_patience_follows_the_metric(plain) -> None:
    (run,) = fit(plain, optim=replace(OPTIM, epochs=60, lr=0.05, patience=2)).runs
    assert len(run.epochs) == run.best_epoch + 1 + 2
    assert run.valid_acc == max(record.valid_acc for record in run.epochs)


def test_runs_differ_in_their_seed_alone(plain, tmp_path) -> None:
    found = fit(plain, runs=2, out=tmp_path)
    assert found.runs[0].epochs[0].loss != found.runs[1].epochs[0].loss
    values = [run["test_auc"] for run in found.summary["runs"]]
    assert found.summary["test_auc"] == pytest.approx(np.mean(values))
    assert found.summary["best_run"] == int(np.argmax([run["valid_auc"] for run in found.summary["runs"]]))


def _labelled(path: Path, labels: np.ndarray, of: np.ndarray, edges: np.ndarray):
    cuts = [300, 360]
    tables = {
        name: {"pairs": pairs, "labels": values}
        for name, pairs, values in zip(
            ("train", "valid", "test"), np.split(edges, cuts), np.split(labels, cuts), strict=True
        )
    }
    return write_links(path, tables, num_nodes=N, graph=edges[:300], features=np.eye(4, 8)[of])


def test_classes_of_edges_are_learned(tmp_path) -> None:
    of, edges = community_edges(N)
    dataset = _labelled(tmp_path / "ds", of[edges[:, 0]].astype(np.int64), of, edges)
    links = LinkConfig(negatives="none", decoder="mlp")
    found = fit(dataset, links, optim=replace(OPTIM, epochs=8))
    assert found.summary["metric"] == "acc"
    assert found.summary["test_acc"] > 0.9
    assert found.runs[0].epochs[-1].train_acc > 0.9
    assert (
        fit(dataset, replace(links, metric="acc"), optim=replace(OPTIM, epochs=1)).summary["metric"] == "acc"
    )
    with pytest.raises(
        ConfigError, match="metric rmse is not for the classes of links, which --negatives none"
    ):
        fit(dataset, replace(links, metric="rmse"))
    with pytest.raises(
        ConfigError, match="decoder 'dot' gives one score per pair, and the links have 4 classes"
    ):
        fit(dataset, replace(links, decoder="dot"))


def test_values_of_edges_are_learned_and_less_error_is_better(tmp_path) -> None:
    of, edges = community_edges(N)
    dataset = _labelled(tmp_path / "ds", of[edges[:, 0]].astype(np.float32), of, edges)
    found = fit(dataset, LinkConfig(negatives="none", decoder="mlp"), optim=replace(OPTIM, epochs=8))
    errors = [record.valid_acc for record in found.runs[0].epochs]
    assert found.summary["metric"] == "rmse"
    assert found.runs[0].best_epoch == int(np.argmin(errors))
    assert found.summary["test_rmse"] < 0.6 < errors[0]


def test_a_dataset_without_link_tables_says_how_they_are_made(communities) -> None:
    with pytest.raises(
        ConfigError, match=r"has no link tables, .* make some with `gloader prepare --edge-split 80"
    ):
        fit(communities)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({"edges": "trian"}, r"has no edges 'trian' to predict; it has 'train', 'valid', 'test'"),
        (
            {"eval_edges": ("valid", "tset")},
            r"has no edges 'tset' to predict; it has 'train', 'valid', 'test'",
        ),
        ({"eval_edges": ("valid",)}, "eval_edges names 1 link tables: valid; write two"),
        ({"metric": "mrr"}, "metric mrr ranks each edge among negatives of its own, and links 'valid'"),
        (
            {"metric": "acc"},
            "metric acc is for labels of links, which --negatives none learns; edges are told from",
        ),
        (
            {"metric": "auroc"},
            "not known; .* mrr, auc; for labels of links, .* acc .classes. or rmse .values.",
        ),
        ({"metric": "ndcg"}, "metric 'ndcg' is not known; allowed: auto, hits@K"),
        ({"negatives": "some"}, "'some' names no negatives; write 'uniform:5'"),
        ({"negatives": "none"}, "--negatives none learns the labels of edges, and links 'train' have none"),
        ({"negatives": "table:wrong"}, "has no edges 'wrong' to predict"),
        ({"exclude": "both"}, r"exclude='both' is not one of 'none', 'self', 'reverse'"),
        ({"decoder": "cosine"}, "decoder 'cosine' is not known; allowed: dot, mlp"),
    ],
)
def test_what_does_not_fit_the_dataset_is_refused_in_a_sentence(plain, links, message) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(plain, LinkConfig(**links))


def test_held_out_edges_in_the_graph_are_counted_in_a_warning(tmp_path, caplog) -> None:
    of, edges = community_edges(N)
    tables = {"train": {"pairs": edges[:300]}, "valid": {"pairs": edges[290:320]}}
    dataset = write_links(tmp_path / "ds", tables, num_nodes=N, graph=edges[:300], features=np.eye(4, 8)[of])
    fit(dataset, optim=replace(OPTIM, epochs=1))
    assert "10 of the 30 edges of links 'valid' are in the graph" in caplog.text


def test_a_typed_model_learns_rows_of_a_graph_of_one_type(plain) -> None:
    found = fit(plain, model=replace(MODEL, name="rsage"), optim=replace(OPTIM, epochs=4))
    assert found.summary["test_auc"] > 0.75


@pytest.fixture(scope="module")
def turned(tmp_path_factory):
    """Nodes that lie in another order than in the source."""
    order = np.random.default_rng(9).permutation(N)
    return split_communities(tmp_path_factory.mktemp("turned") / "dataset", original_ids=order)


def test_infer_writes_embeddings_in_the_order_of_the_source(turned, tmp_path, capsys) -> None:
    fit(turned, optim=replace(OPTIM, epochs=1), out=tmp_path / "run")
    out = tmp_path / "embeddings.npy"
    words = ["infer", "--dataset", str(turned.root), "--checkpoint", str(tmp_path / "run")]
    assert main([*words, "--out", str(out)]) == 0
    assert "embeddings of 120 nodes in" in capsys.readouterr().out
    expected, _ = _whole_graph(turned, tmp_path / "run")
    assert np.load(out)[turned.original_ids] == pytest.approx(expected.numpy(), abs=1e-5)
    np.save(tmp_path / "pairs.npy", np.array([[0, 1], [N - 1, 5]]))
    scores = tmp_path / "scores.npy"
    assert main([*words, "--pairs", str(tmp_path / "pairs.npy"), "--out", str(scores), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_pairs"] == 2
    rows = np.load(out)
    assert np.load(scores) == pytest.approx([rows[0] @ rows[1], rows[N - 1] @ rows[5]], rel=1e-4)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            np.zeros((2, 3), np.int64),
            r"pairs are int64 of shape \(2, 3\); they must be whole numbers, \(n, 2\)",
        ),
        (np.zeros((2, 2)), r"pairs are float64 of shape \(2, 2\)"),
        (np.array([[0, N]]), r"nodes of type 'node' are 0..119; these pairs name \[120\]"),
        (np.array([[-1, 0]]), r"these pairs name \[-1\]"),
    ],
)
def test_pairs_that_are_none_are_refused(plain, tmp_path, pairs, message) -> None:
    fit(plain, optim=replace(OPTIM, epochs=1), out=tmp_path)
    with pytest.raises(ShapeError, match=message):
        score_pairs(plain, load_checkpoint(tmp_path), pairs)


def test_the_command_line_trains_and_repeats_a_run_of_links(per_row, tmp_path, capsys) -> None:
    words = ["train", "--dataset", str(per_row.root), "--task", "link", "--negatives", "uniform:2", "--json"]
    words += ["--exclude", "reverse", "--decoder", "mlp", "--eval-edges", "test,valid", "--fanout", "3,3"]
    words += [
        "--batch-size",
        "64",
        "--hidden",
        "8",
        "--epochs",
        "1",
        "--threads",
        "1",
        "--memory-budget",
        "300MB",
    ]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    first = json.loads(capsys.readouterr().out)
    again = [
        "train",
        "--config",
        str(tmp_path / "run" / "config.yaml"),
        "--dataset",
        str(per_row.root),
        "--json",
    ]
    assert main([*again, "--out", str(tmp_path / "again")]) == 0
    second = json.loads(capsys.readouterr().out)
    assert (first["task"], first["metric"]) == ("link", "mrr")
    assert second["test_mrr"] == first["test_mrr"]
    config = yaml.safe_load((tmp_path / "again" / "config.yaml").read_text())
    assert config["links"]["eval_edges"] == ["test", "valid"]
    words[words.index("uniform:2")] = "all"
    assert main([*words, "--out", str(tmp_path / "bad")]) == 2
    assert "'all' names no negatives; write 'uniform:5'" in capsys.readouterr().err


def test_a_screen_and_a_report_name_the_metric(per_row, tmp_path, capsys) -> None:
    words = ["train", "--dataset", str(per_row.root), "--task", "link", "--hidden", "8", "--epochs", "1"]
    words += [
        "--threads",
        "1",
        "--memory-budget",
        "300MB",
        "--fanout",
        "3,3",
        "--batch-size",
        "64",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "test mrr" in shown
    assert "validation mrr" in shown
    assert "test mrr" in dict(facts_of(read_training(tmp_path / "run")))


def test_links_are_learned_from_the_edges_before_them(tmp_path) -> None:
    of, edges = community_edges(N)
    dataset = Dataset.from_numpy(
        tmp_path / "timed",
        edge_index=edges.T,
        edge_time=np.arange(len(edges)),
        edge_split=(0.8, 0.1, 0.1),
        features=np.eye(4, 8, dtype=np.float32)[of],
        labels=np.full(N, -1),
        train=np.empty(0, np.int64),
        valid=np.empty(0, np.int64),
        test=np.empty(0, np.int64),
    )
    loader = replace(LOADER, sampling=replace(LOADER.sampling, time_strategy="last"))
    found = fit(dataset, LinkConfig(exclude="reverse"), loader=loader)
    losses = [record.loss for record in found.runs[0].epochs]
    assert losses[-1] < losses[0]
