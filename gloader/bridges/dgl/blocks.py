"""The loader's batches as DGL's message flow graphs, for one node type or several.

A message flow graph, or block, has one hop's edges, from source nodes to destination nodes. A batch for link prediction
also has graphs of pairs. Such a graph has the edges to predict, positive or negative, over the batch's seeds.

`BlockLoader` and `LinkBlockLoader` are the loaders for DGL loops; `to_blocks`, `to_hetero_blocks` and `to_link_blocks`
convert single batches. All use `create_block`, which builds a block from gloader's arrays without a copy.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gloader.bridges.loader_view import LoaderView, TypedBatch, to_link_loader, to_loader
from gloader.convert.sources.dgl import quiet_dgl
from gloader.core.near_names import near_keywords
from gloader.dataset import Dataset
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.bridges.loader_view import AnyLoader
    from gloader.loader import LinkLoader
    from gloader.types import AnyReadyBatch, DeviceBlock, HeteroReadyBatch, LinkBatch, ReadyBatch, Relation


with quiet_dgl("gloader.adapters.dgl needs") as dgl:
    from dgl.graph_index import from_coo
    from dgl.heterograph import DGLBlock
    from dgl.heterograph_index import create_heterograph_from_relations, create_unitgraph_from_csr

_FORMATS = ["coo", "csr", "csc"]  # the formats that a block may make of its edges


def create_block(
    hop: Mapping[Relation, DeviceBlock], num_src: Mapping[str, int], num_dst: Mapping[str, int]
) -> Any:
    """Return the block that ``dgl.create_block`` would make from the hop's ``"csc"`` arrays; arrays are shared.

    ``dgl.create_block`` searches each relation for its largest id, which would take most of a batch's conversion time.

    Parameters
    ----------
    hop : each relation's edges
    num_src, num_dst : number of source nodes and of destination nodes by type
    """
    types = tuple(sorted(num_src))
    relations = tuple(sorted(hop))
    # DGL's arguments: two sides of nodes, no edge ids (the edges keep their order), and True for arrays in CSC form.
    edges = [
        create_unitgraph_from_csr(
            2,
            hop[relation].num_src,
            hop[relation].num_dst,
            hop[relation].indptr,
            hop[relation].indices,
            hop[relation].indices.new_empty(0),
            _FORMATS,
            True,
        )
        for relation in relations
    ]
    sizes = dgl.utils.toindex(
        [*(num_src[name] for name in types), *(num_dst[name] for name in types)], "int64"
    )
    index = create_heterograph_from_relations(_meta_graph(types, relations), edges, sizes)
    return DGLBlock(index, (list(types), list(types)), [name for _, name, _ in relations])


def fill_edges(data: Any, hop: DeviceBlock, feature: str) -> None:
    """Write the edge ids, weights and features in ``hop`` to a block's edge data; ``feature`` names the features."""
    data[dgl.EID] = hop.edge_ids
    if hop.edge_weight is not None:
        data["weight"] = hop.edge_weight
    if hop.edge_x is not None:
        data[feature] = hop.edge_x


@cache
def _meta_graph(types: tuple[str, ...], relations: tuple[Relation, ...]) -> Any:
    """Return DGL's graph of types. Its nodes are first the source types, then the destination types.

    Its edges are the relations.
    """
    number = {name: position for position, name in enumerate(types)}
    sources = [number[source] for source, _, _ in relations]
    destinations = [len(types) + number[destination] for _, _, destination in relations]
    return from_coo(2 * len(types), sources, destinations, True)


def require_device(device: str | torch.device) -> None:
    """Raise ConfigError if this DGL cannot hold graphs on ``device``, before the first batch fails in DGL."""
    if torch.device(device).type == "cpu":
        return
    try:
        dgl.graph(([0], [0])).to(device)
    except (dgl.DGLError, RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"DGL {dgl.__version__} cannot use {device!s} ({reason}). The wheels of DGL on PyPI are for the CPU: use "
            "device='cpu', install a CUDA build of DGL, or use gloader's own batches or gloader.adapters.pyg"
        ) from error


# DGL's name for the only relation, between nodes with the only type.
_RELATION: Relation = ("_N", "_E", "_N")

# The input nodes, the seeds and the blocks, for one type and by type. A link batch has the input nodes, the graph of
# positive pairs, the graph of negative pairs if there are negatives, and the blocks.
BlockBatch: TypeAlias = "tuple[torch.Tensor, torch.Tensor, list[Any]]"
HeteroBlockBatch: TypeAlias = "tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[Any]]"
LinkBlockBatch: TypeAlias = "tuple[Any, Any, Any, list[Any]] | tuple[Any, Any, list[Any]]"


