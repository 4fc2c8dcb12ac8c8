"""`gloader prepare --order`: what a user sees of another row order, which is nothing but speed."""

import json

import numpy as np
import pytest
from convert_helpers import write_folder

from gloader.cli.main import main
from gloader.dataset import Dataset
from gloader.errors import FormatError, ShapeError

N = 120


@pytest.fixture
def graph(tmp_path):
    """A graph in which features and neighbours both tell the class, and ids tell nothing."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, N)
    pairs = random.integers(0, N, (4000, 2))
    features = 6 * np.eye(3, dtype=np.float32)[labels] + random.normal(size=(N, 3)).astype(np.float32)
    edges = pairs[labels[pairs[:, 0]] == labels[pairs[:, 1]]]
    return write_folder(tmp_path / "in", num_nodes=N, labels=labels, features=features, edges=edges)


def prepare(tmp_path, order):
    out = tmp_path / order
    words = ["prepare", f"npy:{tmp_path / 'in'}", str(out), "--order", order, "--memory-budget", "60MB"]
    assert main(words) == 0
    return Dataset.open(out)


def test_predictions_come_in_the_order_of_the_source(tmp_path, graph, capsys):
    dataset = prepare(tmp_path, "community")
    assert "by community" in "".join(capsys.readouterr())
    assert dataset.metadata["options"]["order"] == "community"
    assert (dataset.labels != graph["labels"]).any()  # so that a missing step would show
    flags = "--epochs 4 --batch-size 32 --fanout 4 --hidden 8 --lr 0.1"
    run = tmp_path / "run"
    assert main(["train", "--dataset", str(tmp_path / "community"), *flags.split(), "--out", str(run)]) == 0
    predictions = tmp_path / "predictions.npy"
    paths = ["--dataset", str(tmp_path / "community"), "--checkpoint", str(run), "--out", str(predictions)]
    assert main(["infer", *paths]) == 0
    predicted = np.load(predictions)
    assert (predicted == graph["labels"]).mean() > 0.95
    result = json.loads((run / "result.json").read_text())
    test = graph["test"]
    assert (predicted[test] == graph["labels"][test]).mean() == pytest.approx(result["test_acc"])


def test_orders_are_noted_and_verified(tmp_path, graph, capsys):
    assert prepare(tmp_path, "none").original_ids is None
    dataset = prepare(tmp_path, "degree")
    degrees = np.bincount(graph["edges"][:, 0], minlength=N)
    assert (np.diff(degrees[dataset.original_ids]) <= 0).all()
    assert main(["verify", str(tmp_path / "degree")]) == 0
    with pytest.raises(ShapeError, match=r"values have shape \(3,\); there are 120 nodes"):
        dataset.in_original_order(np.zeros(3))
    path = tmp_path / "degree" / "original_ids.npy"
    content = bytearray(path.read_bytes())
    content[4096 + 17] ^= 4
    path.write_bytes(content)
    assert main(["verify", str(tmp_path / "degree")]) != 0
    assert "original_ids.npy" in "".join(capsys.readouterr())
    assert main(["prepare", f"npy:{tmp_path / 'in'}", str(tmp_path / "x"), "--order", "random"]) == 2
    assert not (tmp_path / "x").exists()


def test_original_ids_of_another_length_are_no_dataset(tmp_path, graph):
    prepare(tmp_path, "degree")
    with Dataset.create(tmp_path / "bad", name="bad", num_nodes=1, num_classes=1) as writer:
        with writer.indptr() as out:
            out.append(np.zeros(2, np.int64))
        with writer.indices(0, "int32"):
            pass
        with writer.features(1, "float32") as out:
            out.append(np.zeros((1, 1), np.float32))
        writer.labels(np.zeros(1, np.int64))
        writer.splits(train=np.zeros(1, np.int64), valid=np.zeros(0, np.int64), test=np.zeros(0, np.int64))
        writer.nodes()._arrays.whole("original_ids", np.zeros(2, np.int64), (2,))
    with pytest.raises(FormatError, match=r"original_ids \(2,\) with 1 rows"):
        Dataset.open(tmp_path / "bad")
