"""Predictions and embeddings of a dataset of several types, from a checkpoint, through the command line and without."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dense_forward import dense_logits, dense_rows

from gloader.cli.main import main
from gloader.config import LoaderSettings, ModelConfig, OptimConfig, StepConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.dataset.topology import open_topology
from gloader.errors import BudgetError, CheckpointError, ConfigError
from gloader.models import Schema
from gloader.observe.peak_memory import PeakMemory
from gloader.training.checkpoint.save import Checkpoint, load_checkpoint, save_checkpoint
from gloader.training.inference.layerwise_inference import HeteroInference
from gloader.training.inference.placement import OutputRoom
from gloader.training.model_spec import HeteroModelSpec, ModelSpec, schema_of
from gloader.training.predict import embed, predict, predictions
from gloader.training.train import RunFiles, fit
from gloader.types import NODE, Relation

SIZES = {"paper": 700, "author": 500, "institute": 20, "field": 15}
DIMS = {"paper": 6, "institute": 3, "field": 4}
RELATIONS: tuple[Relation, ...] = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "written_by", "author"),
    ("institute", "employs", "author"),
    ("paper", "has", "field"),
)
SMALL_BUDGET = 230_000  # activations go to the disk


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    """A graph whose nodes are stored in another order than the source's."""
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("predict") / "graph"
    with Dataset.create_hetero(
        path, name="papers", num_nodes=SIZES, relations=RELATIONS, num_classes=3
    ) as writer:
        for name, count in SIZES.items():
            nodes = writer.nodes(name)
            if name in DIMS:
                with nodes.features(DIMS[name], "float32") as rows:
                    rows.append(random.normal(size=(count, DIMS[name])).astype(np.float32))
            nodes.original_ids(random.permutation(count))
        ids = np.arange(SIZES["paper"])
        writer.nodes("paper").labels(ids % 3)
        writer.nodes("paper").splits(train=ids[:100], valid=ids[100:150], test=ids[150:])
        for relation in RELATIONS:
            sources, destinations = SIZES[relation[0]], SIZES[relation[2]]
            degrees = random.integers(0, 12, destinations)
            with writer.edges(relation).indptr() as column:
                column.append(np.concatenate([[0], np.cumsum(degrees)]))
            with writer.edges(relation).indices(int(degrees.sum()), "int32") as column:
                column.append(random.integers(0, sources, degrees.sum()).astype(np.int32))
    return Dataset.open(path)


def checkpoint_of(dataset: Dataset, name: str = "rgat", schema: Schema | None = None) -> Checkpoint:
    spec = HeteroModelSpec(
        config=ModelConfig(name=name, hidden=8, heads=2),  # type: ignore[arg-type]
        schema=schema_of(dataset) if schema is None else schema,
        out_dim=3,
        num_layers=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weights = spec.build().state_dict()
    return Checkpoint(
        run_id="run",
        settings={},
        spec=spec,
        fingerprint=dataset.fingerprint,
        weights=weights,
        progress={"loader": {"next": [0, 0]}},
    )


def features_of(dataset: Dataset) -> dict[str, np.ndarray]:
    return {name: dataset.node_tables[name].all_features() for name in DIMS}


@pytest.mark.parametrize("way", ["in memory", "activations on the disk", "edges on the disk"])
@pytest.mark.parametrize("name", ["rsage", "rgcn", "rgat"])
def test_predictions_are_those_of_the_whole_graph(dataset, name, way, monkeypatch) -> None:
    budget = SMALL_BUDGET if way == "activations on the disk" else None
    if way == "edges on the disk":
        monkeypatch.setattr("gloader.training.open_model.topology_share", lambda _: 0)
    on_disk: list[str] = []
    true = OutputRoom.open

    def noted(room, name, plan, **more):
        on_disk.extend([name] * plan.is_on_disk)
        return true(room, name, plan, **more)

    monkeypatch.setattr(OutputRoom, "open", noted)
    checkpoint = checkpoint_of(dataset, name)
    logits = dense_logits(checkpoint.model(), dataset.load_hetero_graph(), features_of(dataset))
    found = predict(dataset, checkpoint, memory_budget_bytes=budget)
    assert np.array_equal(found, logits.argmax(1).numpy())
    assert bool(on_disk) == (budget is not None)


@pytest.mark.parametrize("node_type", ["author", "paper"])
def test_embeddings_are_rows_of_the_layer_in_the_order_of_the_source(dataset, node_type) -> None:
    checkpoint = checkpoint_of(dataset)
    rows = dense_rows(checkpoint.model(), dataset.load_hetero_graph(), features_of(dataset), num_layers=1)
    expected = dataset.node_tables[node_type].in_original_order(rows[node_type].numpy())
    with embed(dataset, checkpoint, layer=1, node_type=node_type, memory_budget_bytes=SMALL_BUDGET) as made:
        assert (made.num_nodes, made.width) == (SIZES[node_type], 8)
        found = np.concatenate(list(made.chunks))
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-4)


