"""Runs that learn the rows of a task table: each row has a time, and sees what is older."""

from __future__ import annotations

import csv
import json
import re
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import shop

from gloader.cli.main import main
from gloader.config import EmbedConfig, LinkConfig, LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.errors import BudgetError, CheckpointError, ConfigError, StateError
from gloader.training import train
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.dataset_checks import require_dataset
from gloader.training.node_task import NodeTask
from gloader.training.predict import embed, predict, predictions, row_predictions
from gloader.training.run_settings import read_train_settings
from gloader.training.scores import METRICS
from gloader.training.train import FitResult, RunFiles

if TYPE_CHECKING:
    from pathlib import Path

MODEL = ModelConfig(name="rsage", hidden=16, dropout=0.0)
OPTIM = OptimConfig(epochs=12, lr=0.02)
LOADER = LoaderSettings.of(fanouts=(6, 6), batch_size=48, threads=1, memory_budget=500_000_000)
DRAWN = LOADER.changed(fanouts=(2, 2))  # of 3 older orders


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return shop.write_shop(tmp_path_factory.mktemp("shop") / "typed")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return shop.write_shop(tmp_path_factory.mktemp("shop") / "plain", typed=False)


def settings(table: str, **changes: Any) -> TrainSettings:
    return TrainSettings(
        **{"model": MODEL, "optim": OPTIM, "loader": LOADER, "table": table, **changes}  # type: ignore[arg-type]
    )


def fit(dataset: Dataset, table: str, out: Path, *, resume: bool = False, **changes: Any) -> FitResult:
    return train.fit(dataset, settings(table, **changes), files=RunFiles(out=out, resume=resume))


def predicted(dataset: Dataset, run: Path, table: str, **options: Any) -> np.ndarray:
    with row_predictions(dataset, load_checkpoint(run), table, **options) as found:
        return np.concatenate(list(found.chunks))


