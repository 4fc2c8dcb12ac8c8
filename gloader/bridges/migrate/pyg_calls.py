"""A PyG script's names, loader calls and transforms, and their forms in gloader, for `pyg_script`.

First come tables: the advice on names, and the loaders' arguments that change. `change_loader` changes a loader's call.
`Transforms` judges the transforms that a script applies to its graph. Some of them become flags for `gloader prepare`,
the command that makes a dataset on disk from the graph.

A `Use` is one place in the script that uses PyG. A `Draft` collects the script's edits, and the findings that the user
sees: each has a name of the script, a verdict such as "missing", and a text. The texts below are such texts.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from gloader.bridges.migrate.prepare_steps import EDGE_SPLIT, OGB_CLASSES, prepared_with
from gloader.bridges.migrate.uses import argument, items_of, literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gloader.bridges.migrate.draft import Draft
    from gloader.bridges.migrate.uses import Item, Use


LOADERS: Final = {
    "torch_geometric.loader.NeighborLoader": "NeighborLoader",
    "torch_geometric.loader.LinkNeighborLoader": "LinkNeighborLoader",
    "torch_geometric.loader.neighbor_loader.NeighborLoader": "NeighborLoader",
    "torch_geometric.loader.link_neighbor_loader.LinkNeighborLoader": "LinkNeighborLoader",
}
"""PyG's loaders, and their names in `gloader.adapters.pyg`."""

# Advice for several names. A finding has it after the name and the verdict.
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
    "torch_geometric.data.NeighborSampler": "NeighborLoader samples the same, with the edges of all hops in one list",
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
    "torch_geometric.loader.NeighborSampler": "NeighborLoader samples the same, with the edges of all hops in one list",
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
"""The advice on PyG's names that gloader cannot take over. The advice of the longest prefix of a name applies to it.

A name with the advice "", or without any advice, can stay PyG's.
"""

# The sets of names are joined from several sets, because the formatter would give each name of a long set its own line.
MANY_GRAPHS: Final = frozenset(
    {"TUDataset", "PPI", "ZINC", "QM7b", "QM9", "MoleculeNet", "GNNBenchmarkDataset", "ModelNet", "ShapeNet"}
    | {"MNISTSuperpixels", "FAUST", "LRGBDataset", "MalNetTiny", "UPFD", "GEDDataset", "MD17", "JODIEDataset"}
    | {"ICEWS18", "GDELT", "BA2MotifDataset", "FakeDataset", "FakeHeteroDataset", "AQSOL", "PCPNetDataset"}
    | {"S3DIS", "CoMA", "GeometricShapes", "WILLOWObjectClass", "PascalVOCKeypoints", "DBP15K", "PCQM4Mv2"}
    | {"OMDB", "HydroNet"}
)
"""Data sets in `torch_geometric.datasets` with many graphs."""
SEVERAL_TYPES: Final = frozenset(
    {"OGB_MAG", "DBLP", "IMDB", "AMiner", "LastFM", "MovieLens", "MovieLens100K", "MovieLens1M", "HGBDataset"}
    | {"Taobao", "AmazonBook", "IGMCDataset", "EllipticBitcoinHetero"}
)
"""Data sets with several node types."""

_WORKERS = "threads sample and read ahead, in place of worker processes (threads= sets their number)"
DROPPED: Final = {
    "num_workers": _WORKERS,
    "persistent_workers": _WORKERS,
    "multiprocessing_context": _WORKERS,
    "worker_init_fn": _WORKERS,
    "filter_per_worker": _WORKERS,
    "prefetch_factor": "the loader plans how far ahead it reads",
    "timeout": "stall_timeout_s= sets the seconds that a stage may stand still",
    "pin_memory": "batches are sent through pinned memory if possible",
    "generator": "seed= is the key for order and sampling",
    "neighbor_sampler": "gloader samples itself",
    "is_sorted": "a dataset is sorted",
    "directed": "a batch has the edges that were sampled",
    "custom_cls": "a batch is a Data or HeteroData",
}
"""Keywords of PyG's loaders that are removed, with the reasons."""
REFUSED: Final = {
    "transform": "apply it to the batch in the loop",
    "transform_sampler_output": "apply it to the batch in the loop",
    "sampler": "give an epoch's nodes as input_nodes=, with shuffle=",
    "batch_sampler": "give an epoch's nodes as input_nodes=, with batch_size= and shuffle=",
    "collate_fn": "batches are made by the loader: change them in the loop",
    "subgraph_type": "a batch has the sampled edges alone, in their direction",
    "disjoint": "batches of edges with times are disjoint: time_strategy= (docs/links.md)",
    "time_attr": "times come from the dataset; give the seeds' times as times= of NodeLoader (docs/hetero.md)",
    "input_time": "give the seeds' times as times= of NodeLoader (docs/hetero.md)",
    "edge_label_time": "times come from the link table; time_strategy= samples by them",
    "temporal_strategy": "time_strategy= is 'uniform' or 'last' (docs/links.md)",
}
"""Keywords of PyG's loaders that the user must replace, with the replacements."""

