"""What of PyG's names gloader has, as data, and for other names what takes their place."""

from __future__ import annotations

from typing import Final

LOADERS: Final = {
    "torch_geometric.loader.NeighborLoader": "NeighborLoader",
    "torch_geometric.loader.LinkNeighborLoader": "LinkNeighborLoader",
    "torch_geometric.loader.neighbor_loader.NeighborLoader": "NeighborLoader",
    "torch_geometric.loader.link_neighbor_loader.LinkNeighborLoader": "LinkNeighborLoader",
}
"""PyG's loaders, and their names in `gloader.adapters.pyg`."""

_MANY = "many small graphs fit in memory: keep PyG's DataLoader for them"
_OWN = (
    "PyG's own loader runs over an SSD, by gloader.adapters.pyg.RowStore and TopologyStore (docs/from-pyg.md)"
)
_PARTS = (
    "NeighborLoader, whose seeds are nodes with their neighbours; `gloader prepare --order community` lays rows out "
    "by cluster"
)

MISSING_NAMES: Final[dict[str, str]] = {
    "torch_geometric.data.ClusterData": _PARTS,
    "torch_geometric.data.ClusterLoader": _PARTS,
    "torch_geometric.data.DataLoader": _MANY,
    "torch_geometric.data.NeighborSampler": "its batches are those of NeighborLoader; edges of all hops come at once",
    "torch_geometric.distributed": "ranks and machines share a loader under torchrun (docs/distributed.md)",
    "torch_geometric.loader": f"gloader has NeighborLoader and LinkNeighborLoader; {_OWN}",
    "torch_geometric.loader.CachedLoader": "the cache of a loader is sized by memory_budget=",
    "torch_geometric.loader.ClusterData": _PARTS,
    "torch_geometric.loader.ClusterLoader": _PARTS,
    "torch_geometric.loader.DataListLoader": _MANY,
    "torch_geometric.loader.DataLoader": _MANY,
    "torch_geometric.loader.DenseDataLoader": _MANY,
    "torch_geometric.loader.HGTLoader": "NeighborLoader with gloader.collective([k, k]) draws so many of all relations "
    "together (docs/hetero.md)",
    "torch_geometric.loader.ImbalancedSampler": "give input_nodes= the nodes that an epoch is to have",
    "torch_geometric.loader.LinkLoader": _OWN,
    "torch_geometric.loader.NeighborSampler": "its batches are those of NeighborLoader; edges of all hops come at once",
    "torch_geometric.loader.NodeLoader": _OWN,
    "torch_geometric.loader.PrefetchLoader": "leave it out: batches are read and sent ahead",
    "torch_geometric.loader.RandomNodeLoader": _PARTS,
    "torch_geometric.loader.ShaDowKHopSampler": "this sampler is not here (docs/samplers.md has those that are)",
    "torch_geometric.sampler": "MergedSampler runs under PyG's own loaders; gloader's loaders sample themselves",
    "torch_geometric.sampler.NegativeSampling": "",
    "torch_sparse": "batches have edge_index and need no SparseTensor",
    "torch_geometric.typing.SparseTensor": "batches have edge_index and need no SparseTensor",
    "torch_geometric.transforms.ToSparseTensor": "batches have edge_index, and no adj_t: hand it to the layers",
    "torch_geometric.data.LightningNodeData": "give a Trainer NodeLoader itself (docs/from-pyg.md)",
    "torch_geometric.data.LightningLinkData": "give a Trainer LinkLoader itself (docs/from-pyg.md)",
    "torch_geometric.data.LightningDataset": _MANY,
    "torch_geometric.data.OnDiskDataset": _MANY,
    "torch_geometric.data.Batch": _MANY,
}
"""What to do instead; "" is no hindrance. The longest name that fits counts, and others stay PyG's."""

MANY_GRAPHS: Final = frozenset(
    {"TUDataset", "PPI", "ZINC", "QM7b", "QM9", "MoleculeNet", "GNNBenchmarkDataset", "ModelNet", "ShapeNet"}
    | {"MNISTSuperpixels", "FAUST", "LRGBDataset", "MalNetTiny", "UPFD", "GEDDataset", "MD17", "JODIEDataset"}
    | {
        "ICEWS18",
        "GDELT",
        "BA2MotifDataset",
        "FakeDataset",
        "FakeHeteroDataset",
        "AQSOL",
        "PCPNetDataset",
        "S3DIS",
    }
    | {
        "CoMA",
        "GeometricShapes",
        "WILLOWObjectClass",
        "PascalVOCKeypoints",
        "DBP15K",
        "PCQM4Mv2",
        "OMDB",
        "HydroNet",
    }
)
"""Data sets of `torch_geometric.datasets` that are no single graph."""
SEVERAL_TYPES: Final = frozenset(
    {"OGB_MAG", "DBLP", "IMDB", "AMiner", "LastFM", "MovieLens", "MovieLens100K", "MovieLens1M", "HGBDataset"}
    | {"Taobao", "AmazonBook", "IGMCDataset", "EllipticBitcoinHetero"}
)
"""Those of several types of nodes."""

