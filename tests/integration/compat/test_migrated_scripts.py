"""Scripts that `gloader migrate` has changed run: what is done once as it says, the diff applied, nothing else."""

import shlex
import sys

import numpy as np
import pytest
import torch
from diffs import apply_diff
from scripts_to_migrate import DGL_BUILT, PYG_BUILT

import gloader
from gloader.cli.main import main
from gloader.compat.migrate import migrate_text

NUM_NODES, NUM_CLASSES = 300, 3


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a graph of three groups, whose nodes have a feature that tells the group."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    labels = rng.integers(0, NUM_CLASSES, NUM_NODES)
    src = rng.integers(0, NUM_NODES, 6 * NUM_NODES)
    alike = [np.flatnonzero(labels == label) for label in range(NUM_CLASSES)]
    dst = np.array([rng.choice(alike[labels[node]]) for node in src])
    features = rng.standard_normal((NUM_NODES, 8)).astype(np.float32)
    features[np.arange(NUM_NODES), labels] += 2
    arrays = (src, dst, features, labels, rng.integers(0, 3, NUM_NODES))
    torch.save(tuple(map(torch.from_numpy, arrays)), "arrays.pt")
    return tmp_path


def run(text):
    """Execute a script; return what it leaves."""
    torch.manual_seed(1)
    left = {"__name__": "__main__"}
    exec(compile(text, "script.py", "exec"), left)  # noqa: S102 - of this repository
    return left


def changed(text):
    """Return a script with the diff applied, and what is done once."""
    found = migrate_text(text, "script.py")
    assert found.is_complete
    return apply_diff(text, found.diff), found.steps


def test_a_script_of_pyg(folder):
    pytest.importorskip("torch_geometric")
    text, (step,) = changed(PYG_BUILT)
    assert step.where == "in the script as it is, behind the lines that make data:"
    made = PYG_BUILT.partition("kwargs = ")[0]
    run(f"{made}{step.command}\n")
    left = run(text)
    assert np.mean(left["losses"][-3:]) < 0.7 * np.mean(left["losses"][:3])
    assert left["num_rows"] == NUM_NODES
    assert type(left["loader"]).__module__.startswith("gloader.")


def test_a_script_of_dgl_where_there_is_none(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    text, (saved, prepared) = changed(DGL_BUILT)
    assert saved.command == 'dgl.save_graphs("graph.bin", [g])'
    # The same without DGL: what the file would hold, with the flags of the command.
    assert shlex.split(prepared.command)[2:] == ["dgl:graph.bin", "data/graph", "--self-loops"]
    src, dst, features, labels, split = torch.load("arrays.pt", weights_only=True)
    gloader.Dataset.from_numpy(
        "data/graph",
        features=features.numpy(),
        labels=labels.numpy(),
        edge_index=torch.stack([src, dst]).numpy(),
        train=(split == 0).numpy(),
        valid=(split == 1).numpy(),
        test=(split == 2).numpy(),
        self_loops=True,
    )
    left = run(text)
    assert np.mean(left["losses"][-3:]) < 0.7 * np.mean(left["losses"][:3])


def test_a_graph_that_dgl_saves(folder):
    pytest.importorskip("dgl")
    text, (saved, prepared) = changed(DGL_BUILT)
    made = DGL_BUILT.partition("class SAGE")[0]
    run(f"{made}\n{saved.command}\n")
    assert main(shlex.split(prepared.command)[1:]) == 0
    left = run(text)
    assert np.mean(left["losses"][-3:]) < 0.7 * np.mean(left["losses"][:3])
    assert gloader.Dataset.open("data/graph").has_self_loops
