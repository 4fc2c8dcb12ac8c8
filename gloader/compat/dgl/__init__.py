"""DGL's mini-batch loops on one machine, without DGL: ``import gloader.compat.dgl as dgl``.

Blocks, layers and loaders have DGL's names, arguments and parameters, over gloader's pipeline; a `gloader.Dataset` is
the graph. This is no graph library: DGL's other names raise `DglFeatureError`, whose message is the replacement
(docs/from-dgl.md).
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

__getattr__ = missing_from("dgl")
answer_for_submodules()
