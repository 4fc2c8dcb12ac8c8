"""One hop as a block of DGL's, without the search for the largest id that its public constructor does."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from gloader.convert.sources.dgl import quiet_dgl
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.types import DeviceBlock, Relation


with quiet_dgl("gloader.adapters.dgl needs") as dgl:
    from dgl.graph_index import from_coo
    from dgl.heterograph import DGLBlock
    from dgl.heterograph_index import create_heterograph_from_relations, create_unitgraph_from_csr

_FORMATS = ["coo", "csr", "csc"]


def create_block(
    hop: Mapping[Relation, DeviceBlock], num_src: Mapping[str, int], num_dst: Mapping[str, int]
) -> Any:
    """Return what ``dgl.create_block`` makes of the ``"csc"`` forms of ``hop``; arrays are shared.

    The search for the largest id, in each relation, would be most of what an adapted batch costs.

    Parameters
    ----------
    hop : of each relation, its edges
    num_src, num_dst : nodes of each type
    """
    types = tuple(sorted(num_src))
    relations = tuple(sorted(hop))
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
    """Write what is known of the edges of ``hop`` into the edge data of its block; features as ``feature``."""
    data[dgl.EID] = hop.edge_ids
    if hop.edge_weight is not None:
        data["weight"] = hop.edge_weight
    if hop.edge_x is not None:
        data[feature] = hop.edge_x


@cache
def _meta_graph(types: tuple[str, ...], relations: tuple[Relation, ...]) -> Any:
    """Return the graph of types: sources first, then destinations."""
    number = {name: position for position, name in enumerate(types)}
    sources = [number[source] for source, _, _ in relations]
    destinations = [len(types) + number[destination] for _, _, destination in relations]
    return from_coo(2 * len(types), sources, destinations, True)


def require_device(device: str | torch.device) -> None:
    """Raise ConfigError where this DGL cannot hold graphs on ``device``; DGL's own error comes in the first batch."""
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
