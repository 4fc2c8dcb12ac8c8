"""`gloader prepare triples:`, `train --task kg`, `infer --queries` and `report`, as a user runs them."""

from __future__ import annotations

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from knowledge_worlds import random_parts, write_parts

from gloader.cli.main import main

FLAGS = ["--batch-size", "32", "--memory-budget", "400MB", "--threads", "1", "--epochs", "2", "--dim", "8"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A dataset, and a run on it."""
    folder = tmp_path_factory.mktemp("kg")
    write_parts(folder / "graph", random_parts(num_entities=30, sizes=(300, 30, 30)))
    assert main(["prepare", f"triples:{folder}/graph", str(folder / "data"), "--memory-budget", "100MB"]) == 0
    words = ["train", "--dataset", str(folder / "data"), "--task", "kg", "--model", "complex"]
    assert main([*words, "--negatives", "uniform:16,shared", *FLAGS, "--out", str(folder / "run")]) == 0
    return folder


def infer(world, queries, out, *words):
    """Return the exit status of the command."""
    given = ["--dataset", str(world / "data"), "--checkpoint", str(world / "run"), "--memory-budget", "400MB"]
    return main(["infer", *given, "--queries", str(queries), "--out", str(out), *words])


def test_prepare_says_how_to_train(tmp_path, capsys):
    write_parts(tmp_path / "graph", random_parts())
    assert main(["prepare", f"triples:{tmp_path}/graph", str(tmp_path / "data")]) == 0
    told = " ".join("".join(capsys.readouterr()).split())
    assert "--task kg --model complex" in told
    assert "train 90, valid 20, test 25" in told


def test_a_run_has_the_figures_of_both_sides_and_is_repeated_by_its_configuration(world, tmp_path, capsys):
    scores = json.loads((world / "run" / "scores.json").read_text())
    assert (scores["kind"], scores["num"]) == ("triples", 30)
    sides = scores["sides"]
    for name in ("mrr", "hits@1", "hits@3", "hits@10"):
        mean = (sides["heads"][name] + sides["tails"][name]) / 2
        assert scores["metrics"][name] == pytest.approx(mean)
    result = json.loads((world / "run" / "result.json").read_text())
    assert result["test_mrr"] == scores["metrics"]["mrr"]
    config = world / "run" / "config.yaml"
    assert yaml.safe_load(config.read_text())["knowledge"] == {"dim": 8, "norm": 1, "margin": 9.0}
    capsys.readouterr()
    again = [
        "train",
        "--dataset",
        str(world / "data"),
        "--config",
        str(config),
        "--out",
        str(tmp_path / "again"),
    ]
    assert main([*again, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test_mrr"] == result["test_mrr"]


@pytest.mark.parametrize("name", ["queries.csv", "queries.parquet"])
@pytest.mark.parametrize("asks_heads", [False, True])
def test_queries_are_answered_by_key(world, tmp_path, capsys, name, asks_heads):
    columns = {"tail" if asks_heads else "head": ["e1", "e2"], "relation": ["r1", "r0"]}
    queries, out = tmp_path / name, tmp_path / name.replace("queries", "answers")
    if name.endswith("csv"):
        rows = zip(*columns.values(), strict=True)
        queries.write_text("\n".join(",".join(row) for row in [tuple(columns), *rows]) + "\n")
    else:
        pq.write_table(pa.table(columns), queries)
    assert infer(world, queries, out, "--top", "3", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["num_answers"], told["asked"]) == (6, "heads" if asks_heads else "tails")
    found = (
        list(csv.DictReader(out.read_text().splitlines()))
        if name.endswith("csv")
        else pq.read_table(out).to_pylist()
    )
    given, asked = ("tail", "head") if asks_heads else ("head", "tail")
    assert [(row[given], row["relation"], int(row["rank"])) for row in found] == [
        (entity, relation, rank)
        for entity, relation in zip(*columns.values(), strict=True)
        for rank in (1, 2, 3)
    ]
    scores = [float(row["score"]) for row in found]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    known = {
        triple for part in random_parts(num_entities=30, sizes=(300, 30, 30)).values() for triple in part
    }
    assert not known & {(row["head"], row["relation"], row["tail"]) for row in found}
    assert len({row[asked] for row in found[:3]}) == 3
    out.unlink()
    assert infer(world, queries, out, "--top", "30", "--with-known") == 0
    rows = (
        list(csv.DictReader(out.read_text().splitlines()))
        if name.endswith("csv")
        else pq.read_table(out).to_pylist()
    )
    assert len(rows) == 60


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("head,tail\ne1,e2\n", [], "has no header with these names; name two columns, head and relation"),
        ("head,relation,tail\ne1,r1,e2\n", [], "name two columns, head and relation"),
        ("head,relation\ne1,r1\nnobody,r1\n", [], "row 1 has the key 'nobody', which no entity has"),
        ("head,relation\ne1,nothing\n", [], "row 0 has the key 'nothing', which no relation has"),
        (
            "head,relation\ne1,r1\n",
            ["--layer", "1"],
            "leave --table, --pairs, --layer, --type and --probabilities out",
        ),
    ],
)
def test_queries_that_have_no_answer_are_refused(world, tmp_path, capsys, text, words, message):
    (tmp_path / "q.csv").write_text(text)
    assert infer(world, tmp_path / "q.csv", tmp_path / "a.csv", *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "a.csv").exists()


def test_answers_are_a_table_and_other_predictions_are_refused(world, tmp_path, capsys):
    (tmp_path / "q.csv").write_text("head,relation\ne1,r1\n")
    assert infer(world, tmp_path / "q.csv", tmp_path / "a.npy") == 2
    assert "answers to --queries are a table" in " ".join(capsys.readouterr().err.split())
    given = ["infer", "--dataset", str(world / "data"), "--checkpoint", str(world / "run")]
    assert main([*given, "--out", str(tmp_path / "a.csv")]) == 2
    assert "the checkpoint scores triples" in " ".join(capsys.readouterr().err.split())


def test_a_report_has_the_figures(world, tmp_path):
    assert main(["report", str(world / "run"), "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "Ranks of 30 triples among all entities" in page
    assert "hits@10" in page
