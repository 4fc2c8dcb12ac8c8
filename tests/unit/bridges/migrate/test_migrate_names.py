"""Whatever `gloader migrate` names is there: pages, flags, names of gloader, and the arguments of its tables."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
from cyclopts import CycloptsError

import gloader
import gloader.errors
from gloader.adapters import pyg
from gloader.bridges.dgl_api.loader import _NEEDLESS
from gloader.bridges.migrate import dgl_calls, prepare_steps, pyg_calls
from gloader.bridges.migrate.advice import FROM_DGL, FROM_PYG
from gloader.bridges.pyg.graph_data import EdgeData, GraphData, HeteroGraphData, NodeData
from gloader.cli.main import build_app
from gloader.compat.dgl.dataloading import DataLoader, NeighborSampler, as_edge_prediction_sampler
from gloader.convert.options import PrepareOptions
from gloader.convert.sources import ogb_links
from gloader.errors import DglFeatureError

ROOT = Path(__file__).parents[4]
FILES = sorted((ROOT / "gloader" / "bridges" / "migrate").glob("*.py"))
WORDS = {
    "edge_dir": "reverse the edges before the export",
    "prob": "the weights of edges are called 'weight'",
}
VALUES = {
    "--edge-table": ["train=links.csv"],
    "--order": ["community"],
    "--edge-split": ["80/10/10"],
    "--edge-split-relation": ["a:b:c"],
}


def texts():
    """Return every text of the files that is not a docstring."""
    for file in FILES:
        tree = ast.parse(file.read_text())
        docs = {
            id(node.value)
            for each in ast.walk(tree)
            if isinstance(each, ast.Module | ast.ClassDef | ast.FunctionDef)
            for node in each.body
            if isinstance(node, ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                yield node.value


TEXT = "\n".join(text for text in texts() if "jupyter" not in text)


@pytest.mark.parametrize("page", sorted({*re.findall(r"docs/[\w-]+\.md", TEXT), FROM_DGL, FROM_PYG}))
def test_every_page_is_there(page):
    assert (ROOT / page).is_file()


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"(?<!\w)--[a-z-]+", TEXT))))
def test_every_flag_is_one_of_prepare(flag):
    words = ["prepare", "builtin:digits", "out", flag]
    build_app().parse_args([*words, *VALUES.get(flag, [])], exit_on_error=False, print_error=False)
    with pytest.raises(CycloptsError):
        build_app().parse_args([*words[:3], "--no-such-flag"], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"gloader(?:\.[A-Za-z_]\w*)+", TEXT))))
def test_every_name_of_gloader_is_there(name):
    parts = name.split(".")
    module = importlib.import_module("gloader")
    for number, part in enumerate(parts[1:], 2):
        if hasattr(module, part):
            module = getattr(module, part)
            continue
        try:
            module = importlib.import_module(".".join(parts[:number]))
        except gloader.errors.MissingDependencyError:  # a module that is for DGL, where there is none
            file = Path(ROOT, *parts[:number])
            assert file.with_suffix(".py").is_file() or parts[-1] in (file / "__init__.py").read_text()
            return


def test_keywords_of_flags_are_options_of_conversions():
    made = prepare_steps.PrepareSteps()
    made.add("here", "import gloader; gloader.Dataset.from_pyg(data, 'out')")
    for flag in dgl_calls.FLAGS.values():
        if flag:
            made.flag(flag)
    made.flag("--add-reverse")
    made.split_edges(ast.parse("'a', 'b', 'c'", mode="eval").body)
    call = ast.parse(made.complete()[0].command.partition("; ")[2], mode="eval").body
    assert {each.arg for each in call.keywords} <= set(PrepareOptions.__dataclass_fields__)
    assert len(call.keywords) == len(made.flags) == 6


def test_data_sets_that_are_refused_are_those_of_prepare():
    assert prepare_steps.OGB_UNFIT.keys() == {"ogbn-proteins", *ogb_links.UNFIT_LINKS}
    assert prepare_steps.OGB_UNFIT.items() >= ogb_links.UNFIT_LINKS.items()


@pytest.mark.parametrize("name", sorted(dgl_calls.NEEDLESS))
def test_arguments_that_are_not_needed_are_taken(name):
    of_samplers = inspect.signature(as_edge_prediction_sampler).parameters
    assert name in _NEEDLESS or name in of_samplers
    assert name not in inspect.signature(DataLoader).parameters


@pytest.mark.parametrize("name", sorted(dgl_calls.ALLOWED))
def test_values_that_are_allowed_are_taken_and_others_are_not(name):
    allowed, advice = dgl_calls.ALLOWED[name]
    sampler = NeighborSampler([2])

    def make(value):
        if name == "exclude":
            return as_edge_prediction_sampler(sampler, exclude=value)
        return NeighborSampler([2], **{name: value})

    for value in allowed:
        assert make(value) is not None
    with pytest.raises(DglFeatureError, match=re.escape(WORDS.get(name, advice))):
        make("none of these")


def test_what_graphs_are_said_to_have_they_have():
    assert set(pyg_calls.LOADERS.values()) <= set(pyg.__all__)
    for kind, names in (
        (GraphData, pyg_calls.DATA_NAMES - {"dataset"}),
        (HeteroGraphData, pyg_calls.HETERO_DATA_NAMES - {"dataset"}),
        (gloader.Dataset, set(pyg_calls.DATASET_NAMES.values())),
    ):
        assert names <= set(dir(kind)), kind
    assert set(dir(NodeData)) | set(dir(EdgeData)) >= pyg_calls.STORE_NAMES


@pytest.mark.parametrize("name", sorted({**pyg_calls.DROPPED, **pyg_calls.REFUSED}))
def test_arguments_that_go_are_those_of_pyg(name):
    loader = pytest.importorskip("torch_geometric.loader")
    import torch.utils.data

    known = [loader.NeighborLoader, loader.LinkNeighborLoader, loader.NodeLoader, torch.utils.data.DataLoader]
    assert any(name in inspect.signature(each).parameters for each in known)