TO_DEVICE: Final = "the loader's device= sends batches to a device"
_COUNTS = {"num_nodes", "num_edges", "num_features", "num_node_features", "num_classes"}
DATA_NAMES: Final = frozenset(_COUNTS | {"y", "train_mask", "val_mask", "test_mask", "dataset"})
"""The attributes of a GraphData, gloader's form of PyG's Data for a graph on the SSD."""
HETERO_DATA_NAMES: Final = frozenset(_COUNTS | {"node_types", "edge_types", "metadata", "dataset"})
"""The attributes of a HeteroGraphData, the same for a graph with several types."""
STORE_NAMES: Final = frozenset(
    {"num_nodes", "num_features", "num_node_features", "num_edges"}
    | {"y", "train_mask", "val_mask", "test_mask"}
)
"""The attributes of a HeteroGraphData's types and relations."""
SAVED_NAMES: Final = frozenset(
    {"x", "y", "train_mask", "val_mask", "test_mask", "num_nodes"}
    | {"edge_index", "adj_t", "edge_attr", "edge_weight", "edge_time"}
)
"""The attributes that a dataset keeps from a Data or a HeteroData."""
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
    "edge_label": "link tables and batches have labels (docs/links.md)",
}
"""The advice on other attributes that a Data in memory has."""
BATCH_NAMES: Final = DATA_NAMES | {
    *DATA_ADVICE,
    "batch_size",
    "e_id",
    "input_id",
    "batch",
    "pos",
    "edge_weight",
}
"""The names in ``data[name]`` that are an attribute of a graph with one type, or of its batch.

Any other name there is a node type, so the graph has several types.
"""
BATCH_ADVICE: Final = {
    "adj_t": DATA_ADVICE["adj_t"],
    "train_mask": "the first batch_size nodes are the seeds: with a loader over train_mask they are training nodes",
    "val_mask": "give another loader input_nodes=data.val_mask",
    "test_mask": "give another loader input_nodes=data.test_mask",
}
"""The advice on attributes that a batch lacks."""
DATASET_NAMES: Final = {
    "num_features": "feature_dim",
    "num_node_features": "feature_dim",
    "num_classes": "num_classes",
    "name": "name",
}
"""Attributes of PyG's data sets, and their names in gloader.Dataset."""


def advice_of_name(name: str) -> str:
    """Return the replacement for PyG's ``name``; "" if the name stays. Pure."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        found = MISSING_NAMES.get(".".join(parts[:end]))
        if found is not None:
            return found
    return ""


# The text of a finding after the new argument: the reason for it.
_NEGATIVES: Final = ": a table that `--edge-split` makes has no labels, so negatives are drawn"
_NEGATIVES_AT: Final = {"neg_sampling": 9, "neg_sampling_ratio": 10}  # positions in PyG's LinkNeighborLoader
# The arguments that decide whether pairs get labels or negatives.
_ABOUT_NEGATIVES: Final = frozenset({"edge_label", "neg_sampling", "neg_sampling_ratio"})
# Arguments for which gloader's loaders support only this value.
_DEFAULTS: Final = {"subgraph_type": "directional", "directed": True, "disjoint": False, "replace": False}


def data_argument(use: Use) -> ast.expr | None:
    """Return a loader's graph argument. Pure."""
    return use.written(0, "data")


