"""Each example in its two forms: they differ in a few lines, and learn the same."""

import difflib
import re
import runpy
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
SPEC = "synthetic:community,nodes=3000,edges=30000,dim=32,classes=4,seed=5"


# Those over several types make their graph themselves.
GRAPHS = {name: ["--papers", "3000"] for name in ("dgl_hetero", "pyg_hetero")}


def accuracy_of(
    name: str, suffix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> float:
    script = f"{name}{suffix}.py"
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [script, *GRAPHS.get(name, ["--dataset", SPEC]), "--epochs", "4"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries' own
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    (found,) = re.findall(r"test (?:accuracy|AUC) (0\.\d+)", capsys.readouterr().out)
    return float(found)


# Lines that differ between the forms, counted in each: sampled loops, and one that evaluates layer by layer besides.
MOST_CHANGES = {
    "dgl_sage": 5,
    "pyg_sage": 5,
    "pyg_layerwise": 14,
    "dgl_hetero": 5,
    "pyg_hetero": 5,
    "dgl_links": 17,  # a loader of edges, and one of nodes to evaluate
    "pyg_links": 8,
}


LEAST = {"dgl_links": 0.57, "pyg_links": 0.57}  # edges before pairs that are none: half of them by chance


@pytest.mark.parametrize("name", MOST_CHANGES)
def test_both_forms_learn_the_same(name, monkeypatch, capsys, tmp_path):
    if name in GRAPHS:  # made in a folder of its own
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plain = accuracy_of(name, "", monkeypatch, capsys)
    ours = accuracy_of(name, "_gloader", monkeypatch, capsys)
    assert plain > LEAST.get(name, 0.6)  # of four classes, or eight
    assert abs(plain - ours) < 0.05


@pytest.mark.parametrize("name", MOST_CHANGES)
def test_the_two_forms_differ_in_a_few_lines(name):
    plain, ours = (
        (EXAMPLES / file).read_text().splitlines() for file in (f"{name}.py", f"{name}_gloader.py")
    )
    changed = [line for line in difflib.ndiff(plain, ours) if line.startswith(("- ", "+ "))]
    assert 0 < len(changed) <= MOST_CHANGES[name]


def test_the_page_on_several_types_shows_what_the_examples_and_the_tables_are(tmp_path, monkeypatch):
    page = (EXAMPLES.parent / "docs" / "hetero.md").read_text()
    for name in GRAPHS:
        plain, ours = (
            (EXAMPLES / file).read_text().splitlines() for file in (f"{name}.py", f"{name}_gloader.py")
        )
        changed = [
            line[0] + line[2:]
            for line in difflib.ndiff(plain, ours)
            if line.startswith(("- ", "+ ")) and line[2:]
        ]
        (shown,) = re.findall(rf"```diff\n # examples/{name}\.py .*?\n(.*?)```", page, re.DOTALL)
        assert sorted(line for line in shown.splitlines() if line[1:]) == sorted(changed)
    monkeypatch.syspath_prepend(EXAMPLES)
    from publications import make_publications, write_tables

    graph = make_publications()
    write_tables(tmp_path, graph)
    assert f"# tables/graph.yaml\n{(tmp_path / 'graph.yaml').read_text()}```" in page
    assert str(graph.num_nodes["author"]) in page
