"""A network over several types on a whole graph, computed by dense matrices in float64 instead of its kernels."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch.nn import functional

from gloader.models import HeteroNetwork
from gloader.models.gat import RelationAttention
from gloader.models.sage import SageConv
from gloader.samplers.graph import HeteroGraph
from gloader.types import Relation


def dense_rows(
    network: HeteroNetwork, graph: HeteroGraph, features: Mapping[str, np.ndarray], *, num_layers: int
) -> dict[str, torch.Tensor]:
    """Return what the layer number ``num_layers`` makes of all nodes, by type."""
    network = copy.deepcopy(network).eval().double()
    with torch.no_grad():
        x = {name: torch.tensor(rows).double() for name, rows in features.items()} | network.learned
        for depth, layer in enumerate(network.layers[:num_layers]):
            entered = {name: network.enter(depth, name, x[name]) for name in layer.in_dims}
            x = {name: root(entered[name]) for name, root in layer.roots.items()}
            for relation, conv in layer.relations.items():
                source, _, into = relation
                ends = entered[source], entered[into], _matrix(graph, relation)
                x[into] = x[into] + (
                    _mean(conv, *ends) if isinstance(conv, SageConv) else _attention(conv, *ends)
                )
    return x


def dense_logits(
    network: HeteroNetwork, graph: HeteroGraph, features: Mapping[str, np.ndarray]
) -> torch.Tensor:
    """Return the logits of all nodes of the labelled type."""
    rows = dense_rows(network, graph, features, num_layers=len(network.layers))[network.targets[0]]
    with torch.no_grad():
        return copy.deepcopy(network).eval().double().leave(rows)


def _matrix(graph: HeteroGraph, relation: Relation) -> torch.Tensor:
    """Return how many edges there are from each source to each destination, (D, S)."""
    topology = graph.relations[relation]
    matrix = np.zeros((topology.num_nodes, topology.num_sources))
    destinations = np.repeat(np.arange(topology.num_nodes), np.diff(topology.indptr))
    np.add.at(matrix, (destinations, topology.indices), 1)
    return torch.from_numpy(matrix)


def _mean(conv: SageConv, x: torch.Tensor, own: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return conv.lin_l(matrix @ x / matrix.sum(1, keepdim=True).clamp(min=1))


def _attention(
    conv: RelationAttention, x: torch.Tensor, own: torch.Tensor, matrix: torch.Tensor
) -> torch.Tensor:
    shape = conv.heads, conv.head_dim
    rows, mine = conv.lin_src(x).view(len(x), *shape), conv.lin_dst(own).view(len(own), *shape)
    scores = (mine * conv.att_dst).sum(2)[:, None] + (rows * conv.att_src).sum(2)[None]
    powers = matrix[:, :, None] * functional.leaky_relu(scores, 0.2).exp()
    weights = powers / powers.sum(1, keepdim=True).clamp(min=1e-300)
    return torch.einsum("dsh,shc->dhc", weights, rows).flatten(1) + conv.bias
