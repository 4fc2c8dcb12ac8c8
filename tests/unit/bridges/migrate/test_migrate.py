"""The output of `gloader migrate` for any script: the libraries, the other scripts, and scripts without findings."""

import json

import pytest
from diffs import apply_diff
from scripts_to_migrate import DGL_BUILT, PYG_BUILT, RUN, SCRIPTS

from gloader.bridges.migrate.migration import migrate_file, migrate_text
from gloader.errors import ConfigError

COMPLETE = {*RUN, "DGL_PRODUCTS", "DGL_LINKS", "PYG_LINKS"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_diff_leads_to_a_script_of_python(name):
    found = migrate_text(SCRIPTS[name], "script.py")
    assert apply_diff(SCRIPTS[name], found.diff) == found.changed
    compile(found.changed, "script.py", "exec")
    assert found.is_complete == (name in COMPLETE)
    assert [each.line for each in found.findings] == sorted(each.line for each in found.findings)


@pytest.mark.parametrize("name", ["DGL_GRAPHBOLT", "DGL_WHOLE", "PYG_WHOLE"])
def test_a_script_without_mini_batches_stays_as_it_is(name):
    found = migrate_text(SCRIPTS[name], "script.py")
    assert not found.diff
    assert not found.steps
    assert not found.is_complete


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_changed_script_has_nothing_left_to_change(name):
    changed = migrate_text(SCRIPTS[name], "script.py").changed
    try:
        again = migrate_text(changed, "script.py")
    except ConfigError as error:
        assert "there is nothing left to change" in str(error)  # noqa: PT017 - either is right
    else:
        assert again.changed == changed


def test_what_is_for_programs_can_be_written():
    found = json.loads(json.dumps(migrate_text(DGL_BUILT, "script.py").to_json()))
    assert found["script"] == "script.py"
    assert found["libraries"] == ["DGL"]
    assert found["complete"] is True
    assert found["diff"].startswith("--- script.py\n+++ script.py\n@@ ")
    assert found["once"][1]["command"] == "gloader prepare dgl:graph.bin data/graph --self-loops"
    assert {"line": 10, "name": "dgl.graph", "verdict": "changes"}.items() <= found["findings"][0].items()
    missing = migrate_text(SCRIPTS["DGL_WHOLE"], "script.py").to_json()["findings"]
    assert {each["page"] for each in missing if each["verdict"] == "missing"} == {"docs/from-dgl.md"}


def test_a_script_of_both_libraries_is_changed_for_both():
    found = migrate_text(f"{DGL_BUILT}\n{PYG_BUILT}", "script.py")
    assert found.libraries == ("DGL", "PyG")
    assert "from gloader.compat.dgl.dataloading import DataLoader, NeighborSampler\n" in found.changed
    assert "from gloader.adapters.pyg import GraphData, NeighborLoader\n" in found.changed
    assert "dgl.graph" not in found.changed
    assert "Data(x=" not in found.changed


def test_scripts_that_are_imported_are_named(tmp_path):
    (tmp_path / "nets").mkdir()
    (tmp_path / "model.py").write_text("import dgl.nn\n")
    (tmp_path / "nets" / "sage.py").write_text("from torch_geometric.nn import SAGEConv\n")
    (tmp_path / "other.py").write_text("import numpy\n")
    script = tmp_path / "train.py"
    script.write_text("import dgl, model, other, json\nfrom nets.sage import SAGE\n")
    assert migrate_file(script).others == ("model.py", "nets/sage.py")
    script.write_text("from . import model\nimport dgl\n")
    assert migrate_file(script).others == ("model.py",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import numpy\n", "train.py imports neither dgl nor torch_geometric: give a script of DGL or PyG"),
        ("from gloader.compat.dgl import nn\n", "imports gloader, and neither dgl nor torch_geometric: there is"),
        ("import dglgo, model\n", "imports neither dgl nor torch_geometric: .*; it imports model.py: give those"),
        ("import dgl\nx = (\n", r"train.py is no Python of this version, line 2: '\(' was never closed"),
        ("import dgl\n\0", "train.py (cannot be parsed as Python|is no Python of this version)"),
        (f"import dgl\nx = {'-' * 100_000}1\n", "train.py (has expressions nested|cannot be parsed as Python)"),
        (f"import dgl\nx = 1{' + 1' * 800}\n", "train.py has expressions nested too deeply to be read"),
    ],
)  # fmt: skip
def test_what_there_is_nothing_to_say_of(text, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("import dgl\n")
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(ConfigError, match=said):
        migrate_file(tmp_path / "train.py")


def test_an_import_line_is_put_where_it_may_stand():
    text = (
        '"""Docs."""\nfrom __future__ import annotations; import numpy as np\n\n\n'
        "@staticmethod\ndef train():\n    import dgl\n    g = dgl.graph(([0], [1]))\n"
        "    return dgl.dataloading.DataLoader(g)\n"
    )
    changed = migrate_text(text, "script.py").changed
    compile(changed, "script.py", "exec")
    lines = changed.splitlines()
    assert lines[:2] == text.splitlines()[:2]
    assert lines.index("import gloader") < lines.index("@staticmethod")
    text = text.partition("import numpy as np\n")[2]
    changed = migrate_text(text, "script.py").changed
    compile(changed, "script.py", "exec")
    assert changed.startswith("\n\nimport gloader.compat.dgl as dgl\nimport gloader\n@staticmethod\n")


def test_a_module_that_a_function_imports_is_not_there_for_others():
    text = (
        "import dgl\nfrom ogb.nodeproppred import DglNodePropPredDataset\n\n\ndef f():\n    import torch\n\n\n"
        'd = DglNodePropPredDataset("ogbn-arxiv")\ns = d.get_idx_split()\ndgl.dataloading.DataLoader(d[0][0], s)\n'
    )
    changed = migrate_text(text, "script.py").changed
    assert changed.index("\nimport torch\n") < changed.index("torch.tensor(")


PYG_CALL, DGL_CALL = "NeighborLoader(data, num_neighbors=[5], {})", "DataLoader(g, seeds, sampler, {})"


@pytest.mark.parametrize(
    "call",
    [
        f"from torch_geometric.loader import NeighborLoader\n{PYG_CALL}\n",
        f"from dgl.dataloading import DataLoader\n{DGL_CALL}\n",
    ],
    ids=["PyG", "DGL"],
)
@pytest.mark.parametrize(
    ("before", "handed", "is_known"),
    [
        ("", "**{'batch_size': 2}", True),
        ("", "**dict(batch_size=2)", True),
        ("opts = dict(batch_size=2)\nn = opts['batch_size'] + opts.get('more', 0)\n", "**opts", True),
        ("", "**rest", False),
        ("", "*rest", False),
        ("", "**dict(rest, batch_size=2)", False),
        ("", "**{**rest, 'batch_size': 2}", False),
        ("", "**{name: 2}", False),
        ("opts = {}\nopts.update(num_workers=2)\n", "**opts", False),
        ("opts = {}\nopts['num_workers'] = 2\n", "**opts", False),
        ("opts = {}\nopts |= rest\n", "**opts", False),
        ("opts = {}\nadd_to(opts)\n", "**opts", False),
        ("opts = {}\nother = opts\nother['num_workers'] = 2\n", "**opts", False),
        ("opts = {'num_workers': 2}\nif fast:\n    opts = {}\n", "**opts", False),
        ("a.opts = {}\na.opts['num_workers'] = 2\n", "**a.opts", False),
    ],
)
def test_arguments_that_are_not_known_are_to_be_looked_at(
    call: str, before: str, handed: str, is_known: bool
) -> None:
    library, call = call.split("\n", 1)
    found = migrate_text(f"{library}\n{before}{call.replace('{}', handed)}", "script.py")
    assert any(each.name in {"*", "**"} for each in found.findings) != is_known
    assert found.is_complete <= is_known


@pytest.mark.parametrize(
    ("use", "is_asked"),
    [
        ("make = partial({}, batch_size=2)", False),
        ("loader_of = {}", False),
        ("class Mine({}):\n    pass", False),
        ("print(isinstance(loader, {}))", True),
    ],
)
def test_a_loader_that_is_not_called_where_it_stands_is_to_be_looked_at(use: str, is_asked: bool) -> None:
    for module, name in (("torch_geometric.loader", "NeighborLoader"), ("dgl.dataloading", "DataLoader")):
        found = migrate_text(f"from {module} import {name}\n{use.format(name)}\n", "script.py")
        assert any("check their arguments" in each.text for each in found.findings) != is_asked


def test_a_graph_is_followed_through_a_mapping() -> None:
    text = (
        "from torch_geometric.data import Data\nfrom torch_geometric.loader import NeighborLoader\n"
        "data = Data(x=x)\nopts = dict(data=data, num_neighbors=[5], num_workers=2)\nNeighborLoader(**opts)\n"
    )
    found = migrate_text(text, "script.py")
    assert 'data = GraphData(gloader.Dataset.open("data/graph"))\n' in found.changed
    assert "opts = dict(data=data, num_neighbors=[5])\n" in found.changed
    assert found.is_complete
