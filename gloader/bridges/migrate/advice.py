"""DGL's names as data: the names that `gloader.compat.dgl` has, and advice for all others.

`gloader migrate` looks up a script's names here, and the errors of `gloader.compat.dgl` contain the advice. Names are
dotted, such as "dgl.nn.SAGEConv". `canonical` first replaces aliases, then `is_here` and `advice_of` look up the name.
This module does not import torch, so that `gloader migrate` reads scripts without torch or DGL.
"""

from __future__ import annotations

from typing import Final

# Documentation pages for the two libraries' users.
FROM_DGL: Final = "docs/from-dgl.md"
FROM_PYG: Final = "docs/from-pyg.md"

_ENDS = "uve"  # sources, destinations, edges
_MESSAGES = {
    f"{left}_{op}_{right}"
    for op in ("add", "sub", "mul", "div", "dot")
    for left in _ENDS
    for right in _ENDS
    if left != right
}

SURFACE: Final[dict[str, frozenset[str]]] = {
    "dgl": frozenset(
        {"NID", "EID", "NTYPE", "ETYPE", "DGLError", "DGLGraph", "DglFeatureError", "load_graphs", "seed"}
        | {"nn", "dataloading", "function", "ops", "utils"}
    ),
    "dgl.function": frozenset({"copy_u", "copy_e", "sum", "mean", "max", "min"} | _MESSAGES),
    "dgl.nn": frozenset(
        {"SAGEConv", "GraphConv", "GATConv", "GATv2Conv", "RelGraphConv", "HeteroGraphConv", "pytorch"}
        | {"edge_softmax", "functional"}
    ),
    "dgl.nn.functional": frozenset({"edge_softmax"}),
    "dgl.ops": frozenset({"edge_softmax"}),
    "dgl.utils": frozenset({"expand_as_pair"}),
    "dgl.dataloading": frozenset(
        {"NeighborSampler", "MultiLayerNeighborSampler", "MultiLayerFullNeighborSampler", "DataLoader"}
        | {"as_edge_prediction_sampler", "negative_sampler"}
    ),
    "dgl.dataloading.negative_sampler": frozenset({"Uniform"}),
}
"""The public names in `gloader.compat.dgl`, by DGL's name of their module."""

# DGL's aliases and internal modules -> DGL's public module with the same names.
_SAME: Final = {
    "dgl.nn.pytorch": "dgl.nn",
    "dgl.nn.pytorch.conv": "dgl.nn",
    "dgl.nn.pytorch.hetero": "dgl.nn",
    "dgl.nn.conv": "dgl.nn",
    "dgl.dataloading.neighbor_sampler": "dgl.dataloading",
    "dgl.dataloading.dataloader": "dgl.dataloading",
    "dgl.dataloading.pytorch": "dgl.dataloading",
    "dgl.function.message": "dgl.function",
    "dgl.function.reducer": "dgl.function",
    "dgl.heterograph": "dgl",
    "dgl.base": "dgl",
    "dgl.random": "dgl",
    "dgl.data.utils": "dgl.data",
}
_LOADING = "dgl.load_graphs"  # DGL also has it as dgl.data.load_graphs, see `canonical`

# Attributes that graphs and blocks share: sizes and types (_SIZES); device, degrees and edges (_PLACES).
_SIZES = {
    "num_nodes",
    "number_of_nodes",
    "num_edges",
    "number_of_edges",
    "ntypes",
    "etypes",
    "canonical_etypes",
}
_PLACES = {"device", "to", "int", "long", "idtype", "local_scope", "in_degrees", "out_degrees", "edges"}
GRAPH_NAMES: Final = frozenset(
    _SIZES
    | _PLACES
    | {"ndata", "nodes", "edata", "create_formats_", "formats", "pin_memory_", "unpin_memory_"}
)
"""Attributes of the graph in `gloader.compat.dgl`, which is a view of a dataset."""
BLOCK_NAMES: Final = frozenset(
    _SIZES
    | _PLACES
    | {"srcdata", "dstdata", "edata", "ndata", "srcnodes", "dstnodes", "update_all", "apply_edges"}
    | {"num_src_nodes", "num_dst_nodes", "number_of_src_nodes", "number_of_dst_nodes", "srctypes", "dsttypes"}
    | {"nodes", "is_block"}
)
"""Attributes of blocks and pair graphs in `gloader.compat.dgl`."""