class BlockLoader(LoaderView[Any]):
    """Yields ``(input_nodes, output_nodes, blocks)``, as ``dgl.dataloading.DataLoader`` does.

    For a dataset with several types, nodes are mappings by type and blocks have several types and relations, see
    `to_hetero_blocks`.

    ``blocks[0].srcdata[feature]`` holds the features, ``blocks[-1].dstdata[label]`` the labels. ``dgl.NID`` and
    ``dgl.EID`` are set; edge ids are positions in the dataset's ``indices``. ``edata["weight"]`` is set if the
    sampler weighs its edges, and ``edata[edge_feature]`` if edges have features. All tensors are views of gloader's own
    (native) batch: local ids are int32, and a batch that is kept alive keeps its memory.

    Parameters
    ----------
    loader : a `gloader.Loader` or `gloader.HeteroLoader`, or a `gloader.Dataset` from which to build a loader
    feature, label, edge_feature : names for the node data and the edge data
    settings : settings for the new loader: ``fanouts``, ``batch_size``, ``memory_budget``, ...; see `gloader.Loader`

    Raises
    ------
    ConfigError
        This DGL cannot use the loader's device, or seeds may repeat in a batch. Other causes are those of `to_loader`.
    """

    def __init__(
        self,
        loader: AnyLoader | Dataset,
        *,
        feature: str = "feat",
        label: str = "label",
        edge_feature: str = "feat",
        **settings: Any,
    ) -> None:
        require_device(settings.get("device", "cpu"))
        native = to_loader(loader, settings)
        if native.may_repeat:
            if isinstance(loader, Dataset):
                native.close()
            raise ConfigError(
                "seeds may repeat, and DGL's blocks have each output node once; gloader.adapters.pyg.NodeLoader has a "
                "row for each draw"
            )
        labelled = native.dataset.labelled.name
        super().__init__(
            native,
            convert=lambda batch: _labelled_blocks(batch, labelled, feature, label, edge_feature),
            is_owner=isinstance(loader, Dataset),
        )


@near_keywords
def to_blocks(
    batch: ReadyBatch, *, feature: str = "feat", label: str = "label", edge_feature: str = "feat"
) -> BlockBatch:
    """Return the input nodes (U,), the seeds (B,) and a DGL block per hop, without copying. Pure.

    For rows of a task table, the first block has the data "row_age" of its sources, and the last block has the
    "row_weight" of its destinations, where the batch has them.

    Parameters
    ----------
    batch : a native batch; its arrays are shared
    feature, label : names for the node data: features in the first block, labels in the last
    edge_feature : name for the edge features, in every block

    Raises
    ------
    ConfigError
        The batch is on a device that this DGL cannot use.
    """
    found: BlockBatch = _labelled_blocks(batch, "", feature, label, edge_feature)
    return found


@near_keywords
def to_hetero_blocks(
    batch: HeteroReadyBatch,
    *,
    labelled: str,
    feature: str = "feat",
    label: str = "label",
    edge_feature: str = "feat",
) -> HeteroBlockBatch:
    """Return the input nodes and seeds by type, and a typed DGL block per hop, without copying. Pure.

    Every type and relation is present, perhaps empty. Types and relations are in DGL's order: sorted by name.

    Parameters
    ----------
    batch : a native batch; its arrays are shared
    labelled : the type to which the labels in ``batch.y`` belong
    feature, label : names for the node data: features in the first block, labels in the last
    edge_feature : name for the edge features, in every block

    Raises
    ------
    ConfigError
        The batch is on a device that this DGL cannot use.
    """
    found: HeteroBlockBatch = _labelled_blocks(batch, labelled, feature, label, edge_feature)
    return found


def _labelled_blocks(batch: AnyReadyBatch, labelled: str, feature: str, label: str, edge_feature: str) -> Any:
    """Return input nodes, seeds and blocks. If there are several types, the labels belong to type ``labelled``."""
    view = TypedBatch(batch, _RELATION)
    blocks = _blocks(view, feature, edge_feature)
    # As in DGL's loader, only the last block has labels.
    seeds = blocks[-1].dstnodes[view.only_type or labelled].data
    seeds[label] = batch.y
    if batch.weights is not None:  # of rows of a task table, as the ages below
        seeds["row_weight"] = batch.weights
    for name, ages in (batch.typed.row_age or {}).items():
        blocks[0].srcnodes[view.only_type or name].data["row_age"] = ages
    return view.plain(view.nodes), view.plain(view.seeds), blocks


