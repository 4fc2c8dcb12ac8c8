"""Scripts that `gloader migrate` has changed run: what is done once as it says, the diff applied, nothing else."""

import re
import shlex
import sys

import numpy as np
import pytest
import torch
from diffs import apply_diff
from scripts_that_run import RUNNING
from scripts_to_migrate import DGL_BUILT, PYG_BUILT

import gloader
from gloader.bridges.migrate.migration import migrate_text
from gloader.cli.main import main

NUM_NODES, NUM_CLASSES = 300, 3


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a graph of three groups, whose nodes have a feature that tells the group."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))
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


def make_files(library):
    """Write graph and hetero, as the library saves them, next to the arrays."""
    src, dst, features, labels, split = torch.load("arrays.pt", weights_only=True)
    rng = np.random.default_rng(1)
    writes = torch.from_numpy(np.stack([rng.integers(0, 40, 400), rng.integers(0, 100, 400)]))
    cites = torch.from_numpy(rng.integers(0, 100, (2, 300)))
    paper = {"label": torch.arange(100) % 3} | {
        f"{part}_mask": split[:100] == number for number, part in enumerate(("train", "val", "test"))
    }
    of_nodes = {"label": labels} | {
        f"{part}_mask": split == number for number, part in enumerate(("train", "val", "test"))
    }
    if library == "DGL":
        dgl = pytest.importorskip("dgl")
        g = dgl.graph((src, dst), num_nodes=NUM_NODES)
        g.ndata["feat"] = features
        g.ndata.update(of_nodes)
        dgl.save_graphs("graph.bin", [g])
        # No venue is reached in the second hop, and no shelf at all: their relations are empty in blocks.
        edges = {
            ("author", "writes", "paper"): tuple(writes),
            ("paper", "cites", "paper"): tuple(cites),
            ("shelf", "holds", "venue"): (torch.arange(3), torch.arange(3)),
            ("venue", "hosts", "author"): (torch.arange(3), torch.arange(3)),
        }
        hg = dgl.heterograph(edges, {"author": 40, "paper": 100, "shelf": 3, "venue": 3})
        hg.nodes["paper"].data.update(paper)
        dgl.save_graphs("hetero.bin", [hg])
        return
    data = pytest.importorskip("torch_geometric.data")
    made = data.Data(x=features, edge_index=torch.stack([src, dst]), y=labels)
    made.update({key: value for key, value in of_nodes.items() if key != "label"})
    torch.save(made, "graph.pt")
    typed = data.HeteroData()
    typed["paper"].x, typed["author"].x, typed["paper"].y = (
        features[:100],
        torch.ones(40, 4),
        paper.pop("label"),
    )
    typed["paper"].update(paper)
    typed["author", "writes", "paper"].edge_index, typed["paper", "cites", "paper"].edge_index = writes, cites
    torch.save(typed, "hetero.pt")


def with_step(script, step):
    """Return the script as far as the line that ``step`` is behind, and the step; the function around it is called."""
    lines = script.splitlines(keepends=True)
    found = re.search(r"behind line (\d+)", step.where)
    last = int(found[1]) if found else lines.index("    # made\n") + 1
    margin = "    " if "load()" in script or "build()" in script else ""
    function = re.search(r"def (load|build)\(", script)
    return "".join(lines[:last]) + f"{margin}{step.command}\n" + (f"{function[1]}()\n" if function else "")


@pytest.mark.reliability("S11")
@pytest.mark.parametrize("name", RUNNING)
def test_what_migrate_says_to_map_runs(name, folder, monkeypatch):
    """The diff alone is applied, what is to be done once is done as it says, and the script runs to its end."""
    script = RUNNING[name]
    make_files("DGL" if name.startswith("DGL") else "PyG")
    text, steps = changed(script)
    for step in steps:
        if step.where.startswith("in the script as it is"):
            run(with_step(script, step))
        else:
            assert main(shlex.split(step.command)[1:]) == 0
    monkeypatch.setitem(sys.modules, "dgl", None)
    left = run(text)
    assert len(left["losses"]) >= 2
    assert np.isfinite(left["losses"]).all()
    if "num_train" in left:  # masks are the script's, and not drawn
        assert left["num_train"] == int((left["split"] == 0).sum())


def test_a_script_of_pyg(folder):
    pytest.importorskip("torch_geometric")
    text, (step,) = changed(PYG_BUILT)
    assert step.where == "in the script as it is, behind line 10:"
    run("".join(PYG_BUILT.splitlines(keepends=True)[:10]) + step.command)
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
