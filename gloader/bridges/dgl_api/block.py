"""A mini-batch's blocks in DGL's form, and the graphs of pairs for link prediction.

This module works without DGL. `to_node_batch` turns a loader's batch into input nodes, output nodes (the seeds) and one
`DGLBlock` per hop. `to_link_batch` converts a batch of edges to predict. The loaders in `loader` call both. The
data of nodes and edges lies in frames, which have columns by name and a row for each node or edge. A graph of pairs has
the edges to predict, positive or negative, over the batch's seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from gloader.bridges.dgl_api.edge_list import EdgeList, Message, Reduction, combine
from gloader.bridges.dgl_api.frame import (
    EdgeUnits,
    Frame,
    NodesView,
    RelationData,
    Space,
    data_of,
    forgetting,
)
from gloader.bridges.dgl_api.names import (
    EID,
    FEATURE,
    LABEL,
    NID,
    RELATION,
    missing,
    missing_of_graph,
    only,
    relation_of,
)
from gloader.bridges.loader_view import TypedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from gloader.bridges.dgl_api.dataset_graph import DGLGraph
    from gloader.bridges.dgl_api.frame import TypedColumns
    from gloader.types import AnyReadyBatch, DeviceBlock, LinkBatch, Relation


_NAME: Final = "DGLBlock"  # the class's name in errors


class DGLBlock(RelationData):
    """A block in DGL's sense: one hop's edges, their source and destination nodes, and the data of all three.

    The class also serves for graphs of pairs, whose sources and destinations are the same nodes. Such a graph has
    ``ndata``, and its ``is_block`` is False.

    Parameters
    ----------
    edges : edges by relation, a triple (source type, name, destination type)
    edge_data : frames by relation, with a row for each edge
    src_data, dst_data : frames by node type; one object for both makes a graph of pairs
    device : device that holds all tensors
    """

    def __init__(
        self,
        edges: Mapping[Relation, EdgeList],
        edge_data: Mapping[Relation, Frame],
        *,
        src_data: Mapping[str, Frame],
        dst_data: Mapping[str, Frame],
        device: torch.device,
    ) -> None:
        super().__init__(edges, edge_data)
        self._src_data = src_data
        self._dst_data = dst_data
        self.device = device
        self.is_block = src_data is not dst_data

    def __getattr__(self, name: str) -> Any:
        raise missing_of_graph(_NAME, name, dir(type(self)))

    def __getitem__(self, etype: Any) -> DGLBlock:
        """Return one relation's part, which shares the block's data."""
        relation = relation_of(self._edges, etype)
        source, _, destination = relation
        src_data = {source: self._src_data[source]}
        is_same = not self.is_block and source == destination
        return DGLBlock(
            {relation: self._edges[relation]},
            {relation: self._edge_data[relation]},
            src_data=src_data,
            dst_data=src_data if is_same else {destination: self._dst_data[destination]},
            device=self.device,
        )

    # --- sizes and types ---------------------------------------------------------------------------

    @property
    def srctypes(self) -> list[str]:
        """The sources' types."""
        return list(self._src_data)

    @property
    def dsttypes(self) -> list[str]:
        """The destinations' types."""
        return list(self._dst_data)

    @property
    def ntypes(self) -> list[str]:
        """The nodes' types: in a block the sources' types, then the destinations' types."""
        return self.srctypes + self.dsttypes if self.is_block else self.srctypes

    def num_src_nodes(self, ntype: str | None = None) -> int:
        """Return the number of sources, with one type or in total."""
        return _num_rows(self._src_data, ntype)

    def num_dst_nodes(self, ntype: str | None = None) -> int:
        """Return the number of destinations, with one type or in total."""
        return _num_rows(self._dst_data, ntype)

    def num_nodes(self, ntype: str | None = None) -> int:
        """Return the number of nodes: in a block, sources plus destinations."""
        count = self.num_src_nodes(ntype)
        return count + self.num_dst_nodes(ntype) if self.is_block else count

    def num_edges(self, etype: Any = None) -> int:
        """Return the number of edges, in one relation or in total."""
        if etype is None:
            return sum(each.num_edges for each in self._edges.values())
        return self._edges[relation_of(self._edges, etype)].num_edges

    number_of_src_nodes = num_src_nodes
    number_of_dst_nodes = num_dst_nodes
    number_of_nodes = num_nodes
    number_of_edges = num_edges

    # --- data ----------------------------------------------------------------------------------------

    @property
    def srcdata(self) -> Frame | TypedColumns:
        """The sources' data; with several types, each column is a mapping by type."""
        return data_of(self._src_data)

    @property
    def dstdata(self) -> Frame | TypedColumns:
        """The destinations' data, as `srcdata`."""
        return data_of(self._dst_data)

    @property
    def ndata(self) -> Frame | TypedColumns:
        """Node data in a graph of pairs.

        Raises
        ------
        DglFeatureError
            This is a block, with separate sources and destinations.
        """
        if self.is_block:
            raise missing_of_graph(_NAME, "ndata")
        return data_of(self._src_data)

    @property
    def srcnodes(self) -> NodesView:
        """The sources: ``srcnodes(type)`` returns their local ids, and ``srcnodes[type].data`` their data."""
        return NodesView(self._src_data, self.device)

    @property
    def dstnodes(self) -> NodesView:
        """The destinations, as `srcnodes`."""
        return NodesView(self._dst_data, self.device)

    @property
    def nodes(self) -> NodesView:
        """The nodes in a graph of pairs, as `srcnodes`."""
        return self.srcnodes

    # --- messages ------------------------------------------------------------------------------------

    def local_scope(self) -> AbstractContextManager[None]:
        """Return a context that undoes changes to the data at its end."""
        return forgetting([*self._src_data.values(), *self._dst_data.values(), *self._edge_data.values()])

    def apply_edges(
        self, func: Message | Callable[[EdgeUnits], Mapping[str, Any]], etype: Any = None
    ) -> None:
        """Write a field for each edge.

        Parameters
        ----------
        func : a message from `gloader.compat.dgl.function`, or a function from `EdgeUnits` to fields (E, ...) by name
        etype : the relation; None means the only relation
        """
        relation = relation_of(self._edges, etype)
        self._edge_data[relation].update(self._messages(relation, func))

    def update_all(
        self,
        message_func: Message | Callable[[EdgeUnits], Mapping[str, Any]],
        reduce_func: Reduction,
        apply_node_func: Callable[[Space], Mapping[str, Any]] | None = None,
        etype: Any = None,
    ) -> None:
        """Write a field for each destination: its reduced messages along the in-edges; 0 without in-edges.

        Parameters
        ----------
        message_func : as in `apply_edges`
        reduce_func : sum, mean, max or min from `gloader.compat.dgl.function`
        apply_node_func : returns further destination fields from the destinations' ``data``, or None
        etype : the relation; None means the only relation

        Raises
        ------
        DglFeatureError
            ``reduce_func`` is a function over a mailbox.
        """
        if not isinstance(reduce_func, Reduction):
            raise missing(
                "update_all with a reduce function over a mailbox (nodes.mailbox)",
                "give a reduction by name: dgl.function.sum, mean, max or min",
            )
        relation = relation_of(self._edges, etype)
        edges = self._edges[relation]
        reduced = None
        if isinstance(message_func, Message) and reduce_func.op in ("sum", "mean"):
            reduced = self._sum_of_sources(relation, message_func)
        if reduced is None:
            reduced = edges.reduce(self._messages(relation, message_func)[reduce_func.msg], reduce_func.op)
        elif reduce_func.op == "mean":
            reduced = edges.mean_of(reduced)
        data = self._dst_data[relation[2]]
        data[reduce_func.out] = reduced
        if apply_node_func is not None:
            data.update(apply_node_func(Space(data)))

    def _sum_of_sources(self, relation: Relation, message: Message) -> torch.Tensor | None:
        """Return each destination's sum of messages that are source rows, perhaps times an edge weight.

        These sums are computed as a sparse product, without a row for each edge. Returns None for other messages.
        """
        ends = "".join(each.end for each in message.operands)
        rows = self._field(relation, message, "u") if "u" in ends else None
        if rows is None or not rows.is_floating_point() or not self._edges[relation].num_edges:
            return None
        if message.op == "copy":
            return self._edges[relation].weighted_sum(rows)
        if message.op != "mul" or "e" not in ends:
            return None
        weight = self._field(relation, message, "e")
        if not weight.is_floating_point():
            return None
        if weight.dim() == 1 or (weight.dim() == 2 and weight.shape[1] == 1 and rows.dim() == 2):
            return self._edges[relation].weighted_sum(rows, weight.flatten())
        is_by_head = weight.dim() == rows.dim() == 3 and weight.shape[1:] == (rows.shape[1], 1)
        return self._edges[relation].weighted_sum(rows, weight) if is_by_head else None

    def _field(self, relation: Relation, message: Message, end: str) -> torch.Tensor:
        """Return the data field that ``message`` takes from ``end``: "u", "v" or "e"."""
        operand = next(each for each in message.operands if each.end == end)
        field: torch.Tensor = self._data(relation, end)[operand.field]
        return field

    def _data(self, relation: Relation, end: str) -> Frame:
        """Return a relation's data at ``end``: "u" for the sources, "v" for the destinations, "e" for the edges."""
        source, _, destination = relation
        if end == "e":
            return self._edge_data[relation]
        return self._src_data[source] if end == "u" else self._dst_data[destination]

    def _units(self, relation: Relation) -> EdgeUnits:
        data = {end: self._data(relation, end) for end in "uve"}
        return EdgeUnits(self._edges[relation], data["u"], data["v"], data["e"])

    def _messages(
        self, relation: Relation, func: Message | Callable[[EdgeUnits], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Return the fields that ``func`` makes for each edge."""
        units = self._units(relation)
        if not isinstance(func, Message):
            return func(units)
        data_by_end = {"u": units.src, "v": units.dst, "e": units.data}
        fields = [data_by_end[each.end][each.field] for each in func.operands]
        return {func.out: fields[0] if func.op == "copy" else combine(func.op, *fields)}

    # --- devices -------------------------------------------------------------------------------------

    def to(self, device: Any, **_how: Any) -> DGLBlock:
        """Return the block on ``device``, which is the block itself if it is already on this device."""
        place = torch.empty(0, device=device).device  # with an index: "cuda" becomes "cuda:0"
        if place == self.device:
            return self
        src_data = {name: frame.to(place) for name, frame in self._src_data.items()}
        dst_data = {name: frame.to(place) for name, frame in self._dst_data.items()}
        return DGLBlock(
            {relation: edges.to(place) for relation, edges in self._edges.items()},
            {relation: frame.to(place) for relation, frame in self._edge_data.items()},
            src_data=src_data,
            dst_data=dst_data if self.is_block else src_data,
            device=place,
        )

    def int(self) -> DGLBlock:
        """Return the block unchanged: its edges take 4 bytes per end, whatever id type is requested."""
        return self

    long = int  # noqa: A003 - the method above

    def edge_list(self) -> EdgeList:
        """Return the only relation's edges, for layers."""
        return self._edges[only(self._edges)]

    def __repr__(self) -> str:
        kind = "Block" if self.is_block else "Graph of pairs"
        sources = {name: frame.num_rows for name, frame in self._src_data.items()}
        destinations = {name: frame.num_rows for name, frame in self._dst_data.items()}
        edges = {relation: each.num_edges for relation, each in self._edges.items()}
        return f"{kind}(sources={sources}, destinations={destinations}, edges={edges})"


def _num_rows(frames: Mapping[str, Frame], ntype: str | None) -> int:
    """Return the number of nodes with type ``ntype``, 0 for an absent type; None sums over all types."""
    if ntype is None:
        return sum(frame.num_rows for frame in frames.values())
    return frames[ntype].num_rows if ntype in frames else 0


NodesLike: TypeAlias = "torch.Tensor | Mapping[str, torch.Tensor]"  # node ids, or by type
NodeBatch: TypeAlias = "tuple[NodesLike, NodesLike, list[DGLBlock]]"  # input nodes, output nodes, blocks


def to_node_batch(batch: AnyReadyBatch, graph: DGLGraph) -> NodeBatch:
    """Return input nodes, output nodes and blocks; the last block has the labels.

    Parameters
    ----------
    batch : a batch of gloader's own loader; its arrays are shared
    graph : the dataset's graph. Its columns are also columns of the blocks; their rows are read when the loop first
        requests them
    """
    view = TypedBatch(batch, RELATION)
    inputs, blocks = _blocks(view, graph)
    labelled = view.only_type or graph.dataset.labelled.name
    blocks[-1].dstnodes[labelled].data[LABEL] = batch.y
    return inputs, view.plain(view.seeds), blocks


def to_link_batch(batch: LinkBatch, graph: DGLGraph, relation: Relation, *, has_negatives: bool) -> Any:
    """Return input nodes, the positives and the negatives as graphs of pairs over the seeds, and blocks.

    Without negatives, the positives' edges have their labels, and the second graph is omitted, as in DGL.

    Parameters
    ----------
    batch : a native batch; its arrays are shared
    graph : as in `to_node_batch`
    relation : the pairs' relation
    has_negatives : True if negatives are drawn
    """
    view = TypedBatch(batch.batch, RELATION)
    inputs, blocks = _blocks(view, graph)
    count = batch.num_positives
    relation = RELATION if view.only_type else relation
    seeds = {name: _node_frame(graph, name, ids) for name, ids in view.seeds.items()}
    rows = torch.from_numpy(batch.edge_ids[:count]).to(view.device)
    columns = {EID: rows} | ({} if has_negatives else {LABEL: batch.labels})
    pairs = _pair_graph(seeds, relation, batch.pairs[:count], columns)
    if not has_negatives:
        return inputs, pairs, blocks
    return inputs, pairs, _pair_graph(seeds, relation, batch.pairs[count:], {}), blocks


def _blocks(view: TypedBatch, graph: DGLGraph) -> tuple[NodesLike, list[DGLBlock]]:
    """Return the input nodes, and a block per hop. The first block has the features."""
    blocks = []
    for depth, hop in enumerate(view.blocks):
        sides = [
            {name: _node_frame(graph, name, ids[: counts[name]]) for name, ids in view.nodes.items()}
            for counts in view.sizes(depth)
        ]
        blocks.append(
            DGLBlock(
                {relation: EdgeList.of_block(edges) for relation, edges in hop.items()},
                {relation: _edge_frame(graph, relation, edges) for relation, edges in hop.items()},
                src_data=sides[0],
                dst_data=sides[1],
                device=view.device,
            )
        )
    inputs = {name: frame[NID] for name, frame in _sources(blocks[0]).items()}
    for name, rows in view.x.items():
        # Features that the user replaced in the graph come from the graph instead, see `_node_frame`.
        if rows.shape[1] and (stored := graph.stored_features(name)) is not None:
            blocks[0].srcnodes[name].data[FEATURE] = rows
            stored.keep_ready(inputs[name], rows)
    return view.plain(inputs), blocks


def _sources(block: DGLBlock) -> dict[str, Frame]:
    """Return the source nodes' data by type."""
    return {name: block.srcnodes[name].data for name in block.srctypes}


def _node_frame(graph: DGLGraph, ntype: str, ids: torch.Tensor) -> Frame:
    """Return the data for the nodes ``ids``: the graph's columns, read on request."""
    stored = graph.node_frame(ntype)
    return Frame(len(ids), {NID: ids}, fetch=lambda key: _rows_of(stored, key, ids))


def _edge_frame(graph: DGLGraph, relation: Relation, edges: DeviceBlock) -> Frame:
    """Return the data for a hop's ``edges``. Edge ids and the graph's columns are computed on request."""
    columns: dict[str, Any] = {EID: lambda: edges.edge_ids}
    if edges.edge_x is not None:
        columns[FEATURE] = edges.edge_x
    num_edges = int(edges.indices.shape[0])
    stored = graph.edge_frame(relation)
    return Frame(num_edges, columns, fetch=lambda key: _rows_of(stored, key, edges.edge_ids))


def _rows_of(frame: Frame, key: str, ids: torch.Tensor) -> Any:
    """Return the rows ``ids`` of a frame's column ``key``, on the ids' device."""
    column = frame[key]
    return column[ids.to(column.device)].to(ids.device)


def _pair_graph(
    seeds: Mapping[str, Frame], relation: Relation, pairs: torch.Tensor, columns: Mapping[str, torch.Tensor]
) -> DGLBlock:
    """Return the graph over the seeds whose edges are ``pairs`` (n, 2), with these edge data columns."""
    src, dst = pairs.unbind(1)
    # The positives and the negatives have separate frames: a column that a model writes to one is not in the other.
    frames = {
        name: Frame(frame.num_rows, frame.columns(), fetch=frame.__getitem__) for name, frame in seeds.items()
    }
    edges = EdgeList(src, dst, num_src=frames[relation[0]].num_rows, num_dst=frames[relation[2]].num_rows)
    return DGLBlock(
        {relation: edges},
        {relation: Frame(len(pairs), columns)},
        src_data=frames,
        dst_data=frames,
        device=pairs.device,
    )
