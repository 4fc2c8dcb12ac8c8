"""Training on knowledge graphs: ranks as by a plain loop, the same bits in any memory, resume, answers, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from knowledge_worlds import HeldEntities, plain_rank, prepare_parts, random_parts, triple_score

from gloader.config import (
    KNOWLEDGE_MODELS,
    EmbedConfig,
    KnowledgeConfig,
    LinkConfig,
    LoaderSettings,
    ModelConfig,
    OptimConfig,
    StepConfig,
    TrainSettings,
)
from gloader.dataset import Dataset
from gloader.errors import CheckpointError, ConfigError, ShapeError
from gloader.loader import LinkLoader
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.dataset_checks import require_dataset
from gloader.training.knowledge_answers import answer_queries, open_ranker
from gloader.training.knowledge_ranks import read_triples
from gloader.training.predict import embed, predict
from gloader.training.train import RunFiles, fit

SETTINGS = TrainSettings(
    task="kg",
    model=ModelConfig(name="complex"),
    optim=OptimConfig(epochs=3),
    loader=LoaderSettings.of(fanouts=(5, 5), batch_size=32, threads=1, memory_budget=1_500_000_000),
    links=LinkConfig(negatives="uniform:16,shared"),
    knowledge=KnowledgeConfig(dim=8),
    embed=EmbedConfig(lr=0.1),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Dataset:
    return prepare_parts(tmp_path_factory.mktemp("kg"), random_parts(num_entities=40, sizes=(400, 40, 40)))


@pytest.fixture(scope="module")
def run(world, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    fit(world, SETTINGS, files=RunFiles(out=out))
    return out


def figures(result):
    (run,) = result.runs
    return [(epoch.loss, epoch.valid_acc) for epoch in run.epochs], run.test_acc


@pytest.mark.parametrize("name", KNOWLEDGE_MODELS)
def test_every_model_learns_and_its_test_is_that_of_a_plain_loop(world, tmp_path, name):
    settings = replace(SETTINGS, model=ModelConfig(name=name))
    result = fit(world, settings, files=RunFiles(out=tmp_path / "run"))
    losses = [epoch.loss for epoch in result.runs[0].epochs]
    assert losses[-1] < losses[0]
    checkpoint = load_checkpoint(tmp_path / "run")
    known, tables = set(), world.link_tables
    for table in tables.values():
        for part in read_triples(table):
            known |= set(zip(part.heads.tolist(), part.relations.tolist(), part.tails.tolist(), strict=True))
    with open_ranker(world, checkpoint) as ranker:
        rows = ranker.entities.rows(np.arange(40))
        network = ranker.network
    (test,) = read_triples(tables["test"])
    triples = zip(test.heads.tolist(), test.relations.tolist(), test.tails.tolist(), strict=True)
    ranks = [
        plain_rank(network, rows, triple, known, asks_heads=side)
        for triple in triples
        for side in (True, False)
    ]
    assert result.summary["test_mrr"] == pytest.approx(np.mean(1 / np.array(ranks)), rel=1e-9)
    assert result.summary["metric"] == "mrr"


def test_memory_threads_and_superbatches_change_no_bit(world, run, tmp_path):
    small = replace(
        SETTINGS,
        loader=SETTINGS.loader.changed(batch_size=5),
        links=replace(SETTINGS.links, negatives="uniform:4,shared"),
        optim=replace(SETTINGS.optim, epochs=2),
    )
    other = replace(
        small,
        loader=small.loader.changed(threads=2, superbatch=7),
        embed=replace(SETTINGS.embed, cache=0.5),  # of the rows, as many as the largest batch has
    )
    assert figures(fit(world, other, files=RunFiles(out=tmp_path / "run"))) == figures(fit(world, small))


class InterruptingLoader(LinkLoader):
    """Fails before a batch of the second epoch."""

    def __iter__(self):
        for batch in super().__iter__():
            if (batch.id.epoch, batch.id.index) == (1, 6):
                raise RuntimeError("the power went out")
            yield batch


def test_a_resumed_run_is_the_uninterrupted_one(world, tmp_path, monkeypatch):
    settings = replace(SETTINGS, optim=replace(SETTINGS.optim, checkpoint_every=4))
    with monkeypatch.context() as patched:
        patched.setattr("gloader.training.knowledge_task.LinkLoader", InterruptingLoader)
        with pytest.raises(RuntimeError, match="the power went out"):
            fit(world, settings, files=RunFiles(out=tmp_path / "run"))
    assert load_checkpoint(tmp_path / "run").position == (1, 4)
    other = replace(settings, knowledge=replace(SETTINGS.knowledge, dim=16))
    with pytest.raises(CheckpointError, match="dim is 8 there and 16 here"):
        fit(world, other, files=RunFiles(out=tmp_path / "run", resume=True))
    resumed = fit(world, settings, files=RunFiles(out=tmp_path / "run", resume=True))
    assert figures(resumed) == figures(fit(world, settings))


def test_answers_by_key_are_the_best_entities(world, run):
    checkpoint = load_checkpoint(run)
    entities = world.node_tables["entity"]
    with open_ranker(world, checkpoint) as ranker:
        rows, network = ranker.entities.rows(np.arange(40)), ranker.network
    relation = int(world.node_tables["relation"].ids_of(["r1"])[0])
    head = int(entities.ids_of(["e3"])[0])
    (train,) = read_triples(world.link_table("train"))
    known = set(train.tails[(train.heads == head) & (train.relations == relation)].tolist())
    for is_known in (True, False):
        keys, scores = answer_queries(
            world, checkpoint, heads=["e3", "e4"], relations=["r1", "r1"], k=4, known=is_known
        )
        found = entities.ids_of(keys[0])
        allowed = [e for e in range(40) if is_known or e not in known]
        wanted = [np.float32(triple_score(network, rows, head, relation, e)) for e in allowed]
        assert scores[0].tolist() == sorted(wanted, reverse=True)[:4] or not is_known
        assert not set(found.tolist()) & known or is_known
    keys, _ = answer_queries(world, checkpoint, tails=["e3"], relations=["r1"], k=2)
    assert keys.shape == (1, 2)
    with pytest.raises(ConfigError, match="pass heads= to ask for tails, or tails= for heads"):
        answer_queries(world, checkpoint, relations=["r1"])
    with pytest.raises(ShapeError, match="there are 2 entities and 1 relations"):
        answer_queries(world, checkpoint, heads=["e1", "e2"], relations=["r1"])


def test_a_checkpoint_answers_for_its_own_graph_alone(world, run, tmp_path):
    other = prepare_parts(tmp_path, random_parts(num_entities=40, sizes=(400, 40, 40), seed=1))
    with pytest.raises(CheckpointError, match=r"is of another knowledge graph, .* and other triples or keys"):
        answer_queries(other, load_checkpoint(run), heads=["e1"], relations=["r1"])


def test_a_model_of_triples_predicts_nothing_else(world, run):
    checkpoint = load_checkpoint(run)
    with pytest.raises(ConfigError, match="the checkpoint scores triples, and predicts nothing of nodes"):
        predict(world, checkpoint)
    with (
        pytest.raises(ConfigError, match="the checkpoint scores triples"),
        embed(world, checkpoint, layer=1, node_type="entity"),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ModelConfig(name="rsage")}, "model 'rsage' does not score triples; give --model complex"),
        (
            {"links": LinkConfig(negatives="uniform:1")},
            "--negatives uniform:1 are not for --task kg, .*give --negatives uniform:256,shared",
        ),
        ({"links": LinkConfig(negatives="in_batch")}, "--negatives in_batch are not for --task kg"),
        ({"embed": EmbedConfig(lr=0.0)}, "--embed-lr is 0.0; allowed: a positive number"),
        (
            {"model": ModelConfig(name="transe"), "knowledge": KnowledgeConfig(margin=float("nan"))},
            "--margin nan is no distance; give a finite number",
        ),
        (
            {"model": ModelConfig(name="rotate"), "knowledge": KnowledgeConfig(margin=-3.0)},
            "--margin -3.0 is no distance; give a finite number",
        ),
        (
            {"knowledge": KnowledgeConfig(margin=3.0)},
            "--margin is for transe and rotate, and the model is comple",
        ),
        (
            {"model": ModelConfig(name="rotate"), "knowledge": KnowledgeConfig(norm=2)},
            "--norm is for transe, and the model is rotate; leave it out",
        ),
        (
            {"links": replace(SETTINGS.links, metric="auc")},
            "--metric auc is not for triples, whose metric is mrr; leave it out",
        ),
        ({"links": replace(SETTINGS.links, exclude="self")}, "--exclude has no meaning for --task kg"),
        ({"table": "churn"}, "--table has no meaning"),
        ({"step": StepConfig(compile=True)}, "--compile has no meaning"),
        (
            {"embed": EmbedConfig(dims={"entity": 3})},
            "--embed has no meaning .*, and give the width of the rows by --dim",
        ),
        ({"knowledge": KnowledgeConfig(dim=7)}, "dim is 7, and model 'complex' has complex numbers"),
        ({"optim": OptimConfig(balance="classes")}, "--balance classes is for classes of nodes"),
    ],
)
def test_settings_that_do_not_fit_are_refused(world, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        fit(world, replace(SETTINGS, **changes), files=RunFiles(out=tmp_path / "run"))
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_other_graphs_and_other_tasks_are_refused(world, tmp_path):
    plain = Dataset.from_numpy(
        tmp_path / "plain",
        edge_index=np.array([[0, 1], [1, 2]]),
        features=np.zeros((3, 2), np.float32),
        labels=np.zeros(3, np.int64),
        train=np.arange(3),
        valid=np.arange(0),
        test=np.arange(0),
    )
    with pytest.raises(
        ConfigError, match=r"--task kg learns the triples .* make one with `gloader prepare triples:"
    ):
        fit(plain, SETTINGS)
    with pytest.raises(ConfigError, match="model 'complex' scores triples, and learns them with --task kg"):
        fit(plain, replace(SETTINGS, task="node", links=LinkConfig()))
    with pytest.raises(ConfigError, match=r"no training nodes .*; predict its triples with --task kg"):
        fit(world, replace(SETTINGS, task="node", model=ModelConfig(name="rsage"), links=LinkConfig()))
    with pytest.raises(ConfigError, match="uniform:16,shared are for knowledge graphs"):
        fit(world, replace(SETTINGS, task="link", model=ModelConfig(name="rsage")))


def test_shared_negatives_come_to_the_loop_and_are_the_same_with_any_threads(world):
    found = []
    for threads in (1, 3):
        with LinkLoader(
            world, fanouts=[], batch_size=64, negatives="uniform:7,shared", threads=threads
        ) as loader:
            found.append([(b.pairs, b.labels, b.shared, b.typed.nodes["entity"]) for b in loader])
            assert all(b.typed.blocks == () for b in loader)
    assert len(found[0]) == 7
    for ours, theirs in zip(*found, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
        assert ours[2].shape == (2, 7)
        assert ours[2].dtype == ours[1].dtype == torch.int64


def test_a_table_of_entities_in_memory_ranks_as_the_run_did(world, run):
    checkpoint = load_checkpoint(run)
    (test,) = read_triples(world.link_table("test"))
    with open_ranker(world, checkpoint) as ranker:
        held = replace(ranker, entities=HeldEntities(ranker.entities.rows(np.arange(40))))
        for side in (True, False):
            assert ranker.ranks(test, asks_heads=side).tolist() == held.ranks(test, asks_heads=side).tolist()


def test_settings_of_triples_are_refused_for_other_tasks(world):
    settings = replace(SETTINGS, task="link", knowledge=KnowledgeConfig(dim=8))
    with pytest.raises(ConfigError, match="--dim is for --task kg, and the task is link; leave it out"):
        require_dataset(settings, world)
