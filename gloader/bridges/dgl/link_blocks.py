"""The loader's batches of links as DGL has them: graphs of pairs over the seeds, and message flow graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gloader.bridges.dgl.block import require_device
from gloader.bridges.dgl.blocks import unlabelled_blocks
from gloader.bridges.dgl.hetero_blocks import unlabelled_hetero_blocks
from gloader.bridges.loader_view import LoaderView, to_link_loader
from gloader.convert.sources.dgl import quiet_dgl
from gloader.core.near_names import near_keywords
from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.types import ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gloader.loader import LinkLoader
    from gloader.types import HeteroReadyBatch, LinkBatch, Relation


with quiet_dgl("gloader.adapters.dgl needs") as dgl:
    pass

# Input nodes, the graph of the positives, that of the negatives, blocks; without negatives three of them.
_Make: TypeAlias = (
    "Callable[[torch.Tensor], tuple[Any, Any]]"  # of pairs (n, 2) a graph, and the data of its edges
)
LinkBlockBatch: TypeAlias = "tuple[Any, Any, Any, list[Any]] | tuple[Any, Any, list[Any]]"


class LinkBlockLoader(LoaderView[Any]):
    """Yields what a loader over ``dgl.dataloading.as_edge_prediction_sampler`` does; see `to_link_blocks`.

    That is ``(input_nodes, pair_graph, neg_graph, blocks)``, or without negatives ``(input_nodes, pair_graph,
    blocks)``.

    Parameters
    ----------
    loader : a `gloader.LinkLoader`, or a `gloader.Dataset` to build one for
    feature, label, edge_feature : names of node data, of the positives' own labels, and of edge data
    settings : of the loader to build: ``edges``, ``negatives``, ``exclude``, ``fanouts``, ``batch_size``, ...; see
        `gloader.LinkLoader`

    Raises
    ------
    ConfigError
        This DGL cannot use the loader's device; or as `to_link_loader`.
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

        def convert(batch: LinkBatch) -> LinkBlockBatch:
            return to_link_blocks(
                batch,
                relation=relation,
                has_negatives=has_negatives,
                feature=feature,
                label=label,
                edge_feature=edge_feature,
            )

        super().__init__(native, convert=convert, is_owner=isinstance(loader, Dataset))


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
    """Return the input nodes, the positives and the negatives as graphs over the seeds, and a DGL block per hop. Pure.

    The nodes of both graphs are the seeds, in the order of the last block's destinations, so that what a model makes of
    the blocks is data of their nodes; ``dgl.NID`` is set. Edges of ``pair_graph`` have their row of the link table as
    ``dgl.EID``, their time as "time" where they have one, and their own labels where no negatives are drawn.

    Parameters
    ----------
    batch : a native batch; its arrays are shared
    relation : what the pairs are of, where the batch is of several types: edges of the others are none
    has_negatives : leave the graph of the negatives out, as DGL does without a ``negative_sampler``
    feature, label, edge_feature : names of node data, of the positives' own labels, and of edge data

    Raises
    ------
    ConfigError
        The batch is on a device that this DGL cannot use.
    """
    ready, count = batch.batch, batch.num_positives
    if isinstance(ready, ReadyBatch):
        nodes: Any
        nodes, blocks = unlabelled_blocks(ready, feature=feature, edge_feature=edge_feature)
        make = _plain_graphs(ready.num_seeds, nodes)
    else:
        nodes, blocks = unlabelled_hetero_blocks(ready, feature=feature, edge_feature=edge_feature)
        make = _typed_graphs(ready, nodes, relation)
    device = batch.labels.device
    pair_graph, edges = make(batch.pairs[:count])
    edges[dgl.EID] = torch.from_numpy(batch.edge_ids[:count]).to(device)
    if batch.times is not None:
        edges["time"] = torch.from_numpy(batch.times).to(device)
    if not has_negatives:
        edges[label] = batch.labels
        return nodes, pair_graph, blocks
    neg_graph, _ = make(batch.pairs[count:])
    return nodes, pair_graph, neg_graph, blocks


def _plain_graphs(num_seeds: int, nodes: torch.Tensor) -> _Make:
    def make(pairs: torch.Tensor) -> tuple[Any, Any]:
        graph = dgl.graph((pairs[:, 0], pairs[:, 1]), num_nodes=num_seeds)
        graph.ndata[dgl.NID] = nodes[:num_seeds]
        return graph, graph.edata

    return make


def _typed_graphs(
    ready: HeteroReadyBatch, nodes: Mapping[str, torch.Tensor], relation: Relation | None
) -> _Make:
    if relation is None:
        raise ConfigError("a batch of several types needs the relation= that its pairs are of")

    def make(pairs: torch.Tensor) -> tuple[Any, Any]:
        nothing = pairs.new_empty(0)
        edges = dict.fromkeys(ready.blocks[0], (nothing, nothing))
        graph = dgl.heterograph({**edges, relation: (pairs[:, 0], pairs[:, 1])}, dict(ready.num_seeds))
        for name, ids in nodes.items():
            graph.nodes[name].data[dgl.NID] = ids[: ready.num_seeds[name]]
        return graph, graph.edges[relation].data

    return make