def change_loader(draft: Draft, use: Use, *, has_labels: bool) -> None:
    """Change a loader's arguments: removed, changed and unsupported ones.

    Parameters
    ----------
    draft, use : the script's draft, and the loader's use
    has_labels : True if the link tables may have labels and negatives, as OGB's tables do
    """
    draft.note_unknown(use)
    # True if the loader must draw negatives, because its link table has no labels and the script sets no negatives.
    needs_negatives, call = False, use.call
    if call is None:
        return
    if use.name.endswith("LinkNeighborLoader"):
        _name_the_table(draft, use)
        needs_negatives = not has_labels and not _has_negatives(use)
    items = sorted(items_of(call), key=lambda item: draft.edits.start(item.first))
    removed = _judge(draft, items, end=draft.edits.end(call) - 1, needs_negatives=needs_negatives)
    kept = [item for number, item in enumerate(items) if number not in removed]
    if needs_negatives and kept and not any(item.name in _ABOUT_NEGATIVES for item in items):
        # No argument could be replaced by ``neg_sampling``, so it is added after the last one.
        at, new = draft.edits.end(kept[-1].last), 'neg_sampling="binary"'
        can_go = draft.edits.replace(at, at, f", {new}")  # False if the edit failed
        draft.note(use.node, "neg_sampling=", new + _NEGATIVES, can_go=can_go)
    # Mappings of arguments, given as ``**mapping``. Several loaders may share one, which is changed once.
    for mapping in use.spread:
        if id(mapping) not in draft.replaced:
            draft.replaced.add(id(mapping))
            _judge(draft, items_of(mapping), end=draft.edits.end(mapping) - 1)


def _has_negatives(use: Use) -> bool:
    """Return True if a link loader may get negatives: an argument sets them, or not all arguments are known."""
    given = [use.written(place, name) for name, place in _NEGATIVES_AT.items()]
    values = [each for each in given if each is not None]
    return not use.is_written or any(
        not isinstance(each, ast.Constant) or bool(each.value) for each in values
    )


def _judge(draft: Draft, items: Sequence[Item], *, end: int, needs_negatives: bool = False) -> list[int]:
    """Change a loader's arguments; return the indices of the removed ones.

    Parameters
    ----------
    draft : the script's draft
    items : the arguments in a call or a mapping, in order
    end : the position of the closing bracket
    needs_negatives : True if an argument for labels or negatives must become ``neg_sampling="binary"``
    """
    # If the loader must draw negatives, the first argument about negatives becomes ``neg_sampling="binary"``, and the
    # others are removed. If not, only ``edge_label`` is removed.
    removed: list[int] = []
    first_about_negatives = next((item.name for item in items if item.name in _ABOUT_NEGATIVES), None)
    for number, item in enumerate(items):
        name, value, keyword = item.name, literal(item.value), f"{item.name}="
        if not isinstance(name, str):
            continue
        if name in _DEFAULTS and value == _DEFAULTS[name]:
            removed.append(number)  # the value asks for the loader's only behaviour
            draft.find(item.value, keyword, "ignored", "the loader always does so")
        elif name == "replace" and value is True:
            _replace(draft, item, "sampler", "neighbor:replace=true")
        elif name == "weight_attr":
            _replace(draft, item, "sampler", "weighted")
        elif name in {"directed", "replace"}:
            advice = f"give {name}={_DEFAULTS[name]}: others are not known before the script runs"
            draft.find(item.value, keyword, "missing", advice)
        elif name in _ABOUT_NEGATIVES and needs_negatives and name != first_about_negatives:
            removed.append(number)
            draft.find(item.value, keyword, "ignored", "negatives are drawn, and come with labels")
        elif name in _ABOUT_NEGATIVES and needs_negatives:
            _replace(draft, item, "neg_sampling", "binary", why=_NEGATIVES)
        elif name == "edge_label":
            removed.append(number)
            draft.find(
                item.value, keyword, "ignored", "negatives come with labels, and so do tables that have some"
            )
        elif name in DROPPED:
            removed.append(number)
            draft.find(item.value, keyword, "ignored", DROPPED[name])
        elif name in REFUSED:
            draft.find(item.value, keyword, "missing", REFUSED[name])
    ranges = [(item.first, item.last) for item in items]
    if removed and not draft.edits.delete_items(ranges, removed, end):
        draft.by_hand(items[removed[0]].value, ", ".join(f"{items[number].name}=" for number in removed))
    return removed


