"""What a script may ask DGL for, as data: what its calls return, and what becomes of their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.bridges.migrate.advice import BLOCK_NAMES, GRAPH_NAMES, canonical
from gloader.bridges.migrate.library import Library
from gloader.bridges.migrate.loading import OGB_CLASSES

if TYPE_CHECKING:
    from gloader.bridges.migrate.library import Kind


LOADERS: Final = frozenset({"dgl.dataloading.DataLoader", "dgl.dataloading.NodeDataLoader"})
"""Loaders of mini-batches; the second is what DGL called the first, with the same arguments."""
SAMPLERS: Final = frozenset(
    f"dgl.dataloading.{name}"
    for name in ("NeighborSampler", "MultiLayerNeighborSampler", "MultiLayerFullNeighborSampler")
)
EDGE_SAMPLER: Final = "dgl.dataloading.as_edge_prediction_sampler"
MANY_GRAPHS: Final = frozenset(
    {"BA2MotifDataset", "FakeNewsDataset", "GINDataset", "GraphClassificationDataset", "LegacyTUDataset"}
    | {"MiniGCDataset", "PATTERNDataset", "CLUSTERDataset", "PPIDataset", "QM7bDataset", "QM9Dataset"}
    | {"QM9EdgeDataset", "SBMMixtureDataset", "SSTDataset", "TUDataset", "TreeGridDataset", "ZINCDataset"}
)
"""Data sets of `dgl.data` that are no single graph."""
FLAGS: Final = {
    "add_self_loop": "--self-loops",
    "to_bidirected": "--symmetrize",
    "add_reverse_edges": "--symmetrize",
    "to_simple": "--deduplicate",
    "remove_self_loop": "",
}
"""Changes to a whole graph, and what of `gloader prepare` takes their place; "" comes with --self-loops."""
STORED: Final = frozenset({"feat", "label", "train_mask", "val_mask", "test_mask", "weight", "edge_time"})
"""Data of a graph that a dataset keeps."""
NEEDLESS: Final = {
    "num_workers": "threads sample and read ahead, in place of worker processes",
    "persistent_workers": "threads sample and read ahead, in place of worker processes",
    "prefetch_factor": "the loader plans how far ahead it reads",
    "use_uva": "the graph is not pinned: features come from the SSD by way of a cache",
    "ddp_seed": "dgl.seed(n) is the seed of all ranks",
    "use_prefetch_thread": "batches are always read ahead",
    "use_alternate_streams": "copies to the device are always beside the computation",
    "pin_prefetcher": "batches are sent by way of pinned memory where that is possible",
    "gpu_cache": "device_cache= holds hot rows on the device (docs/gpu.md)",
    "reverse_eids": "a dataset knows which edges lead back",
    "reverse_etypes": "a dataset knows which edges lead back",
}
"""Arguments of loaders and samplers that `gloader.compat.dgl` takes and does not look at."""
REFUSED: Final = {
    "sampler": "give indices the nodes, and shuffle=, that an epoch is to have",
    "batch_sampler": "give indices the nodes, batch_size= and shuffle=",
    "collate_fn": "batches are made by the loader: change them in the loop",
    "generator": "dgl.seed(n) is the key of order and sampling",
    "timeout": "stall_timeout_s= is how long a stage may stand still",
    "multiprocessing_context": "threads sample and read ahead: leave it out",
}
"""Arguments of torch's loader that it does not take, and what to do instead."""
ALLOWED: Final[dict[str, tuple[tuple[object, ...], str]]] = {
    "edge_dir": (("in",), "neighbours are those of in-edges: reverse the edges before the export"),
    "replace": ((False,), "neighbours are drawn without replacement"),
    "mask": ((None,), "leave the edges out before the export"),
    "prob": ((None, "weight"), 'a dataset calls the weights of its edges "weight"'),
    "exclude": (
        (None, "self", "reverse_id", "reverse_types"),
        "exclude is None, 'self', 'reverse_id' or 'reverse_types'",
    ),
}
"""The values of other arguments that it takes, and what to do instead of others."""

_BUILDERS = ("graph", "heterograph", "bipartite", "from_networkx", "from_scipy", "rand_graph", "knn_graph")
_KINDS: Final[dict[str, Kind]] = {
    **{f"dgl.{name}": "built" for name in _BUILDERS},
    **{f"dgl.{name}": "graph" for name in ("DGLGraph", "node_subgraph", "edge_subgraph", "to_homogeneous")},
    **dict.fromkeys(LOADERS, "loader"),
    **dict.fromkeys(SAMPLERS, "sampler"),
    EDGE_SAMPLER: "edge sampler",
    "dgl.load_graphs": "loaded",
}


def kind_of_call(name: str) -> Kind:
    """Return the kind of what a call of ``name`` returns. Pure."""
    if name in OGB_CLASSES:
        return "dataset"
    found = canonical(name)
    last = found.rpartition(".")[2]
    if found.startswith("dgl.data.") and last.endswith("Dataset") and last not in MANY_GRAPHS:
        return "dataset"
    return _KINDS.get(found, "graph" if found.startswith("dgl.") and last in FLAGS else "")


_GRAPHS = ("graph", "built", "block", "graph or block")
_SAME_AFTER = ("to", "int", "long", "cpu", "local_var", "formats", *FLAGS)
_WHOLE = ("graph", "built")
LIBRARY: Final = Library(
    kind_of_call=kind_of_call,
    hands_on=lambda name: name.startswith("dgl.") and name.rpartition(".")[2] in FLAGS,
    methods={(kind, name): kind for kind in _GRAPHS for name in _SAME_AFTER},
    attributes={
        **{(kind, data): f"frame of {kind}" for kind in _WHOLE for data in ("ndata", "edata")},
        **{(kind, space): f"spaces of {kind}" for kind in _WHOLE for space in ("nodes", "edges")},
        **{(f"space of {kind}", "data"): f"frame of {kind}" for kind in _WHOLE},
    },
    items={
        **{f"spaces of {kind}": f"space of {kind}" for kind in _WHOLE},
        "dataset": "graph",
        "blocks": "block",
        "graphs": "graph",
        "loaded": "graphs",
        "graph": "graph",
    },
    several={"block": "blocks", "graph": "graphs"},
    loops={
        ("loader", 1): ("",),
        ("loader", 3): ("", "", "blocks"),
        ("loader", 4): ("", "block", "block", "blocks"),
        ("blocks", 1): ("block",),
        ("blocks", 0): ("block",),
        ("graphs", 0): ("graph",),
        ("loaded", 2): ("graphs", ""),
        ("graph", 2): ("graph", ""),
    },
    parameters={
        **dict.fromkeys(("g", "graph", "hg"), "graph or block"),
        **dict.fromkeys(("block", "mfg", "pos_graph", "neg_graph", "pair_graph", "positive_graph"), "block"),
        **dict.fromkeys(("blocks", "mfgs"), "blocks"),
    },
)
"""What variables of a script of DGL hold."""
NAMES: Final = {
    "graph": GRAPH_NAMES,
    "built": GRAPH_NAMES,
    "block": BLOCK_NAMES,
    "graph or block": GRAPH_NAMES | BLOCK_NAMES,
}
"""What such values have, by their kind."""
