"""DGL's mini-batch loops on one machine, without DGL: ``import gloader.compat.dgl as dgl``.

Blocks, layers and loaders have DGL's names, arguments and parameters, but use gloader's pipeline. A `gloader.Dataset`
is the graph. The code is in `gloader.bridges.dgl_api`; the modules below only give it DGL's names. This is no graph
library: every other name of DGL raises `DglFeatureError`, whose message names the replacement (docs/from-dgl.md).
"""

from gloader.bridges.dgl_api.dataset_graph import DGLGraph, load_graphs
from gloader.bridges.dgl_api.loader import seed
from gloader.bridges.dgl_api.names import EID, ETYPE, NID, NTYPE, answer_for_submodules, missing_from
from gloader.compat.dgl import dataloading, function, nn, ops, utils
from gloader.errors import DglFeatureError
from gloader.errors import GloaderError as DGLError

__all__ = [
    "EID",
    "ETYPE",
    "NID",
    "NTYPE",
    "DGLError",
    "DGLGraph",
    "DglFeatureError",
    "dataloading",
    "function",
    "load_graphs",
    "nn",
    "ops",
    "seed",
    "utils",
]

__getattr__ = missing_from("dgl")  # raises DglFeatureError for DGL's other names, as in each module below
answer_for_submodules()  # the same for an import of a module of DGL that does not exist here