def _replace(draft: Draft, item: Item, name: str, value: str, *, why: str = "") -> None:
    """Replace an argument by ``name="value"``. The finding says so, followed by ``why``."""
    new = f'{name}="{value}"' if isinstance(item.first, ast.keyword) else f'"{name}": "{value}"'
    can_go = draft.edits.replace(draft.edits.start(item.first), draft.edits.end(item.last), new)
    draft.note(item.value, f"{item.name}=", new + why, can_go=can_go)


def _name_the_table(draft: Draft, use: Use) -> None:
    """Replace a link loader's pairs by the name of a link table, the dataset's list of edges to predict.

    The script's names for the graph, the pairs and the loader show whether the table is train, valid or test.
    """
    pairs = use.written(2, "edge_label_index")
    if pairs is None:  # the pairs are all edges, or are not written in the script
        draft.steps.split_edges(None)
        return
    data = data_argument(use)
    draft.name_table(pairs, "edge_label_index=", use, () if data is None else (data,))
    # In a graph with several types, the pairs are a tuple: the relation and the pairs of nodes.
    relation = pairs.elts[0] if isinstance(pairs, ast.Tuple) and pairs.elts else None
    draft.steps.split_edges(relation)


TRANSFORMS: Final = "torch_geometric.transforms."
# Flags for `gloader prepare` that replace a transform.
_FLAGS: Final = {
    "ToUndirected": "--symmetrize",
    "AddSelfLoops": "--self-loops",
    "AddRemainingSelfLoops": "--self-loops",
    "RemoveDuplicatedEdges": "--deduplicate",
    "RandomLinkSplit": EDGE_SPLIT,
}
_SPLIT: Final = f"{TRANSFORMS}RandomLinkSplit"
_SHARES: Final = (0.1, 0.2)  # PyG's defaults for validation and testing
# Flags that may merge several edges, and names that show that edges have values.
_MERGES: Final = frozenset({"--symmetrize", "--deduplicate"})
_EDGE_VALUES: Final = frozenset(
    {"edge_attr", "edge_weight", "edge_attr_dict", "edge_weight_dict", "weight_attr"}
)
_OTHER_VALUES: Final = (
    "; PyG adds up the values of edges that become one, and a dataset keeps the first edge's features, and the larger "
    "weight of an edge's two directions"
)


