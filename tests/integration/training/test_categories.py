"""Runs over columns ``as: index``: from tables to a network with learned numbers, its checkpoint and predictions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gloader.cli.main import main
from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.errors import CheckpointError, ConfigError
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.model_spec import codes_of, spec_of
from gloader.training.predict import predict
from gloader.training.run_budget import share_budget
from gloader.training.step_memory import parameter_bytes
from gloader.training.train import RunFiles, fit

N, CITIES, JOBS = 600, 60, 5


def written(folder: Path, *, kind: str = "category", first: str = "city") -> Path:
    """Write users whose label is a function of their city, with jobs and friends at random, and return the folder."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    cities = rng.integers(0, CITIES, N)
    users = pa.table(
        {
            "id": np.arange(N),
            "age": rng.normal(size=N).astype(np.float32),
            "city": [f"{first} {number:02d}" for number in cities],
            "job": [f"job {number}" for number in rng.integers(0, JOBS, N)],
            # No order of the cities tells their class.
            "rich": rng.integers(0, 2, CITIES)[cities].astype(bool),
            "fold": rng.permutation(np.arange(N) % 10),
        }
    )
    ends = rng.integers(0, N, (2, 300))
    friends = pa.table({"a": ends[0], "b": ends[1], "kind": [("near", "far")[i % 2] for i in range(300)]})
    orders = pa.table({"buyer": ends[0], "item": ends[1] % 20})
    for name, table in {"users": users, "friends": friends, "orders": orders}.items():
        pq.write_table(table, folder / f"{name}.parquet")
    columns = "[age, {name: city, as: index}, {name: job, as: index}]"
    split = "{column: fold, train: [0, 1, 2, 3, 4, 5], valid: [6, 7], test: [8, 9]}"
    user = f"{{file: users.parquet, key: id, columns: {columns}, labels: rich, split: {split}}}"
    edges = {
        "one": "friends: {file: friends.parquet, src: user.a, dst: user.b, "
        f"columns: [{{name: kind, as: {kind}}}]}}",
        "two": "friends: {file: friends.parquet, src: user.a, dst: user.b}\n"
        "  buys: {file: orders.parquet, src: user.buyer, dst: item.item}\n"
        "  bought: {file: orders.parquet, src: item.item, dst: user.buyer}",
    }
    for name, relations in edges.items():
        (folder / f"{name}.yaml").write_text(
            f"name: shop\nnodes:\n  user: {user}\nedges:\n  {relations}\n", "utf-8"
        )
    return folder


def prepared(folder: Path, out: Path, name: str = "one", *words: str) -> Dataset:
    (folder / "graph.yaml").write_text((folder / f"{name}.yaml").read_text())
    command = ["prepare", f"tables:{folder}", str(out), "--memory-budget", "300MB", *words]
    assert main(command) == 0
    return Dataset.open(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("own") / "shop")


@pytest.fixture(scope="module")
def datasets(folder, tmp_path_factory) -> dict[str, Dataset]:
    root = tmp_path_factory.mktemp("datasets")
    return {name: prepared(folder, root / name, name) for name in ("one", "two")}


def settings(name: str, *, epochs: int = 15, **model) -> TrainSettings:
    return TrainSettings(
        model=ModelConfig(**{"name": name, "hidden": 16, "heads": 2, "dropout": 0.0} | model),
        optim=OptimConfig(epochs=epochs, lr=0.03),
        loader=LoaderSettings.of(fanouts=(3, 3), batch_size=60, threads=1, memory_budget=400_000_000),
    )


def test_the_columns_of_a_model_are_those_of_the_encoders(datasets):
    (city, job) = spec_of(settings("graphsage"), datasets["one"]).codes
    assert (city.name, city.column, city.num_values) == ("city", 1, CITIES)
    assert (job.name, job.column, job.num_values) == ("job", 2, JOBS)
    assert (city.dim, job.dim) == (16, 4)
    assert city.digest != job.digest
    typed = spec_of(settings("rsage"), datasets["two"])
    assert typed.schema.codes == {"user": (city, job)}
    assert codes_of(datasets["two"], 16) == {"user": (city, job)}


@pytest.mark.parametrize(
    ("name", "model", "more"),
    [("one", "graphsage", {}), ("one", "gcn", {"residual": True}), ("two", "rgcn", {})],
)
def test_a_network_learns_what_only_the_category_tells_and_its_checkpoint_predicts_it(
    datasets, tmp_path, name, model, more
):
    dataset = datasets[name]
    run = fit(dataset, settings(model, **more), files=RunFiles(out=tmp_path)).runs[0]
    assert run.test_acc > 0.8
    checkpoint = load_checkpoint(tmp_path)
    type_name = "node" if name == "one" else "user"
    assert checkpoint.weights[f"codes.{type_name}.1"].shape == (CITIES + 1, 16)
    predicted = predict(dataset, checkpoint, memory_budget_bytes=300_000)
    assert (predicted[dataset.test] == dataset.labels[dataset.test]).mean() == pytest.approx(run.test_acc)