def test_the_command_writes_classes_and_rows_in_the_order_of_the_source(dataset, tmp_path, capsys) -> None:
    checkpoint = checkpoint_of(dataset)
    save_checkpoint(tmp_path / "checkpoint.pt", checkpoint)
    words = ["infer", "--dataset", str(dataset.root), "--checkpoint", str(tmp_path), "--json", "--out"]
    assert main([*words, str(tmp_path / "classes.npy")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["type"], said["layer"], said["num_nodes"]) == ("paper", None, SIZES["paper"])
    expected = dataset.in_original_order(predict(dataset, checkpoint))
    assert np.array_equal(np.load(tmp_path / "classes.npy"), expected)

    assert main([*words, str(tmp_path / "rows.npy"), "--type", "author", "--layer", "1"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["type"], said["layer"], said["num_nodes"]) == ("author", 1, SIZES["author"])
    with embed(dataset, checkpoint, layer=1, node_type="author") as made:
        rows = np.concatenate(list(made.chunks))
    written = np.load(tmp_path / "rows.npy")
    assert written.dtype == np.float32
    np.testing.assert_allclose(written, rows, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--type", "author"],
            "only nodes of type 'paper' have labels; give --layer to write a layer's output",
        ),
        (
            ["--type", "venue", "--layer", "1"],
            "has no node type 'venue'; there are 'paper', 'author', 'institute'",
        ),
        (["--layer", "3"], "layer is 3; the network has the layers 1 to 2"),
        (["--type", "author", "--layer", "2"], "they would not reach the classes of 'paper'; allowed: 1"),
        (
            ["--type", "field", "--layer", "1"],
            "they would not reach the classes of 'paper'; no other layer does either",
        ),
    ],
)
def test_what_cannot_be_written_is_said_in_a_sentence_and_no_file_is_left(
    dataset, tmp_path: Path, capsys, words, message
) -> None:
    save_checkpoint(tmp_path / "checkpoint.pt", checkpoint_of(dataset))
    out = tmp_path / "deep" / "rows.npy"
    asked = [
        "infer",
        "--dataset",
        str(dataset.root),
        "--checkpoint",
        str(tmp_path),
        "--out",
        str(out),
        *words,
    ]
    assert main(asked) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not out.parent.exists()


def test_a_budget_that_is_too_small_is_told_before_there_is_a_file(dataset, tmp_path: Path, capsys) -> None:
    save_checkpoint(tmp_path / "checkpoint.pt", checkpoint_of(dataset))
    out = tmp_path / "deep" / "rows.npy"
    words = ["infer", "--dataset", str(dataset.root), "--checkpoint", str(tmp_path), "--out", str(out)]
    assert main([*words, "--layer", "1", "--memory-budget", "100KB"]) == 2
    assert "memory budget" in capsys.readouterr().err
    assert not out.parent.exists()
    with pytest.raises(BudgetError):
        predict(dataset, checkpoint_of(dataset), memory_budget_bytes=100_000)