class Transforms:
    """A script's transforms of its graph, including those that its data sets apply while they load.

    Parameters
    ----------
    draft : the script's draft
    datasets : calls that make data sets in memory
    is_typed : True if the graph has several types
    """

    def __init__(self, draft: Draft, datasets: Iterable[ast.Call], *, is_typed: bool) -> None:
        self._draft = draft
        self._is_typed = is_typed
        uses = draft.script.uses
        self._is_ogb = any(use.name in OGB_CLASSES for use in uses)
        names = {use.name.rpartition(".")[2] for use in uses if use.name.startswith(TRANSFORMS)}
        self._splits_edges = _SPLIT.rpartition(".")[2] in names
        # All names of attributes (``attr``), names of arguments (``arg``) and constants in the script.
        named = {getattr(node, "attr", getattr(node, "arg", literal(node))) for node in ast.walk(draft.tree)}
        self._has_edge_values = bool(named & _EDGE_VALUES)
        # True if there is a transform that no flag replaces; it may change the rows of the graph.
        self.changes_rows = bool(names - {*_FLAGS, "Compose", "ToDevice"})
        given = [each for call in datasets for each in (argument(call, 1, "transform"), _pre(call)) if each]
        # The nodes in the data sets' transform arguments, and the names among them.
        within = [node for each in given for node in ast.walk(each)]
        self._nodes = {id(node) for node in within}
        self._names = {node.id for node in within if isinstance(node, ast.Name)}

    def judge(self, use: Use) -> None:
        """Note the verdict on one transform."""
        draft, last = self._draft, use.name.rpartition(".")[2]
        edits = draft.edits
        # If another edit already covers the transform, the changed script does not use it any more.
        if edits.is_replaced(edits.start(use.node), edits.end(use.node)):
            draft.replaced.add(id(use.node))
        if advice := advice_of_name(use.name):
            draft.find(use.node, use.name, "missing", advice)
        elif last == "ToDevice":
            draft.find(use.node, use.name, "ignored", TO_DEVICE)
        # A flag replaces a transform unless the saved graph is already transformed, because a data set applies it while
        # it loads. OGB's data are prepared without the script, so untransformed. RandomLinkSplit is always replaced,
        # because the saved graph must not be split into three.
        elif last in _FLAGS and (use.name == _SPLIT or self._is_ogb or not self._is_handed(use)):
            self._change(use, [_FLAGS[last]])
        elif last != "Compose" and self._is_ogb:
            draft.find(use.node, use.name, "missing", "apply it to the batches, in the loop")
        elif last != "Compose":
            draft.find(use.node, use.name, "stays", "PyG, before the graph is saved")

    def _change(self, use: Use, flags: list[str]) -> None:
        """Note the flags that replace a transform. If their result differs, the finding has the difference."""
        draft, but = self._draft, ""  # but: the difference, after the flags' text
        if use.name == _SPLIT and use.call is not None:
            flags = [self._split(use.call)]
        elif use.name == f"{TRANSFORMS}ToUndirected" and self._is_typed:
            merge = None if use.call is None else argument(use.call, 1, "merge")
            flags = ["--add-reverse", *([] if literal(merge) is False else flags)]
            if merge is not None and not isinstance(literal(merge), bool):
                but = "; without --symmetrize where merge is False, which is not known before the script runs"
        elif self._is_typed and flags == ["--self-loops"]:
            but = ", which is refused where a relation runs between two types: add them to the graph before it is saved"
        if self._has_edge_values and _MERGES & set(flags):
            but += _OTHER_VALUES
        for flag in flags:
            draft.steps.flag(flag)
        draft.find(
            use.node, use.name, "perhaps missing" if but else "changes", prepared_with(" ".join(flags)) + but
        )

    def _split(self, call: ast.Call) -> str:
        """Return the flag for a RandomLinkSplit, and note its relation."""
        types = argument(call, 8, "edge_types")
        relations = types.elts if isinstance(types, ast.List | ast.Tuple) else []
        if len(relations) == 1:
            self._draft.steps.split_edges(relations[0], flag=_edge_split(call))
        elif relations:
            self._draft.find(call, "edge_types=", "missing", "links are split in one relation of a dataset")
        return _edge_split(call)

    def left_out(self) -> str:
        """Return a note about transforms that the saved graph must not have."""
        return ", and without RandomLinkSplit" if self._splits_edges else ""

    def _is_handed(self, use: Use) -> bool:
        """Return True if a data set gets the transform as an argument: the saved graph is then already transformed."""
        statement = use.place.statement
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        named = {each.id for each in targets if isinstance(each, ast.Name)}
        return id(use.node) in self._nodes or bool(named & self._names)


def _edge_split(call: ast.Call) -> str:
    """Return the flag for a RandomLinkSplit's shares, or for the usual shares if these are unknown. Pure.

    An integer is a number of edges, not a share, so it counts as unknown.
    """
    given = (argument(call, 0, "num_val"), argument(call, 1, "num_test"))
    shares = [
        default if each is None else literal(each) for each, default in zip(given, _SHARES, strict=True)
    ]
    parts = [round(100 * each) if isinstance(each, float) and 0 <= each < 1 else -1 for each in shares]
    if min(parts) < 0 or sum(parts) >= 100:
        return EDGE_SPLIT
    # As `EDGE_SPLIT`: the flag, and the percentages train/valid/test.
    return f"{EDGE_SPLIT.split()[0]} {100 - sum(parts)}/{parts[0]}/{parts[1]}"


def without_split(call: ast.Call) -> str:
    """Return a loading call's text without a transform that splits a graph into three. Pure."""
    keywords = [each for each in call.keywords if "RandomLinkSplit" not in ast.unparse(each.value)]
    return ast.unparse(ast.Call(func=call.func, args=call.args, keywords=keywords))


def _pre(call: ast.Call) -> ast.expr | None:
    """Return a data set's argument ``pre_transform``, or None."""
    return next((each.value for each in call.keywords if each.arg == "pre_transform"), None)