def test_the_screen_says_once_which_columns_become_learned_numbers(datasets, tmp_path, capsys):
    words = [
        "--epochs",
        "1",
        "--fanout",
        "2",
        "--batch-size",
        "100",
        "--hidden",
        "8",
        "--memory-budget",
        "400MB",
    ]
    command = ["train", "--dataset", str(datasets["one"].location), "--out", str(tmp_path / "run"), *words]
    assert main([*command, "--runs", "2", "--compare-mlp"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    line = "learned numbers for categories: city (60 values) as 8 numbers, job (5 values) as 4 numbers"
    assert said.count(line) == 1
    assert said.count("learned numbers") == 1
    command = ["train", "--dataset", str(datasets["two"].location), "--out", str(tmp_path / "typed"), *words]
    assert main([*command, "--model", "rgcn"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "learned numbers for categories: user.city (60 values) as 8 numbers, user.job (5" in said


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_a_dtype_that_rounds_codes_is_refused(folder, tmp_path, capsys, dtype):
    (folder / "graph.yaml").write_text((folder / "one.yaml").read_text())
    assert main(["prepare", f"tables:{folder}", str(tmp_path / "out"), "--dtype", dtype]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert (
        f"the numbers of the values of 'city', 'job' (as: index) are rounded by --dtype {dtype}; leave --dtype out, or "
        "take as: category or top: instead of as: index"
    ) in said
    assert not list(tmp_path.iterdir())


def test_codes_of_edges_are_refused_by_models_that_read_them_and_by_dtypes_that_round_them(tmp_path, capsys):
    folder = written(tmp_path / "shop", kind="index")
    dataset = prepared(folder, tmp_path / "data")
    with pytest.raises(
        ConfigError,
        match=re.escape(
            "the edge features of shop hold codes of categories ('kind', as: index), which model 'gat' would read as "
            "amounts; prepare them with as: category, or leave edge features out with --edge-features none"
        ),
    ):
        spec_of(settings("gat"), dataset)
    assert spec_of(settings("graphsage"), dataset).edge_dim == 0
    capsys.readouterr()
    command = ["prepare", f"tables:{folder}", str(tmp_path / "out"), "--edge-dtype", "float16"]
    assert main(command) == 2
    assert "of 'kind' (as: index) are rounded by --edge-dtype float16" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(("name", "model"), [("one", "graphsage"), ("two", "rgcn")])
def test_a_checkpoint_is_refused_where_other_values_have_the_codes(datasets, tmp_path, name, model):
    fit(datasets[name], settings(model, epochs=1), files=RunFiles(out=tmp_path / "run"))
    other = prepared(written(tmp_path / "shop", first="town"), tmp_path / "data", name)
    with pytest.raises(
        CheckpointError,
        match=r"its columns as: index: city \(column 1, 60 values\), job \(column 2, 5 values\); those of shop: "
        r"city \(column 1, 60 values\), job \(column 2, 5 values\), or with other values",
    ):
        predict(other, load_checkpoint(tmp_path / "run"))


def test_features_of_another_dataset_are_refused_with_row_and_column_in_any_layer_pass(datasets, tmp_path):
    from gloader.samplers import CscGraph
    from gloader.ssd_store import RamFeatures
    from gloader.training.inference.layerwise_inference import HeteroInference

    model = spec_of(settings("graphsage"), datasets["one"]).build()
    x = np.zeros((50, 3), np.float32)
    x[49, 1] = CITIES
    graph = CscGraph(indptr=np.arange(51), indices=np.zeros(50, np.int32))
    job = HeteroInference.of_one_type(graph=graph, features=RamFeatures(x), memory_budget_bytes=9200)
    with pytest.raises(ConfigError, match=r"row 49 has 60 in feature column 1, .* the 60 values of 'city'"):
        list(job.logits(model, np.arange(50)))


def test_the_memory_plan_counts_the_tables(datasets):
    spec = spec_of(settings("graphsage", hidden=64), datasets["one"])
    table_bytes = 4 * ((CITIES + 1) * 16 + (JOBS + 1) * 4)
    assert parameter_bytes(spec) - parameter_bytes(spec.with_one_value()) == table_bytes - 4 * 2 * (16 + 4)
    budget = share_budget(total_bytes=10**9, parameter_bytes=parameter_bytes(spec), step_bytes=0)[0]
    assert budget.model_bytes >= 4 * table_bytes


def test_a_prediction_may_take_what_the_tables_leave(datasets, tmp_path, monkeypatch):
    class ToldError(Exception):
        pass

    def told(**given):
        raise ToldError(given["memory_budget_bytes"] + given["graph"].held_bytes + 2 * weight_bytes)

    fit(datasets["one"], settings("graphsage", epochs=1), files=RunFiles(out=tmp_path))
    checkpoint = load_checkpoint(tmp_path)
    weight_bytes = sum(parameter.nbytes for parameter in checkpoint.model().parameters())
    monkeypatch.setattr("gloader.training.open_model.HeteroInference", told)
    with pytest.raises(ToldError, match=r"^1000000$"):
        predict(datasets["one"], checkpoint, memory_budget_bytes=10**6)


def test_a_checkpoint_says_its_codes_in_json_only_if_there_are_some(datasets, tmp_path):
    from gloader.training.model_spec import parse_spec, spec_content

    for name, model in (("one", "graphsage"), ("two", "rgcn")):
        spec = spec_of(settings(model), datasets[name])
        assert parse_spec(json.loads(json.dumps(spec_content(spec))), tmp_path) == spec
        assert "codes" in str(spec_content(spec))
        assert torch.equal(
            spec.build().state_dict()[f"codes.{'node' if name == 'one' else 'user'}.1"][0], torch.zeros(16)
        )
