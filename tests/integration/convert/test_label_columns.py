"""Labels of files that are values or several columns: what the command prepares, says and refuses."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from gloader import Dataset
from gloader.cli.main import main
from gloader.errors import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data

N = 40


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    np.savetxt(
        "e.csv", random.integers(0, N, (99, 2)), fmt="%d", delimiter=",", header="src,dst", comments=""
    )
    np.save("x.npy", random.normal(size=(N, 3)).astype(np.float32))


def prepared(capsys, labels, *flags):
    """Prepare the edges with a label file; return the dataset and its receipt."""
    main(
        [
            "prepare",
            "edges:e.csv",
            "d",
            "--features",
            "x.npy",
            "--labels",
            labels,
            *flags,
            "--json",
            "--overwrite",
        ]
    )
    capsys.readouterr()
    dataset = Dataset.open("d")
    return dataset, dataset.metadata["receipt"]


def refused(capsys, *arguments):
    assert main(["prepare", *arguments]) != 0
    return capsys.readouterr().err


def table(name, columns):
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    with open(name, "w") as file:  # noqa: PTH123 - as short as the lines
        file.write("\n".join(lines) + "\n")


def test_a_column_of_fractions_is_values_with_its_name(capsys):
    price = np.arange(N) / 8
    table("l.csv", {"price": price})
    dataset, receipt = prepared(capsys, "l.csv")
    assert (dataset.label_kind, dataset.label_names) == ("values", ("price",))
    np.testing.assert_array_equal(dataset.labels, price[:, None].astype(np.float32))
    assert receipt["columns"].endswith("labels: price of l.csv, in the order of the rows")
    assert receipt["labels by column"] == "price: 40 from 0 to 4.875"


def test_whole_numbers_are_classes_unless_they_are_said_to_be_values(capsys):
    table("l.csv", {"count": np.arange(N) % 5})
    dataset, receipt = prepared(capsys, "l.csv")
    assert (dataset.label_kind, dataset.num_classes) == ("classes", 5)
    assert "labels by class" in receipt
    assert "labels by column" not in receipt
    dataset, receipt = prepared(capsys, "l.csv", "--labels-as", "values")
    assert (dataset.label_kind, dataset.num_classes, dataset.label_names) == ("values", 1, ("count",))
    assert receipt["labels"] == "1 column of values"


def test_several_columns_of_a_table_are_labels_where_that_is_said(capsys):
    flags = np.random.default_rng(1).integers(0, 2, (2, N))
    ids = np.arange(N)[::-1]
    table("l.csv", {"id": ids[:-3], "red": flags[0][:-3], "round": flags[1][:-3]})
    said = refused(capsys, "edges:e.csv", "d", "--features", "x.npy", "--labels", "l.csv")
    assert "l.csv has 2 columns that may be labels: id (integer), red (integer), round (integer)" in said
    assert 'for several labels per node give --labels-as values, in Python labels_as="values"' in said
    dataset, receipt = prepared(capsys, "l.csv", "--labels-as", "values")
    assert (dataset.label_kind, dataset.label_names) == ("multilabel", ("red", "round"))
    np.testing.assert_array_equal(dataset.labels[3:], flags[:, :-3][:, ::-1].T)
    assert np.isnan(dataset.labels[:3]).all()
    assert "labels: red, round of l.csv, joined by id, 3 nodes are not in it" in receipt["columns"]
    assert receipt["labels"] == "2 columns of 0 and 1, multilabel; 3 nodes have none"


def test_an_array_of_several_columns_is_values(capsys):
    one_hot = np.eye(4, dtype=np.int64)[np.arange(N) % 4]
    np.save("l.npy", one_hot)
    dataset, receipt = prepared(capsys, "l.npy")
    assert dataset.label_kind == "multilabel"
    assert receipt["labels"].endswith("multilabel; one class per node is labels.argmax(axis=1)")
    said = refused(
        capsys, "edges:e.csv", "d", "--features", "x.npy", "--labels", "l.npy", "--labels-as", "classes"
    )
    assert "--labels-as classes needs (N,): one class per node" in said
    main(["info", "d"])
    shown = capsys.readouterr().out
    assert "labels       4 columns, multilabel" in shown
    assert "classes" not in shown
    main(["info", "d", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert (facts["num_classes"], facts["label_kind"]) == (4, "multilabel")


def test_folders_of_arrays_and_tables_have_them_too(capsys, tmp_path):
    values = np.random.default_rng(2).normal(size=(N, 2))
    (tmp_path / "npy").mkdir()
    np.save("npy/features.npy", np.load("x.npy"))
    np.save("npy/labels.npy", values)
    np.save("npy/edges.npy", np.loadtxt("e.csv", delimiter=",", skiprows=1, dtype=int))
    np.save("npy/values.npy", values)
    (tmp_path / "graph.yaml").write_text(
        "nodes: {a: {features: x.npy, labels: l.csv}}\nedges: {'a:to:a': e.csv}\n"
    )
    table("l.csv", {"low": values[:, 0], "high": values[:, 1]})
    main(["prepare", "npy:npy", "d1", "--json"])
    main(["prepare", "tables:.", "d2", "--labels-as", "values", "--json"])
    capsys.readouterr()
    for name in ("d1", "d2"):
        np.testing.assert_array_equal(Dataset.open(name).labels, values.astype(np.float32))
    assert Dataset.open("d2").label_names == ("low", "high")


def test_tensors_of_pyg_have_them(tmp_path):
    y = torch.rand(N, 3)
    y[:4] = torch.nan
    data = Data(x=torch.zeros(N, 2), y=y, edge_index=torch.zeros(2, 5, dtype=torch.int64))
    torch.save(data, "g.pt")
    main(["prepare", "pyg:g.pt", "d", "--json"])
    np.testing.assert_array_equal(Dataset.open("d").labels, y.numpy())
    whole = Data(x=data.x, y=torch.arange(N).float(), edge_index=data.edge_index)
    assert Dataset.from_pyg(whole, tmp_path / "a").label_kind == "classes"
    chosen = Dataset.from_pyg(whole, tmp_path / "b", labels_as="values", label_names=["age"])
    assert (chosen.label_kind, chosen.label_names) == ("values", ("age",))
    with pytest.raises(ConfigError, match="labels_as='rows': it must be 'classes' or 'values', or left out"):
        Dataset.from_pyg(whole, tmp_path / "c", labels_as="rows")


def test_sources_that_know_their_labels_refuse_the_flag(capsys):
    said = refused(capsys, "builtin:digits", "d", "--labels-as", "values")
    assert "--labels-as is for labels in files of your own (npy:, edges:, pyg:, dgl:, tables:)" in said


def test_a_budget_too_small_for_the_columns_is_named(capsys):
    table("l.csv", {f"c{number}": np.zeros(N, int) for number in range(200)})
    said = refused(
        capsys,
        *("edges:e.csv", "d", "--features", "x.npy", "--labels", "l.csv", "--labels-as", "values"),
        *("--memory-budget", "150KB"),
    )
    assert "200 labels of 40 nodes take 192 KB; the memory budget is 150 KB" in said
