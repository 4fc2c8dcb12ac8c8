"""The loader's batches as DGL's message flow graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gloader.bridges.dgl.block import create_block, fill_edges, require_device
from gloader.bridges.dgl.hetero_blocks import HeteroBlockBatch, to_hetero_blocks
from gloader.bridges.loader_view import LoaderView, to_loader
from gloader.convert.sources.dgl import quiet_dgl
from gloader.core.near_names import near_keywords
from gloader.dataset import Dataset
from gloader.loader import HeteroLoader

if TYPE_CHECKING:
    from gloader.bridges.loader_view import AnyLoader
    from gloader.types import HeteroReadyBatch, ReadyBatch


with quiet_dgl("gloader.adapters.dgl needs") as dgl:
    pass

# The names that DGL gives to the only type and relation.
_TYPE, _RELATION = "_N", ("_N", "_E", "_N")

BlockBatch: TypeAlias = "tuple[torch.Tensor, torch.Tensor, list[Any]]"


class BlockLoader(LoaderView[Any]):
    """Yields ``(input_nodes, output_nodes, blocks)``, as ``dgl.dataloading.DataLoader`` does.

    Of a dataset of several types nodes are mappings and blocks typed, see `to_hetero_blocks`.

    ``blocks[0].srcdata[feature]`` holds the features, ``blocks[-1].dstdata[label]`` the labels; ``dgl.NID`` and
    ``dgl.EID`` are set, edge ids being positions in the dataset's ``indices``; so is ``edata["weight"]`` where the
    sampler weighs its edges, and ``edata[edge_feature]`` where they have features. Everything is a view of the native
    batch: local ids are int32, and a batch that is kept alive keeps its buffer.

    Parameters
    ----------
    loader : a `gloader.Loader` or `gloader.HeteroLoader`, or a `gloader.Dataset` to build one for
    feature, label, edge_feature : names of the node data and of the edge data
    settings : of the loader to build: ``fanouts``, ``batch_size``, ``memory_budget``, ...; see `gloader.Loader`

    Raises
    ------
    ConfigError
        This DGL cannot use the loader's device; or as `to_loader`.
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
        is_owner = isinstance(loader, Dataset)
        names = {"feature": feature, "label": label, "edge_feature": edge_feature}
        if isinstance(native, HeteroLoader):
            labelled = native.dataset.labelled.name

            def convert_typed(batch: HeteroReadyBatch) -> HeteroBlockBatch:
                return to_hetero_blocks(batch, labelled=labelled, **names)

            super().__init__(native, convert=convert_typed, is_owner=is_owner)
        else:
            super().__init__(
                native,
                convert=lambda batch: to_blocks(batch, **names),
                is_owner=is_owner,
            )


@near_keywords
def to_blocks(
    batch: ReadyBatch, *, feature: str = "feat", label: str = "label", edge_feature: str = "feat"
) -> BlockBatch:
    """Return the input nodes (U,), the seeds (B,) and a DGL block per hop, without copying. Pure.

    Parameters
    ----------
    batch : a native batch; its arrays are shared
    feature, label : names of the node data of the first and the last block
    edge_feature : name of the edge data of every block, where edges have features

    Raises
    ------
    ConfigError
        The batch is on a device that this DGL cannot use.
    """
    nodes, blocks = unlabelled_blocks(batch, feature=feature, edge_feature=edge_feature)
    # On the outermost block alone, as DGL's loader does.
    blocks[-1].dstdata[label] = batch.y
    return nodes, nodes[: batch.num_seeds], blocks


def unlabelled_blocks(
    batch: ReadyBatch, *, feature: str, edge_feature: str
) -> tuple[torch.Tensor, list[Any]]:
    """Return the input nodes (U,) and a DGL block per hop; as of `to_blocks`."""
    nodes = torch.from_numpy(batch.nodes)
    if batch.x.device.type != "cpu":
        require_device(batch.x.device)
        nodes = nodes.to(batch.x.device)
    blocks = []
    for hop in batch.blocks:
        block = create_block({_RELATION: hop}, {_TYPE: hop.num_src}, {_TYPE: hop.num_dst})
        block.srcdata[dgl.NID] = nodes[: hop.num_src]
        block.dstdata[dgl.NID] = nodes[: hop.num_dst]
        fill_edges(block.edata, hop, edge_feature)
        blocks.append(block)
    blocks[0].srcdata[feature] = batch.x
    return nodes, blocks