@pytest.mark.reliability("S11")
@pytest.mark.parametrize("words", [[], ["--layer", "1"], ["--layer", "1", "--type", "author"]])
def test_a_refusal_names_a_budget_that_is_enough(dataset, tmp_path: Path, capsys, words: list[str]) -> None:
    save_checkpoint(tmp_path / "checkpoint.pt", checkpoint_of(dataset))
    line = ["infer", "--dataset", str(dataset.root), "--checkpoint", str(tmp_path), *words, "--out"]
    assert main([*line, str(tmp_path / "no.npy"), "--memory-budget", "60MB"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    named = re.search(r"the code of the run .* Give --memory-budget ([\d.]+)MB or more$", said)
    assert named is not None, said
    assert main([*line, str(tmp_path / "yes.npy"), "--memory-budget", f"{named[1]}MB"]) == 0
    # Not by much.
    less = f"{float(named[1]) - 4}MB"
    assert main([*line, str(tmp_path / "less.npy"), "--memory-budget", less]) == 2
    assert f"Give --memory-budget {named[1]}MB or more" in " ".join(capsys.readouterr().err.split())


@pytest.mark.reliability("S11")
def test_a_prediction_says_its_keyword_and_takes_any_larger_budget(dataset) -> None:
    """Where half of the budget holds the edges, and what is computed has no room beside them, they are read."""
    checkpoint = checkpoint_of(dataset)
    with pytest.raises(BudgetError) as refused:
        predict(dataset, checkpoint, memory_budget_bytes=10_000)
    named = re.search(r"Give memory_budget_bytes=(\d+) or more$", str(refused.value))
    assert named is not None
    assert refused.value.short_bytes == int(named[1]) - 10_000
    for factor in np.linspace(1, 3, 20):
        assert len(predict(dataset, checkpoint, memory_budget_bytes=int(factor * int(named[1])))) == 700


@pytest.mark.reliability("S11")
def test_the_command_keeps_to_its_budget_with_its_code_and_says_what_it_took(
    dataset, tmp_path: Path, capsys, monkeypatch
) -> None:
    save_checkpoint(tmp_path / "checkpoint.pt", checkpoint_of(dataset))
    words = ["infer", "--dataset", str(dataset.root), "--checkpoint", str(tmp_path), "--json", "--out"]
    bounds, given = [], []
    keep_below = PeakMemory.keep_below

    def kept(peak: PeakMemory, bound_bytes: int) -> None:
        bounds.append(bound_bytes)
        keep_below(peak, bound_bytes)

    def opened(*_, memory_budget_bytes: int, **options):
        given.append(memory_budget_bytes)
        return predictions(*_, memory_budget_bytes=memory_budget_bytes, **options)

    monkeypatch.setattr(PeakMemory, "keep_below", kept)
    monkeypatch.setattr("gloader.training.predict.predictions", opened)
    assert main([*words, str(tmp_path / "classes.npy"), "--memory-budget", "10GB"]) == 0
    heard = capsys.readouterr()
    said = json.loads(heard.out)
    assert (bounds, said["memory_budget_bytes"]) == ([10**10], 10**10)
    assert given[0] <= 10**10 - 68_000_000
    assert "of a budget of 10 GB" in " ".join(heard.err.split())
    assert 0 <= said["peak_anonymous_bytes"] < 10**10
    assert main([*words, str(tmp_path / "again.npy"), "--memory-budget", "60MB"]) == 2
    assert "the code of the run" in " ".join(capsys.readouterr().err.split())


def test_a_prediction_may_take_what_topology_and_weights_leave(dataset, monkeypatch) -> None:
    class ToldError(Exception):
        pass

    checkpoint = checkpoint_of(dataset)
    weight_bytes = sum(parameter.nbytes for parameter in checkpoint.model().parameters())

    def told(**settings):
        raise ToldError(settings["memory_budget_bytes"] + settings["graph"].held_bytes + 2 * weight_bytes)

    monkeypatch.setattr("gloader.training.open_model.HeteroInference", told)
    with pytest.raises(ToldError, match=r"^1000000$"):
        predict(dataset, checkpoint, memory_budget_bytes=10**6)


def test_the_accuracy_of_a_run_is_that_of_its_predictions(dataset, tmp_path) -> None:
    settings = TrainSettings(
        model=ModelConfig(name="rgat", hidden=8, heads=2),
        optim=OptimConfig(epochs=2, lr=0.01),
        step=StepConfig(),
        loader=LoaderSettings.of(fanouts=(3, 3), batch_size=50, threads=1, memory_budget=400_000_000),
    )
    run = fit(dataset, settings, files=RunFiles(out=tmp_path)).runs[0]
    predicted = predict(dataset, load_checkpoint(tmp_path), memory_budget_bytes=SMALL_BUDGET)
    for nodes, accuracy in ((dataset.test, run.test_acc), (dataset.valid, run.valid_acc)):
        assert (predicted[nodes] == dataset.labels[nodes]).mean() == pytest.approx(accuracy)


def test_a_checkpoint_of_another_dataset_is_refused_by_what_differs(dataset) -> None:
    schema = schema_of(dataset)
    others = {
        "features of each type: ": replace(schema, feature_dims={**schema.feature_dims, "paper": 9}),
        "relations: author:writes:paper, paper:cites:paper; those of papers: ": replace(
            schema, relations=schema.relations[:2]
        ),
        "nodes of types without features: {'author': 499}; those of papers: {'author': 500}": replace(
            schema, num_nodes={**schema.num_nodes, "author": 499}
        ),
    }
    for message, other in others.items():
        with pytest.raises(CheckpointError, match="of another dataset: its " + message):
            predict(dataset, checkpoint_of(dataset, schema=other))
    # More papers than it was trained on are no obstacle.
    predict(
        dataset, checkpoint_of(dataset, schema=replace(schema, num_nodes={**schema.num_nodes, "paper": 9}))
    )


def test_rows_of_a_network_for_one_type_are_those_of_its_layers(communities) -> None:
    config = ModelConfig(name="graphsage", hidden=8, batch_norm=True)
    spec = ModelSpec(
        config=config, in_dim=communities.feature_dim, out_dim=3, num_layers=2, add_self_loops=True
    )
    model = spec.build()
    checkpoint = replace(checkpoint_of(communities), spec=spec, weights=model.state_dict())
    found = []
    for layer, width in ((1, 8), (2, 3)):
        with embed(communities, checkpoint, layer=layer) as made:
            assert (made.num_nodes, made.width) == (communities.num_nodes, width)
            found.append(np.concatenate(list(made.chunks)))
    # The rows of the last layer are the logits, and the classes follow from them.
    predicted = communities.in_original_order(predict(communities, checkpoint))
    assert np.array_equal(found[1].argmax(1), predicted)
    with open_topology(communities, max_bytes=1 << 30) as graph, communities.open_features() as features:
        job = HeteroInference.of_one_type(graph=graph, features=features, memory_budget_bytes=1 << 24)
        rows = torch.cat(
            [part for _, part in job.activations(model, 1, NODE, np.arange(communities.num_nodes))]
        )
    np.testing.assert_array_equal(communities.in_original_order(rows.numpy()), found[0])
    with (
        pytest.raises(ConfigError, match="layer is 0; the network has the layers 1 to 2"),
        embed(communities, checkpoint, layer=0),
    ):
        pass