# Advice that several names share.
_GENERAL = "mini-batch loops on one machine do not use it"
_WHOLE = "it changes a whole graph in memory"
_TRANSFORM = "apply it to the whole graph before the export"
_IN_MEMORY = (
    "it makes a graph in memory: save it once with dgl.save_graphs, then `gloader prepare dgl:FILE OUT`"
)
_SAMPLER = "this sampler is not here; neighbor, weighted, labor, ladies and fastgcn are (docs/samplers.md)"
_POOLED = "batches of many small graphs fit in memory: keep DGL or PyG for them"

ADVICE: Final[dict[str, str]] = {
    "dgl": _GENERAL,
    "dgl.AddReverse": "prepare the dataset with --symmetrize, or with --add-reverse where it has several types",
    "dgl.AddSelfLoop": "prepare the dataset with --self-loops",
    "dgl.Compose": _TRANSFORM,
    "dgl.GCNNorm": "a GraphConv normalises by degrees",
    "dgl.RemoveSelfLoop": _WHOLE + "; remove them before the export",
    "dgl.RowFeatNormalizer": _TRANSFORM,
    "dgl.ToSimple": "prepare the dataset with --deduplicate",
    "dgl.add_reverse_edges": "prepare the dataset with --symmetrize",
    "dgl.add_self_loop": "prepare the dataset with --self-loops, or dgl.load_graphs(FILE, self_loops=True)",
    "dgl.batch": _POOLED,
    "dgl.broadcast_nodes": _POOLED,
    "dgl.data": f"{_IN_MEMORY}, or `gloader prepare ogb:NAME OUT` where OGB has it",
    "dgl.data.AsGraphPredDataset": _POOLED,
    "dgl.data.AsLinkPredDataset": "prepare the dataset with --edge-split 80/10/10, then name its link tables",
    "dgl.dataloading": _SAMPLER,
    "dgl.dataloading.BlockSampler": "a sampler of your own runs under DGL's loader, over features on the SSD: "
    "gloader.adapters.dgl.wrap_graph (docs/from-dgl.md), or as gloader's own (docs/extending.md)",
    "dgl.dataloading.Sampler": "a sampler of your own runs under DGL's loader, over features on the SSD: "
    "gloader.adapters.dgl.wrap_graph (docs/from-dgl.md), or as gloader's own (docs/extending.md)",
    "dgl.dataloading.ClusterGCNSampler": f"{_SAMPLER}; `gloader prepare --order community` lays rows out by cluster",
    "dgl.dataloading.EdgeDataLoader": "DGL has removed it: DataLoader over as_edge_prediction_sampler",
    "dgl.dataloading.GraphCollator": _POOLED,
    "dgl.dataloading.GraphDataLoader": _POOLED,
    "dgl.dataloading.LaborSampler": 'take gloader.Loader(sampler="labor") (docs/samplers.md)',
    "dgl.dataloading.NodeDataLoader": "DGL has removed it: DataLoader takes the same arguments",
    "dgl.dataloading.DistNodeDataLoader": "ranks share a loader under torchrun (docs/distributed.md)",
    "dgl.dataloading.DistEdgeDataLoader": "ranks share a loader under torchrun (docs/distributed.md)",
    "dgl.dataloading.DistDataLoader": "ranks share a loader under torchrun (docs/distributed.md)",
    "dgl.dataloading.negative_sampler": "negatives are drawn alike: Uniform(k); "
    "gloader.LinkLoader has more (docs/links.md)",
    "dgl.distributed": "ranks and machines share a loader under torchrun, without servers (docs/distributed.md)",
    "dgl.edge_subgraph": _WHOLE + "; prepare the part that you want as a dataset",
    "dgl.function": "messages are copy_u, copy_e and {u,v,e}_{add,sub,mul,div,dot}_{u,v,e}, "
    "reductions are sum, mean, max and min",
    "dgl.function.copy_src": "DGL has renamed it: copy_u",
    "dgl.function.copy_edge": "DGL has renamed it: copy_e",
    "dgl.function.src_mul_edge": "DGL has renamed it: u_mul_e",
    "dgl.geometry": "point clouds are not here: keep DGL, or take PyG, for them",
    "dgl.graph": _IN_MEMORY,
    "dgl.graphbolt": "a GraphBolt pipeline takes features and samplers of gloader.adapters.graphbolt, with DGL "
    "installed (docs/from-dgl.md); without, DataLoader and NeighborSampler do the same",
    "dgl.heterograph": _IN_MEMORY + " with DGL installed, or gloader.Dataset.from_dgl(g, OUT)",
    "dgl.bipartite": _IN_MEMORY,
    "dgl.create_block": "blocks come from loaders",
    "dgl.from_networkx": _IN_MEMORY,
    "dgl.from_scipy": _IN_MEMORY,
    "dgl.rand_graph": _IN_MEMORY,
    "dgl.knn_graph": _IN_MEMORY,
    "dgl.in_subgraph": "a loader over MultiLayerFullNeighborSampler(1) gives all in-edges of its seeds",
    "dgl.khop_in_subgraph": "a loader over MultiLayerFullNeighborSampler(k) gives k hops around its seeds",
    "dgl.khop_out_subgraph": _WHOLE,
    "dgl.mean_nodes": _POOLED,
    "dgl.max_nodes": _POOLED,
    "dgl.sum_nodes": _POOLED,
    "dgl.softmax_nodes": _POOLED,
    "dgl.readout_nodes": _POOLED,
    "dgl.topk_nodes": _POOLED,
    "dgl.unbatch": _POOLED,
    "dgl.metis_partition": "`gloader prepare --order community` lays rows out by cluster",
    "dgl.multiprocessing": "ranks are started by torchrun (docs/distributed.md)",
    "dgl.nn": "this layer is not here; SAGEConv, GraphConv, GATConv, GATv2Conv, RelGraphConv and HeteroGraphConv are",
    "dgl.nn.functional": "a softmax over edges is in GATConv, GATv2Conv and gloader.models",
    "dgl.nn.HeteroEmbedding": "rows that are learned: a torch.nn.Embedding for each type",
    "dgl.nn.HeteroLinear": "a torch.nn.Linear for each type",
    "dgl.nn.EdgeWeightNorm": "a GraphConv normalises by degrees; weights can be divided before the export",
    "dgl.nn.NodeEmbedding": "rows that are learned: gloader.NodeEmbedding, whose rows may exceed memory",
    "dgl.ops": "blocks have update_all and apply_edges",
    "dgl.optim": "take an optimizer of torch",
    "dgl.partition": "ranks and machines share a loader under torchrun (docs/distributed.md)",
    "dgl.node_subgraph": _WHOLE + "; seeds can be any nodes, or prepare the part that you want as a dataset",
    "dgl.remove_self_loop": _WHOLE + "; remove them before the export",
    "dgl.reorder_graph": "`gloader prepare --order degree` or `--order community` lays rows out",
    "dgl.reverse": _WHOLE + "; reverse it before the export",
    "dgl.sampling": "loaders sample: NeighborSampler, and gloader.samplers for loops of your own",
    "dgl.save_graphs": "datasets are written by `gloader prepare` or gloader.Dataset.from_numpy",
    "dgl.sparse": "sparse matrices are not here: torch.sparse, or DGL for models of whole graphs",
    "dgl.to_bidirected": "prepare the dataset with --symmetrize",
    "dgl.to_bfs": _WHOLE,
    "dgl.to_block": "blocks come from loaders: MultiLayerFullNeighborSampler gives those with all neighbours",
    "dgl.to_heterogeneous": _WHOLE,
    "dgl.to_homogeneous": "a dataset of several types stays so: take HeteroGraphConv, or convert before the export",
    "dgl.to_networkx": _WHOLE,
    "dgl.to_simple": "prepare the dataset with --deduplicate",
    "dgl.transforms": _TRANSFORM,
    "dgl.utils": "internal to DGL",
}
"""Advice by dotted name. The advice of the longest prefix of a name applies to the name."""

