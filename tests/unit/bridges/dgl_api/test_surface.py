"""The names of `gloader.compat.dgl` are those in the table of `gloader migrate`; all other names raise an error."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import gloader.compat.dgl as dgl
from gloader.bridges.dgl_api.block import DGLBlock
from gloader.bridges.dgl_api.dataset_graph import DGLGraph
from gloader.bridges.migrate.advice import ADVICE, BLOCK_NAMES, FROM_DGL, GRAPH_NAMES, SURFACE

HERE = "gloader.compat."


@pytest.mark.parametrize("module", SURFACE)
def test_every_name_of_the_table_is_there(module):
    found = importlib.import_module(HERE + module)
    for name in SURFACE[module]:
        assert getattr(found, name) is not None, name
    assert set(getattr(found, "__all__", SURFACE[module])) == SURFACE[module]


@pytest.mark.parametrize(
    ("kind", "names"), [(DGLBlock, BLOCK_NAMES), (DGLGraph, GRAPH_NAMES)], ids=["block", "graph"]
)
def test_every_name_of_a_graph_is_there(kind, names):
    own = {name for name in dir(kind) if not name.startswith("_")}
    # What is set where it is made.
    own |= {"device", "idtype", "is_block"}
    assert names <= own


@pytest.mark.parametrize("name", [name for name in ADVICE if name not in SURFACE])
def test_every_other_name_says_what_to_do(name):
    module, _, last = name.rpartition(".")
    # Of a module that is not there, Python asks for no name.
    named = name if module in SURFACE else module
    with pytest.raises(dgl.DglFeatureError, match=f"has no {re.escape(named)}: ") as error:
        getattr(importlib.import_module(HERE + module), last)
    assert FROM_DGL in str(error.value)


def test_a_module_that_is_not_there_says_what_to_do():
    with pytest.raises(dgl.DglFeatureError, match=r"has no dgl.data: .*save it once with dgl.save_graphs"):
        from gloader.compat.dgl.data import CoraGraphDataset  # noqa: F401
    with pytest.raises(dgl.DglFeatureError, match=r"has no dgl.sampling: loaders sample"):
        importlib.import_module("gloader.compat.dgl.sampling.sample_neighbors")
    with pytest.raises(dgl.DglFeatureError, match=r"has no dgl.nn.EdgeConv: this layer is not here"):
        from gloader.compat.dgl.nn import EdgeConv  # noqa: F401
    with pytest.raises(dgl.DglFeatureError, match=r"has no dgl.dataloading.negative_sampler.GlobalUniform"):
        from gloader.compat.dgl.dataloading.negative_sampler import GlobalUniform  # noqa: F401
    with pytest.raises(dgl.DglFeatureError, match=r"has no dgl.function.u_pow_v"):
        from gloader.compat.dgl.function import u_pow_v  # noqa: F401
    assert importlib.import_module("gloader.bridges.migrate.advice")


def test_who_asks_whether_a_name_is_there_is_told():
    assert not hasattr(dgl, "graph")
    assert not hasattr(dgl.nn, "EdgeConv")
    assert not hasattr(dgl.function, "u_pow_v")
    assert hasattr(dgl.function, "u_mul_e")


def test_no_file_has_the_name_of_something_of_dgls():
    own = {name for _, name, _ in pkgutil.iter_modules(dgl.__path__)}
    assert not own & {name.removeprefix("dgl.") for name in ADVICE if name.count(".") == 1} - SURFACE["dgl"]


def test_the_page_is_there():
    assert (Path(__file__).parents[4] / FROM_DGL).is_file()


def test_a_seed_is_that_of_loaders_built_later():
    from gloader.bridges.dgl_api.loader import current_seed

    before = current_seed()
    dgl.seed(17)
    assert current_seed() == 17
    dgl.seed(before)