def _result(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return content


def test_a_secret_of_the_past_is_learned_and_one_of_the_future_is_not(typed, tmp_path) -> None:
    fit(typed, "past", tmp_path / "past")
    assert _result(tmp_path / "past")["test_acc"] > 0.95
    fit(typed, "future", tmp_path / "future")
    assert 0.35 < _result(tmp_path / "future")["test_auroc"] < 0.65


def test_rows_at_the_end_of_time_see_what_was_the_future(tmp_path) -> None:
    """So a wrong time rule would be seen: the orders do tell the secret of the future."""
    late = {
        f"late-{name}.{part}": {
            "type": "customer",
            "nodes": np.arange(shop.NUM_CUSTOMERS)[chosen],
            "times": np.full(len(values[chosen]), 9000 * shop.DAY),
            "labels": values[chosen],
            "kind": kind,
        }
        for name, (kind, values) in shop.labels().items()
        for part, chosen in shop.PARTS.items()
    }
    with closing(shop.write_shop(tmp_path / "shop", tables=late)) as dataset:
        fit(dataset, "late-future", tmp_path / "future")
    assert _result(tmp_path / "future")["test_auroc"] > 0.95


@pytest.mark.parametrize("model", ["rsage", "rgcn", "rgat"])
def test_ages_of_rows_are_learned(typed, tmp_path, model) -> None:
    fit(typed, "recent", tmp_path, model=replace(MODEL, name=model, heads=2))
    assert _result(tmp_path)["test_auroc"] > 0.95
    assert load_checkpoint(tmp_path).spec.encoder.schema.aged == ("order",)


@pytest.mark.parametrize(
    ("table", "task", "name", "metric", "least"),
    [
        ("past", "binary", "binary", "auroc", 0.95),
        ("three", "node", "node", "acc", 0.9),
        ("recent", "node", "binary", "auroc", 0.95),
        ("both", "node", "multilabel", "auroc", 0.95),
        ("amount", "regression", "regression", "rmse", None),
    ],
)
def test_each_kind_of_labels_is_learned_and_predicted(
    typed, tmp_path, table, task, name, metric, least
) -> None:
    fit(typed, table, tmp_path, task=task, loader=DRAWN)
    result = _result(tmp_path)
    assert (result["task"], result["metric"]) == (name, metric)
    assert result[f"test_{metric}"] < 0.3 if least is None else result[f"test_{metric}"] > least
    # The metric of the run is that of the written predictions.
    rows = predicted(typed, tmp_path, f"{table}.test")
    labels = shop.labels()[table][1][shop.PARTS["test"]]
    known = labels if rows.ndim == labels.ndim else labels[:, None].astype(np.float32)
    if metric == "acc":
        rows, known = rows[:, 0], labels
    assert METRICS[metric].compute(rows, known).value == pytest.approx(result[f"test_{metric}"], abs=1e-6)
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["metrics"][metric] == pytest.approx(result[f"test_{metric}"], abs=1e-6)


def test_a_graph_of_one_type_is_learned_with_the_ages_of_its_rows(plain, tmp_path) -> None:
    fit(plain, "three", tmp_path, model=replace(MODEL, name="graphsage"))
    assert _result(tmp_path)["test_acc"] > 0.85
    assert load_checkpoint(tmp_path).spec.encoder.is_aged


@pytest.mark.parametrize("kind", ["typed", "plain"])
def test_rows_with_times_read_embeddings_and_are_evaluated_with_the_best_ones(
    request: pytest.FixtureRequest, tmp_path, kind
) -> None:
    dataset = request.getfixturevalue(kind)
    changes: dict[str, Any] = {
        "model": replace(MODEL, name="rsage" if kind == "typed" else "graphsage"),
        "optim": replace(OPTIM, epochs=4),
        "loader": DRAWN.changed(memory_budget=1_500_000_000),
    }
    config = EmbedConfig(dims=dict.fromkeys(dataset.node_types, 4), lr=0.1)
    found = [
        fit(dataset, "past", tmp_path / str(cache), embed=replace(config, cache=cache), **changes).runs[0]
        for cache in (None, 0.8)
    ]
    assert [each.loss for each in found[0].epochs] == [each.loss for each in found[1].epochs]
    assert found[0].test_acc == found[1].test_acc
    result = _result(tmp_path / "0.8")
    rows = predicted(dataset, tmp_path / "0.8", "past.test")
    known = shop.labels()["past"][1][shop.PARTS["test"]]
    assert METRICS["acc"].compute(rows[:, 0], known).value == pytest.approx(result["test_acc"], abs=1e-6)


def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(typed, tmp_path) -> None:
    optim = replace(OPTIM, epochs=4, checkpoint_every=2)
    fit(typed, "past", tmp_path / "whole", optim=optim, loader=DRAWN)
    fit(typed, "past", tmp_path / "parts", optim=replace(optim, epochs=2), loader=DRAWN)
    fit(typed, "past", tmp_path / "parts", optim=optim, loader=DRAWN, resume=True)
    whole, parts = (load_checkpoint(tmp_path / name) for name in ("whole", "parts"))
    assert all((parts.weights[name] == value).all() for name, value in whole.weights.items())
    first, second = (_result(tmp_path / name) for name in ("whole", "parts"))
    assert (first["test_acc"], first["valid_acc"]) == (second["test_acc"], second["valid_acc"])
    with pytest.raises((CheckpointError, StateError), match="table is 'past' there and 'three' here"):
        fit(typed, "three", tmp_path / "parts", optim=optim, loader=DRAWN, resume=True)


def test_weights_change_what_is_learned_and_rows_of_weight_0_are_not(tmp_path) -> None:
    rng = np.random.default_rng(17)
    weights = rng.integers(0, 2, shop.NUM_CUSTOMERS).astype(np.float32) * 3
    kind, values = shop.labels()["past"]
    wrong = np.where(weights == 0, 1 - values, values)
    tables = {
        f"wrong.{part}": {
            "type": "customer",
            "nodes": np.arange(shop.NUM_CUSTOMERS)[chosen],
            "times": np.full(len(values[chosen]), 1000 * shop.DAY),
            "labels": (wrong if part == "train" else values)[chosen],
            "kind": kind,
            "weights": weights[chosen],
        }
        for part, chosen in shop.PARTS.items()
    }
    with closing(shop.write_shop(tmp_path / "shop", tables=tables)) as dataset:
        fit(dataset, "wrong", tmp_path / "run")
        task = NodeTask.of(settings("wrong"), dataset)
    # Half of the training rows have the opposite label and no weight. Scores count every row.
    assert _result(tmp_path / "run")["test_acc"] > 0.95
    assert task.objective.mean_weight == pytest.approx(weights[shop.PARTS["train"]].mean())


def test_rows_without_times_are_nodes_and_may_repeat(typed, tmp_path) -> None:
    rng = np.random.default_rng(0)
    nodes = rng.integers(0, shop.NUM_CUSTOMERS, 300)
    labels = shop.labels()["future"][1]
    parts = {"train": slice(0, 200), "valid": slice(200, 250), "test": slice(250, 300)}
    tables = {
        f"still.{part}": {
            "type": "customer",
            "nodes": nodes[chosen],
            "labels": labels[nodes[chosen]],
            "kind": "binary",
        }
        for part, chosen in parts.items()
    }
    with closing(shop.write_shop(tmp_path / "shop", tables=tables)) as dataset:
        fit(dataset, "still", tmp_path / "run")
        assert _result(tmp_path / "run")["test_auroc"] > 0.95  # rows without times see all orders
        checkpoint = load_checkpoint(tmp_path / "run")
        assert not checkpoint.spec.encoder.schema.aged
        rows = predicted(dataset, tmp_path / "run", "still.test")
        assert rows.shape == (50, 1)
        repeated = nodes[parts["test"]]
        same = [rows[repeated == node] for node in np.unique(repeated)]
        assert all(np.allclose(each, each[0], atol=1e-6) for each in same)
        with pytest.raises(
            ConfigError, match=r"the rows of table 'past\.test' have times, and the rows that the network"
        ):
            predicted(dataset, tmp_path / "run", "past.test")


def test_a_task_without_test_labels_is_trained_and_its_rows_are_predicted(tmp_path, caplog) -> None:
    chosen = np.arange(shop.NUM_CUSTOMERS)
    kind, values = shop.labels()["past"]
    times = np.full(shop.NUM_CUSTOMERS, 1000 * shop.DAY)
    learned = {"nodes": chosen[:300], "times": times[:300], "labels": values[:300], "kind": kind}
    tables = {
        "blind.train": {"type": "customer", **learned},
        "blind.test": {"type": "customer", "nodes": chosen[300:], "times": times[300:]},
    }
    with closing(shop.write_shop(tmp_path / "shop", tables=tables)) as dataset:
        result = fit(dataset, "blind", tmp_path / "run").runs[0]
        assert (result.valid_acc, result.test_acc) == (None, None)
        assert (predicted(dataset, tmp_path / "run", "blind.test")[:, 0] == values[300:]).mean() > 0.95
    said = [record.getMessage() for record in caplog.records if "no score" in record.getMessage()]
    (text,) = said
    assert text.startswith("there is no score of table 'blind.valid', which is not there, and none of table")
    assert text.endswith("and none of table 'blind.test', which has no labels")


def test_rows_without_a_label_are_predicted_and_not_scored(tmp_path) -> None:
    kind, values = shop.labels()["past"]
    numbers = np.arange(shop.NUM_CUSTOMERS)
    is_known = (numbers < shop.PARTS["train"].stop) | (numbers % 3 == 1)
    tables = {
        f"gaps.{part}": {
            "type": "customer",
            "nodes": numbers[chosen],
            "times": np.full(len(values[chosen]), 1000 * shop.DAY),
            "labels": np.where(is_known, values, -1)[chosen],
            "kind": kind,
        }
        for part, chosen in shop.PARTS.items()
    }
    with closing(shop.write_shop(tmp_path / "shop", tables=tables)) as dataset:
        fit(dataset, "gaps", tmp_path / "run", loader=DRAWN.changed(batch_size=17))
        rows = predicted(dataset, tmp_path / "run", "gaps.test")[:, 0]
    chosen = shop.PARTS["test"]
    right = (rows == values[chosen])[is_known[chosen]]
    assert right.mean() > 0.9
    assert _result(tmp_path / "run")["test_acc"] == pytest.approx(right.mean(), abs=1e-9)


def test_a_network_that_reads_ages_needs_a_dataset_with_times_of_rows(typed, tmp_path) -> None:
    fit(typed, "past", tmp_path / "run", optim=replace(OPTIM, epochs=1), loader=DRAWN)
    with (
        closing(shop.write_shop(tmp_path / "shop", row_time={})) as other,
        pytest.raises(CheckpointError, match=r"reads the ages of rows of type order, and .* lacks times"),
    ):
        predicted(other, tmp_path / "run", "past.test")


def test_classes_of_rows_are_counted_in_the_memory_of_an_evaluation(typed) -> None:
    task = NodeTask.of(train.resolved_settings(settings("past"), typed), typed)
    place: Any = SimpleNamespace(memory_budget_bytes=1000, embeddings={})
    with pytest.raises(BudgetError, match="the scores and labels of 80 rows, with a metric of them, take"):
        task.require_memory(None, place)


def test_rows_are_evaluated_in_batches_of_all_ranks(typed) -> None:
    """Draws depend on the batch, so the number of ranks does not change a score."""
    run = train.resolved_settings(settings("past", loader=DRAWN.changed(batch_size=12)), typed)
    rows = NodeTask.of(run, typed, world_size=3).rows
    place: Any = SimpleNamespace(memory_budget_bytes=10**8, embeddings={})
    inference: Any = rows.inference("test", place)
    assert inference.settings.sampling.batch_size == 36
    assert inference.settings.ranks.world_size == 1


def test_several_runs_are_scored_on_the_same_trees(typed, tmp_path) -> None:
    fit(typed, "amount", tmp_path, runs=2, optim=replace(OPTIM, epochs=2), loader=DRAWN)
    labels = shop.labels()["amount"][1][shop.PARTS["test"]]
    for number in range(2):
        run = tmp_path / f"run-{number}"
        rows = predicted(typed, run, "amount.test")
        error = float(np.sqrt(((rows - labels) ** 2).mean()))
        assert error == pytest.approx(_result(run)["test_rmse"], abs=1e-6)


def test_an_evaluated_table_may_be_smaller_than_a_batch(typed, tmp_path) -> None:
    fit(typed, "past", tmp_path, optim=replace(OPTIM, epochs=1), loader=DRAWN.changed(batch_size=120))
    rows = predicted(typed, tmp_path, "past.test")[:, 0]
    right = rows == shop.labels()["past"][1][shop.PARTS["test"]]
    assert right.mean() == pytest.approx(_result(tmp_path)["test_acc"], abs=1e-9)


def test_the_command_trains_and_writes_a_row_for_each_row(typed, tmp_path, capsys) -> None:
    run, out = tmp_path / "run", tmp_path / "rows.csv"
    words = ["--table", "past", "--model", "rsage", "--hidden", "16", "--fanout", "6,6", "--epochs", "3"]
    assert (
        main(
            [
                "train",
                "--dataset",
                typed.location,
                *words,
                "--batch-size",
                "48",
                "--lr",
                "0.02",
                "--out",
                str(run),
            ]
        )
        == 0
    )
    assert read_train_settings(run).table == "past"
    assert (
        main(
            [
                "infer",
                "--dataset",
                typed.location,
                "--checkpoint",
                str(run),
                "--table",
                "past.test",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    assert "classes of 80 rows of table 'past.test'" in " ".join(capsys.readouterr().out.split())
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["id"]) for row in rows] == list(range(320, 400))
    assert {int(row["time"]) for row in rows} == {1000 * shop.DAY}
    np.testing.assert_array_equal(
        [int(row["class"]) for row in rows], predicted(typed, run, "past.test")[:, 0]
    )
    for words, error in [
        ([], "the checkpoint learned the rows of table 'past': predict the rows of a table"),
        (["--layer", "1"], "the checkpoint's network reads the ages of rows"),
        (["--table", "past.test", "--layer", "1"], "--table predicts the rows of a table; leave --pairs, --layer"),
        (["--table", "passed"], "has no table 'passed' of rows to predict"),
    ]:  # fmt: skip
        target = tmp_path / "none.npy"
        assert (
            main(
                ["infer", "--dataset", typed.location, "--checkpoint", str(run), *words, "--out", str(target)]
            )
            != 0
        )
        assert error in " ".join(capsys.readouterr().err.split())
        assert not target.exists()
    with pytest.raises(ConfigError, match="the checkpoint learned the rows of table 'past'"):
        predict(typed, load_checkpoint(run))
    with pytest.raises(ConfigError, match="the checkpoint learned"), predictions(typed, load_checkpoint(run)):
        pass
    with (
        pytest.raises(ConfigError, match="reads the ages of rows"),
        embed(typed, load_checkpoint(run), layer=1),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table": "passed"}, "has no table 'passed.train' of rows to predict"),
        (
            {"optim": replace(OPTIM, balance="classes")},
            "--balance classes draws nodes, and --table past takes each",
        ),
        ({"task": "link"}, "--table past names rows of nodes, and --task link learns edges"),
        (
            {"task": "regression"},
            "--task regression does not fit table 'past' of .*, which has labels of kind classes",
        ),
        (
            {"links": LinkConfig(metric="rmse")},
            "metric rmse .* is not defined for labels of the kind classes",
        ),
    ],
)
def test_what_does_not_fit_the_rows_is_refused(typed, changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        require_dataset(settings(**{"table": "past", **changes}), typed)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("train", {"labels": np.array([0, 1, -1, 1])}, "1 of the 4 rows of table 'odd.train' have no label"),
        ("train", {"weights": np.zeros(4, np.float32)}, "all weights of the rows of table 'odd.train' are 0"),
        (
            "valid",
            {"times": None},
            "table 'odd.valid' has rows of another kind than 'odd.train': times False",
        ),
        (
            "valid",
            {"type": "order"},
            "table 'odd.valid' has rows of another kind .*: nodes of type order in place",
        ),
        (
            "test",
            {"labels": np.arange(4)},
            "table 'odd.test' has rows of another kind .*: classes 4 in place of 2",
        ),
        (
            "train",
            {"labels": None, "kind": None},
            "the training rows of table 'odd' of .* have no labels to learn",
        ),
    ],
)
def test_tables_that_a_network_cannot_learn_together_are_refused(tmp_path, part, changes, message) -> None:
    rows = {
        "type": "customer",
        "nodes": np.arange(4),
        "times": np.full(4, 1000 * shop.DAY),
        "labels": np.array([0, 1, 0, 1]),
        "kind": "classes",
    }
    tables = {f"odd.{each}": rows | (changes if each == part else {}) for each in shop.PARTS}
    given = {
        name: {key: value for key, value in table.items() if value is not None}
        for name, table in tables.items()
    }
    with (
        closing(shop.write_shop(tmp_path / "shop", tables=given)) as dataset,
        pytest.raises(ConfigError, match=message),
    ):
        NodeTask.of(settings("odd"), dataset)