GRAPH_ADVICE: Final[dict[str, str]] = {
    "add_edges": _WHOLE,
    "add_nodes": _WHOLE,
    "add_self_loop": ADVICE["dgl.add_self_loop"],
    "adj": "dataset.load_graph() has indptr and indices in memory",
    "adjacency_matrix": "dataset.load_graph() has indptr and indices in memory",
    "adj_external": "dataset.load_graph() has indptr and indices in memory",
    "apply_nodes": "apply the function to the tensors themselves",
    "batch_size": _POOLED,
    "edge_ids": "gloader.LinkLoader takes pairs (docs/links.md)",
    "edge_subgraph": ADVICE["dgl.edge_subgraph"],
    "find_edges": "gloader.LinkLoader and as_edge_prediction_sampler give the ends of edges (docs/links.md)",
    "has_edges_between": "negatives that are no edges: gloader.Uniform(k, strict=True) (docs/links.md)",
    "in_edges": ADVICE["dgl.in_subgraph"],
    "in_subgraph": ADVICE["dgl.in_subgraph"],
    "local_var": "use `with block.local_scope():`",
    "metagraph": "canonical_etypes has the relations",
    "out_edges": _WHOLE,
    "predecessors": "a loader over MultiLayerFullNeighborSampler(1) gives all in-neighbours of its seeds",
    "prop_edges": _WHOLE,
    "prop_nodes": _WHOLE,
    "pull": "blocks have update_all",
    "push": "blocks have update_all",
    "remove_edges": _WHOLE,
    "remove_nodes": _WHOLE,
    "remove_self_loop": ADVICE["dgl.remove_self_loop"],
    "reverse": ADVICE["dgl.reverse"],
    "send_and_recv": "blocks have update_all",
    "shared_memory": "ranks share one loader under torchrun (docs/distributed.md)",
    "subgraph": ADVICE["dgl.node_subgraph"],
    "successors": _WHOLE,
    "update_all": "messages pass over blocks, not over the whole graph: train in mini-batches",
    "apply_edges": "messages pass over blocks, not over the whole graph: train in mini-batches",
    "ndata": "the nodes of a block are sources or destinations: srcdata or dstdata",
    "multi_update_all": "HeteroGraphConv does it for the relations of a block",
    "group_apply_edges": "blocks have apply_edges and update_all",
    "srcdata": "blocks have it; a graph has ndata",
    "dstdata": "blocks have it; a graph has ndata",
}
"""Advice on further attributes of DGL's graphs and blocks."""