def _blocks(view: TypedBatch, feature: str, edge_feature: str) -> list[Any]:
    """Return a DGL block for each hop, with node ids and edge data. The first block has the features."""
    require_device(view.device)
    blocks = []
    for depth, hop in enumerate(view.blocks):
        num_src, num_dst = view.sizes(depth)
        block = create_block(hop, num_src, num_dst)
        for name, ids in view.nodes.items():
            block.srcnodes[name].data[dgl.NID] = ids[: num_src[name]]
            block.dstnodes[name].data[dgl.NID] = ids[: num_dst[name]]
        for relation, edges in hop.items():
            fill_edges(block.edges[relation].data, edges, edge_feature)
        blocks.append(block)
    for name, rows in view.x.items():
        # Among several types, a type without features (F = 0) gets no column.
        if rows.shape[1] or view.only_type:
            blocks[0].srcnodes[name].data[feature] = rows
    return blocks


class LinkBlockLoader(LoaderView[Any]):
    """Yields batches as a loader over ``dgl.dataloading.as_edge_prediction_sampler``; see `to_link_blocks`.

    A batch is ``(input_nodes, pair_graph, neg_graph, blocks)``. Without negatives it is ``(input_nodes, pair_graph,
    blocks)``.

    Parameters
    ----------
    loader : a `gloader.LinkLoader`, or a `gloader.Dataset` from which to build a loader
    feature, label, edge_feature : names for node features, for the positives' own labels, and for edge features
    settings : settings for the new loader: ``edges``, ``negatives``, ``exclude``, ``fanouts``, ``batch_size``, ...; see
        `gloader.LinkLoader`

    Raises
    ------
    ConfigError
        This DGL cannot use the loader's device. Other causes are those of `to_link_loader`.
    """

    def __init__(
        self,
        loader: LinkLoader | Dataset,
        *,
        feature: str = "feat",
        label: str = "label",
        edge_feature: str = "feat",
        **settings: Any,
    ) -> None:
        require_device(settings.get("device", "cpu"))
        native = to_link_loader(loader, settings)
        relation, has_negatives = native.table.relation, native.negatives is not None

        super().__init__(
            native,
            convert=lambda batch: to_link_blocks(
                batch,
                relation=relation,
                has_negatives=has_negatives,
                feature=feature,
                label=label,
                edge_feature=edge_feature,
            ),
            is_owner=isinstance(loader, Dataset),
        )


@near_keywords
def to_link_blocks(
    batch: LinkBatch,
    *,
    relation: Relation | None = None,
    has_negatives: bool = True,
    feature: str = "feat",
    label: str = "label",
    edge_feature: str = "feat",
) -> LinkBlockBatch:
    """Return the input nodes, graphs of the positive and negative pairs, and a DGL block per hop. Pure.

    The nodes of both graphs are the seeds, in the order of the last block's destinations. So a model's output for the
    blocks can serve as the node data of both graphs. ``dgl.NID`` is set. ``dgl.EID`` in the graph of positives is each
    pair's row in the link table, which lists the pairs to predict. The edges of this graph have the column "time" if
    the batch has times, and their labels if no negatives are drawn.

    Parameters
    ----------
    batch : a native batch; its arrays are shared
    relation : the pairs' relation, for a batch with several types; other relations have no pairs
    has_negatives : False omits the graph of negatives, as DGL does without a ``negative_sampler``
    feature, label, edge_feature : names for node features, for the positives' own labels, and for edge features

    Raises
    ------
    ConfigError
        The batch is on a device that this DGL cannot use.
    """
    view, count = TypedBatch(batch.batch, _RELATION), batch.num_positives
    pairs_relation = _RELATION if view.only_type else relation
    if pairs_relation is None:
        raise ConfigError("for a batch of several types, relation= must name the relation of its pairs")
    blocks = _blocks(view, feature, edge_feature)
    nodes = view.plain(view.nodes)
    device = batch.labels.device
    pair_graph = _graph_of_pairs(view, pairs_relation, batch.pairs[:count])
    edges = pair_graph.edges[pairs_relation].data
    edges[dgl.EID] = torch.from_numpy(batch.edge_ids[:count]).to(device)
    if batch.times is not None:
        edges["time"] = torch.from_numpy(batch.times).to(device)
    if not has_negatives:
        edges[label] = batch.labels
        return nodes, pair_graph, blocks
    return nodes, pair_graph, _graph_of_pairs(view, pairs_relation, batch.pairs[count:]), blocks


def _graph_of_pairs(view: TypedBatch, relation: Relation, pairs: torch.Tensor) -> Any:
    """Return the graph over the seeds whose edges are ``pairs`` (n, 2); other relations stay empty."""
    nothing = pairs.new_empty(0)
    edges = dict.fromkeys(view.blocks[0], (nothing, nothing))
    graph = dgl.heterograph({**edges, relation: (pairs[:, 0], pairs[:, 1])}, dict(view.num_seeds))
    for name, ids in view.seeds.items():
        graph.nodes[name].data[dgl.NID] = ids
    return graph