@pytest.mark.parametrize(
    ("table", "given", "rule"),
    [
        ("past", {}, ("uniform", "<=")),
        ("past", {"time_bound": "<"}, ("uniform", "<")),
        ("past", {"time_strategy": "last"}, ("last", "<=")),
        ("past", {"time_strategy": "last", "time_bound": "<"}, ("last", "<")),
        (None, {}, ("none", None)),
    ],
)
def test_a_run_records_its_time_rule_and_given_settings_win(typed, table, given, rule) -> None:
    run = replace(settings("past", loader=LOADER.changed(**given)), table=table)
    sampling = train.resolved_settings(run, typed).loader.sampling
    assert (sampling.time_strategy, sampling.time_bound) == rule


def test_a_dataset_of_tables_alone_names_them(typed) -> None:
    with pytest.raises(
        ConfigError, match="learn the rows of a table with --table: past, future, recent, three"
    ):
        require_dataset(replace(settings("past"), table=None), typed)


def test_a_small_budget_names_one_that_is_enough(typed, tmp_path) -> None:
    loader = LOADER.changed(memory_budget=60_000_000)
    with pytest.raises(BudgetError) as refused:
        fit(typed, "past", tmp_path / "small", loader=loader)
    named = re.search(r'memory_budget="(\w+)"', str(refused.value))
    assert named is not None, str(refused.value)
