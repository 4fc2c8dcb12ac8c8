"""The runner: from a folder in OGB's layout to the table, and what it says where there is none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import run as runner
from benchmarks import BenchmarkError, DataError, Published, load_benchmarks
from fabricate import fabricate
from fabricate_hetero import fabricate_hetero
from ogb_runner import in_this_process, words
from papers_scale import graph_spec
from score_table import ScoreRow, markdown_table
from scores import score

from gloader.cli.main import build_app
from gloader.cli.recipe import load_recipe
from gloader.convert.sources.synthetic import parse_spec
from gloader.dataset import Dataset

CHECKOUT = Path(__file__).parents[3]
OGB = CHECKOUT / "experiments" / "ogb"
LISTS = ("benchmarks.yaml", "layout.yaml")
FLAGS = {
    name.removeprefix("--")
    for argument in build_app()["train"].assemble_argument_collection()
    for name in argument.names
}
PUBLISHED = Published(mean=71.74, std=0.29, of="OGB leaderboard")


@pytest.mark.parametrize("name", LISTS)
def test_every_row_has_a_recipe_that_train_takes(tmp_path, name):
    rows = load_benchmarks(OGB / name, root=tmp_path)
    for row in rows.values():
        recipe = load_recipe(row.recipe, FLAGS)
        assert row.name.rpartition("-")[2] == recipe["model"]
        assert {"fanout", "batch-size", "lr", "epochs"} <= set(recipe)
    used = {
        row.recipe.resolve()
        for every in LISTS
        for row in load_benchmarks(OGB / every, root=tmp_path).values()
    }
    assert set((OGB / "recipes").iterdir()) <= used


def test_rows_of_the_issue_are_there(tmp_path):
    rows = load_benchmarks(OGB / "benchmarks.yaml", root=tmp_path)
    assert {"arxiv-gcn", "arxiv-graphsage", "products-gcn", "products-graphsage"} <= set(rows)
    assert {"papers100m-gcn", "papers100m-graphsage", "mag240m-graphsage", "igb-tiny-graphsage"} <= set(rows)
    assert rows["arxiv-gcn"].prepared_name == rows["arxiv-graphsage"].prepared_name
    assert rows["arxiv-gcn"].prepared_name != rows["products-gcn"].prepared_name


def test_bad_entries_are_refused(tmp_path):
    good = (
        "a: {source: 'npy:{root}', data: a, recipe: r.yaml, evaluator: accuracy, split: test, "
        "published: {mean: 1, std: 1, of: us}"
    )
    (tmp_path / "r.yaml").touch()
    for change, text in (
        (", modle: gcn}", "unknown keys \\['modle'\\]"),
        (", evaluator: guess}", "evaluator 'guess'; allowed: ogb:NAME, ogb-lsc, accuracy"),
        (", split: train}", "split 'train'; allowed: valid, test"),
        (", recipe: none.yaml}", "none.yaml is missing"),
        (", published: {mean: 1}}", "a is not a benchmark: .*std"),
    ):
        (tmp_path / "list.yaml").write_text(good + change)
        with pytest.raises(BenchmarkError, match=text):
            load_benchmarks(tmp_path / "list.yaml", root=tmp_path)


def test_missing_data_is_named_in_one_line(tmp_path):
    rows = load_benchmarks(OGB / "benchmarks.yaml", root=tmp_path)
    with pytest.raises(DataError) as caught:
        rows["mag240m-graphsage"].require_data()
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/mag240m_kddcup2021/meta.pt is missing: unpack OGB-LSC's")
    assert "\n" not in message
    rows["arxiv-gcn"].require_data()  # can be downloaded


@pytest.mark.parametrize(
    ("scores", "std", "deviations"),
    [((0.71, 0.72, 0.73), 1.0, 0.26 / 0.29), ((0.72,), None, 0.26 / 0.29)],
)
def test_table_states_spread_and_difference(scores, std, deviations):
    row = make_row(scores, PUBLISHED)
    assert row.mean == pytest.approx(72)
    assert row.std == (None if std is None else pytest.approx(std))
    assert row.deviations == pytest.approx(deviations)
    text = markdown_table([row], runs=len(scores), settings=["epochs=2"])
    cell = "72.00 ± 1.00" if std else "72.00"
    assert f"| arxiv-gcn | test | {cell} | 71.74 ± 0.29 | +0.26 | +0.9 | OGB leaderboard |" in text
    assert "Not the recipes' settings: epochs=2." in text


def test_our_own_spread_counts_where_none_is_published():
    nobody = Published(mean=70, std=None, of="one run")
    assert make_row((0.71, 0.72, 0.73), nobody).deviations == pytest.approx(2)
    assert make_row((0.71,), nobody).deviations is None


def test_papers_scale_has_the_proportions_of_papers100m():
    spec = parse_spec(graph_spec(1.0, 32).removeprefix("synthetic:"))
    assert (spec.nodes, spec.edges, spec.classes) == (111_059_956, 1_615_685_872, 172)
    assert spec.train * spec.nodes == pytest.approx(1_207_179, rel=1e-4)


@pytest.mark.filterwarnings("ignore")  # of ogb and of what it imports
def test_official_evaluators_score():
    truth, predicted = np.array([0, 1, 2, 3]), np.array([0, 1, 2, 2])
    for evaluator in ("accuracy", "ogb:ogbn-arxiv", "ogb-lsc"):
        assert score(evaluator, truth, predicted) == pytest.approx(0.75)
    columns = np.tile(np.array([0, 0, 1, 1], np.float32)[:, None], (1, 112))
    given = np.tile(np.array([0.1, 0.6, 0.5, 0.9], np.float32)[:, None], (1, 112))
    assert score("ogb:ogbn-proteins", columns, given) == pytest.approx(
        0.75
    )  # three of four pairs are in order


@pytest.mark.long
def test_columns_of_labels_become_a_row_whose_score_is_the_official_one(tmp_path):
    fabricate(tmp_path / "data", "ogbn-proteins", scale=0.002)
    done = run(tmp_path, "proteins-graphsage", "--set", "epochs=2", "batch-size=50", "hidden=16")
    assert done.returncode == 0, done.stderr  # run.py compares gloader's score with the evaluator's
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert (row["name"], row["split"], len(row["scores"])) == ("proteins-graphsage", "test", 1)
    assert 0 < row["scores"][0] < 1


@pytest.mark.long
def test_fabricated_files_become_a_table(tmp_path):
    fabricate(tmp_path / "data", "ogbn-papers100M", scale=0.00002)
    rows = ["papers100m-graphsage", "igb-small-graphsage", "mag240m-graphsage"]
    (tmp_path / "data" / "mag240m_kddcup2021").mkdir()
    (tmp_path / "data" / "mag240m_kddcup2021" / "meta.pt").write_bytes(b"no pickle")
    done = run(tmp_path, *rows, "--set", "epochs=2", "batch-size=20", "hidden=16")
    assert done.returncode == 1  # for the data that is not there
    problems = [line for line in done.stderr.splitlines() if line.startswith(("igb-", "mag240m-"))]
    assert len(problems) == 2
    file = tmp_path / "data" / "igb" / "small" / "processed" / "paper" / "node_feat.npy"
    assert problems[0].startswith(
        f"igb-small-graphsage: {file} is missing: unpack the small homogeneous graph"
    )
    assert problems[1].startswith("mag240m-graphsage: ")  # what gloader itself says
    assert "meta.pt is corrupt" in problems[1]
    figures = json.loads((tmp_path / "out.json").read_text())
    (row,) = figures["rows"]
    assert (row["name"], row["split"], len(row["scores"])) == ("papers100m-graphsage", "test", 1)
    assert row["difference"] == pytest.approx(100 * row["scores"][0] - 64.58)
    assert "| papers100m-graphsage | test |" in (tmp_path / "out.md").read_text()


def test_dataset_that_is_not_the_sources_is_noticed(tmp_path, monkeypatch, capsys):
    fabricate(tmp_path / "data", "mag240m", scale=0.00001)
    settings = ("--set", "epochs=2", "batch-size=20", "hidden=16")
    monkeypatch.setattr(runner, "_gloader", in_this_process)
    monkeypatch.setattr(sys, "argv", words(tmp_path, "mag240m-graphsage", *settings))
    assert runner.main() == 0
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert (row["split"], len(row["scores"])) == ("valid", 1)
    file = tmp_path / "data" / "mag240m_kddcup2021" / "processed" / "paper" / "node_label.npy"
    predicted = np.load(tmp_path / "work" / "mag240m-graphsage" / "predictions.npy")
    assert predicted.shape == np.load(file).shape
    np.save(file, predicted.astype(np.float32))  # as if everything had been predicted right
    monkeypatch.setattr(sys, "argv", words(tmp_path, "mag240m-graphsage", "--keep", *settings))
    capsys.readouterr()
    assert runner.main() == 1
    assert "the prepared dataset is not the source's" in capsys.readouterr().err


def test_both_fan_outs_of_ogbn_mag_become_rows(tmp_path, monkeypatch):
    fabricate_hetero(tmp_path / "data", "ogbn-mag", scale=0.0003)
    monkeypatch.setattr(runner, "_gloader", in_this_process)
    names = ("mag-collective-rgcn", "mag-relations-rgcn")
    settings = ("--set", "epochs=1", "batch-size=64", "hidden=8")
    monkeypatch.setattr(sys, "argv", words(tmp_path, *names, *settings))
    assert runner.main() == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [(row["name"], row["published"]["mean"]) for row in rows] == [
        ("mag-collective-rgcn", 46.78),
        ("mag-relations-rgcn", 47.81),
    ]
    (prepared,) = (tmp_path / "work" / "datasets").iterdir()  # one for both
    assert len(Dataset.open(prepared).relations) == 7


def test_ogbn_mag_with_its_rows_on_the_ssd_becomes_a_row(tmp_path, monkeypatch):
    fabricate_hetero(tmp_path / "data", "ogbn-mag", scale=0.0003)
    monkeypatch.setattr(runner, "_gloader", in_this_process)
    # A tenth of so few rows is less than a batch.
    settings = ("--set", "epochs=1", "batch-size=64", "hidden=8", "embed-cache=100%")
    monkeypatch.setattr(sys, "argv", words(tmp_path, "mag-embed-rgcn", *settings))
    assert runner.main() == 0
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert (row["name"], row["published"]["mean"]) == ("mag-embed-rgcn", 46.78)


def run(folder, *arguments):
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "NO_PROXY": "*"}
    command = [sys.executable, *words(folder, *arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)


def make_row(scores, published):
    return ScoreRow(
        name="arxiv-gcn",
        split="test",
        scores=scores,
        published=published,
        seconds=1.0,
        features="ram",
        peak_rss_bytes=10**9,
    )
