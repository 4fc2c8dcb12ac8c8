"""gloader: train graph neural networks on graphs with features that do not fit in memory.

`Dataset` and the loaders are imported at their first use, so that ``import gloader`` needs neither torch nor a GPU.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gloader.core.version import __version__

if TYPE_CHECKING:
    from gloader.convert.own_tables import prepare
    from gloader.core.fanouts import collective
    from gloader.core.negatives import Binary, InBatch, Table, Uniform
    from gloader.dataset import Dataset
    from gloader.loader import HeteroLoader, LinkLoader, Loader, NodeEmbedding
    from gloader.pipeline.embedding_optimizers import Adagrad, RowwiseAdagrad, SparseAdam
    from gloader.training.propagation.propagate_dataset import propagate

__all__ = [
    "Adagrad",
    "Binary",
    "Dataset",
    "HeteroLoader",
    "InBatch",
    "LinkLoader",
    "Loader",
    "NodeEmbedding",
    "RowwiseAdagrad",
    "SparseAdam",
    "Table",
    "Uniform",
    "__version__",
    "collective",
    "prepare",
    "propagate",
]

# The module that defines each public name.
_HOMES = {
    "collective": "gloader.core.fanouts",
    "Binary": "gloader.core.negatives",
    "InBatch": "gloader.core.negatives",
    "Table": "gloader.core.negatives",
    "Uniform": "gloader.core.negatives",
    "Dataset": "gloader.dataset",
    "HeteroLoader": "gloader.loader",
    "LinkLoader": "gloader.loader",
    "Loader": "gloader.loader",
    "NodeEmbedding": "gloader.loader",
    "Adagrad": "gloader.pipeline.embedding_optimizers",
    "RowwiseAdagrad": "gloader.pipeline.embedding_optimizers",
    "SparseAdam": "gloader.pipeline.embedding_optimizers",
    "prepare": "gloader.convert.own_tables",
    "propagate": "gloader.training.propagation.propagate_dataset",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use. Python calls this for names that the module does not have yet."""
    # `gloader.ray` is a module, not a name in a module. It imports the package Ray only when it is used.
    if name == "ray":
        return import_module("gloader.ray")
    if name not in _HOMES:
        from gloader.core.near_names import missing_attribute

        raise missing_attribute("module 'gloader'", name, __all__, {})
    return getattr(import_module(_HOMES[name]), name)
