"""A loader's batches in the form of DGL's: input nodes, output nodes and blocks whose data are asked for by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gloader.bridges.dgl_api.block import Block
from gloader.bridges.dgl_api.edge_list import EdgeList
from gloader.bridges.dgl_api.frame import Frame
from gloader.bridges.dgl_api.names import EID, FEATURE, LABEL, NID, NODE, RELATION
from gloader.bridges.hop_sizes import nodes_by_hop
from gloader.types import ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gloader.bridges.dgl_api.dataset_graph import DGLGraph
    from gloader.types import AnyReadyBatch, DeviceBlock, LinkBatch, Relation


NodesLike: TypeAlias = "torch.Tensor | dict[str, torch.Tensor]"
NodeBatch: TypeAlias = "tuple[NodesLike, NodesLike, list[Block]]"


class TypedView:
    """A batch by types, whether it has one or several; ids are on the device.

    Parameters
    ----------
    batch : of either kind
    """

    def __init__(self, batch: AnyReadyBatch) -> None:
        self.is_plain = isinstance(batch, ReadyBatch)
        self.device = batch.y.device
        x: Mapping[str, torch.Tensor]
        if isinstance(batch, ReadyBatch):
            x, nodes, self.num_seeds = {NODE: batch.x}, {NODE: batch.nodes}, {NODE: batch.num_seeds}
            self.hops: list[Mapping[Relation, DeviceBlock]] = [{RELATION: hop} for hop in batch.blocks]
        else:
            x, nodes, self.num_seeds = batch.x, dict(batch.nodes), dict(batch.num_seeds)
            self.hops = list(batch.blocks)
        self.x = {name: rows for name, rows in x.items() if rows.shape[1]}
        self.nodes = {name: torch.from_numpy(ids).to(self.device) for name, ids in nodes.items()}

    @property
    def seeds(self) -> dict[str, torch.Tensor]:
        """The seeds of each type."""
        return {name: ids[: self.num_seeds[name]] for name, ids in self.nodes.items()}

    def plain(self, nodes: dict[str, torch.Tensor]) -> NodesLike:
        """Return ``nodes`` by type, those of the only type as such."""
        return nodes[NODE] if self.is_plain else nodes


def to_node_batch(batch: AnyReadyBatch, graph: DGLGraph) -> NodeBatch:
    """Return input nodes, output nodes and blocks; the last has the labels.

    Parameters
    ----------
    batch : a native batch; its arrays are shared
    graph : whose data the blocks have, too, when they are asked for
    """
    view = TypedView(batch)
    inputs, blocks = _blocks(view, graph)
    labelled = NODE if view.is_plain else graph.dataset.labelled.name
    blocks[-1].dstnodes[labelled].data[LABEL] = batch.y
    return inputs, view.plain(view.seeds), blocks


def to_link_batch(batch: LinkBatch, graph: DGLGraph, relation: Relation, *, has_negatives: bool) -> Any:
    """Return input nodes, the positives and the negatives as graphs of pairs over the seeds, and blocks.

    Without negatives the edges of the positives have their labels, and the other graph is left out, as by DGL.

    Parameters
    ----------
    batch : a native batch; its arrays are shared
    graph : as of `to_node_batch`
    relation : what the pairs are of
    has_negatives : whether some are drawn
    """
    view = TypedView(batch.batch)
    inputs, blocks = _blocks(view, graph)
    count = batch.num_positives
    relation = RELATION if view.is_plain else relation
    seeds = {name: _node_frame(graph, name, ids) for name, ids in view.seeds.items()}
    rows = torch.from_numpy(batch.edge_ids[:count]).to(view.device)
    columns = {EID: rows} | ({} if has_negatives else {LABEL: batch.labels})
    pairs = _pair_graph(seeds, relation, batch.pairs[:count], columns)
    if not has_negatives:
        return inputs, pairs, blocks
    return inputs, pairs, _pair_graph(seeds, relation, batch.pairs[count:], {}), blocks


def _blocks(view: TypedView, graph: DGLGraph) -> tuple[NodesLike, list[Block]]:
    known = nodes_by_hop(view.num_seeds, view.hops)
    blocks = []
    for depth, hop in enumerate(view.hops):
        # The first block is next to the features, and holds the nodes that are known after the last hop.
        after = len(view.hops) - depth
        sides = [
            {name: _node_frame(graph, name, ids[: known[name][side]]) for name, ids in view.nodes.items()}
            for side in (after, after - 1)
        ]
        blocks.append(
            Block(
                {relation: EdgeList.of_block(edges) for relation, edges in hop.items()},
                {relation: _edge_frame(graph, relation, edges) for relation, edges in hop.items()},
                src_data=sides[0],
                dst_data=sides[1],
                device=view.device,
            )
        )
    inputs = {name: frame[NID] for name, frame in _sources(blocks[0]).items()}
    for name, rows in view.x.items():
        if (stored := graph.stored_features(name)) is not None:
            blocks[0].srcnodes[name].data[FEATURE] = rows
            stored.keep_ready(inputs[name], rows)
    return view.plain(inputs), blocks


def _sources(block: Block) -> dict[str, Frame]:
    return {name: block.srcnodes[name].data for name in block.srctypes}


def _node_frame(graph: DGLGraph, ntype: str, ids: torch.Tensor) -> Frame:
    """Return the data of the nodes ``ids``: what the graph has of them, when it is asked for."""
    return Frame(len(ids), {NID: ids}, fetch=_from(graph.node_frame(ntype), lambda: ids))


def _edge_frame(graph: DGLGraph, relation: Relation, edges: DeviceBlock) -> Frame:
    columns: dict[str, Any] = {EID: lambda: edges.edge_ids}
    if edges.edge_x is not None:
        columns[FEATURE] = edges.edge_x
    num_edges = int(edges.indices.shape[0])
    return Frame(num_edges, columns, fetch=_from(graph.edge_frame(relation), lambda: edges.edge_ids))


def _from(frame: Frame, ids_of: Callable[[], torch.Tensor]) -> Callable[[str], Any]:
    def fetch(key: str) -> Any:
        column, ids = frame[key], ids_of()
        return column[ids.to(column.device)].to(ids.device)

    return fetch


def _pair_graph(
    seeds: Mapping[str, Frame], relation: Relation, pairs: torch.Tensor, columns: Mapping[str, torch.Tensor]
) -> Block:
    src, dst = pairs.unbind(1)
    # A graph of its own for each: what a model writes to the one is not in the other.
    frames = {
        name: Frame(frame.num_rows, frame.columns(), fetch=frame.__getitem__) for name, frame in seeds.items()
    }
    edges = EdgeList(src, dst, num_src=frames[relation[0]].num_rows, num_dst=frames[relation[2]].num_rows)
    return Block(
        {relation: edges},
        {relation: Frame(len(pairs), columns)},
        src_data=frames,
        dst_data=frames,
        device=pairs.device,
    )