_WORKERS = "threads sample and read ahead, in place of worker processes (threads= is how many)"
DROPPED: Final = {
    "num_workers": _WORKERS,
    "persistent_workers": _WORKERS,
    "multiprocessing_context": _WORKERS,
    "worker_init_fn": _WORKERS,
    "filter_per_worker": _WORKERS,
    "prefetch_factor": "the loader plans how far ahead it reads",
    "timeout": "stall_timeout_s= is how long a stage may stand still",
    "pin_memory": "batches are sent by way of pinned memory where that is possible",
    "generator": "seed= is the key of order and sampling",
    "neighbor_sampler": "gloader samples itself",
    "is_sorted": "a dataset is sorted",
    "directed": "a batch has the edges that were sampled",
    "custom_cls": "a batch is a Data or HeteroData",
}
"""Keywords of PyG's loaders that go, and why."""
REFUSED: Final = {
    "transform": "apply it to the batch in the loop",
    "transform_sampler_output": "apply it to the batch in the loop",
    "sampler": "give input_nodes= the nodes, and shuffle=, that an epoch is to have",
    "batch_sampler": "give input_nodes= the nodes, batch_size= and shuffle=",
    "collate_fn": "batches are made by the loader: change them in the loop",
    "subgraph_type": "a batch has the sampled edges alone, in their direction",
    "disjoint": "batches of edges with times are disjoint: time_strategy= (docs/links.md)",
    "time_attr": "times are those of the dataset, and seeds have them by times= of NodeLoader (docs/hetero.md)",
    "input_time": "seeds have times by times= of NodeLoader (docs/hetero.md)",
    "edge_label_time": "times are those of the link table: time_strategy= samples by them",
    "temporal_strategy": "time_strategy= is 'uniform' or 'last' (docs/links.md)",
}
"""Keywords that need more than to be left out."""

TO_DEVICE: Final = "batches come to the device of the loader: device="
_COUNTS = {"num_nodes", "num_edges", "num_features", "num_node_features", "num_classes"}
DATA_NAMES: Final = frozenset(_COUNTS | {"y", "train_mask", "val_mask", "test_mask", "dataset"})
"""What a GraphData has."""
HETERO_DATA_NAMES: Final = frozenset(
    _COUNTS - {"num_classes"} | {"num_classes", "node_types", "edge_types", "metadata", "dataset"}
)
"""What a HeteroGraphData has."""
STORE_NAMES: Final = frozenset(
    {"num_nodes", "num_features", "num_node_features", "num_edges"}
    | {"y", "train_mask", "val_mask", "test_mask"}
)
"""What its types and relations have."""
SAVED_NAMES: Final = frozenset(
    {"x", "y", "train_mask", "val_mask", "test_mask", "num_nodes"}
    | {"edge_index", "adj_t", "edge_attr", "edge_weight", "edge_time"}
)
"""What a dataset keeps of a Data or a HeteroData."""
DATA_ADVICE: Final = {
    "x": "features stay on the disk: batch.x, or dataset.open_features()",
    "x_dict": "features stay on the disk: batch.x_dict",
    "edge_index": "edges stay in the dataset: batch.edge_index, or dataset.load_graph(); `gloader prepare` has "
    "--symmetrize, --self-loops and --deduplicate",
    "edge_index_dict": "edges stay in the dataset: batch.edge_index_dict",
    "edge_attr": "features of edges stay on the disk: batch.edge_attr",
    "adj_t": "batches have edge_index, and no adj_t: hand it to the layers",
    "node_id": "batch[TYPE].n_id are the ids of a batch",
    "n_id": "batch.n_id are the ids of a batch",
    "edge_label_index": "edges to predict are a link table: name it (docs/links.md)",
    "edge_label": "labels are those of a link table, and of a batch (docs/links.md)",
}
"""What to do instead of what a Data in memory has besides."""
BATCH_NAMES: Final = DATA_NAMES | {
    *DATA_ADVICE,
    "batch_size",
    "e_id",
    "input_id",
    "batch",
    "pos",
    "edge_weight",
}
"""What a graph of one type, or a batch of it, may be asked for as an item: another name is that of a type."""
BATCH_ADVICE: Final = {
    "adj_t": DATA_ADVICE["adj_t"],
    "train_mask": "the first batch_size nodes are the seeds: those of a loader over train_mask are training nodes",
    "val_mask": "give another loader input_nodes=data.val_mask",
    "test_mask": "give another loader input_nodes=data.test_mask",
}
"""What a batch does not have."""
DATASET_NAMES: Final = {
    "num_features": "feature_dim",
    "num_node_features": "feature_dim",
    "num_classes": "num_classes",
    "name": "name",
}
"""What a dataset of PyG has, and what a gloader.Dataset calls it."""


def advice_of_name(name: str) -> str:
    """Return what to do instead of ``name`` of PyG, "" where it stays. Pure."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        found = MISSING_NAMES.get(".".join(parts[:end]))
        if found is not None:
            return found
    return ""