def canonical(name: str) -> str:
    """Return DGL's main public name for ``name``, such as dgl.nn.SAGEConv for dgl.nn.pytorch.SAGEConv. Pure."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        # A name without a part below its module is the module itself. Only the modules of layers are replaced then.
        if module in _SAME and (end < len(parts) or module.startswith("dgl.nn")):
            found = ".".join([_SAME[module], *parts[end:]])
            # A class may be named in its own file: dgl.nn.pytorch.conv.sageconv.SAGEConv.
            if module == "dgl.nn.pytorch.conv" and end + 1 < len(parts):
                found = f"dgl.nn.{parts[-1]}"
            break
    else:
        found = name
    return _LOADING if found == "dgl.data.load_graphs" else found


def is_here(name: str) -> bool:
    """Return whether `gloader.compat.dgl` has DGL's ``name``. Pure."""
    found = canonical(name)
    module, _, last = found.rpartition(".")
    return found in SURFACE or last in SURFACE.get(module, ())


def advice_of(name: str) -> str:
    """Return advice on replacing ``name``, such as ``dgl.sparse.spmatrix``. Pure.

    The longest dotted prefix of ``name`` with advice counts; ``dgl`` itself is the last resort.
    """
    parts = canonical(name).split(".")
    for end in range(len(parts), 0, -1):
        found = ADVICE.get(".".join(parts[:end]))
        if found is not None:
            return found
    return _GENERAL
