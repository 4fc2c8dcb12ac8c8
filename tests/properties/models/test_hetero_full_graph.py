"""At full fan-out a typed forward is that of PyG's modules on the whole graph, gradients included."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typed_batches import NUM_NODES, RELATIONS, full_batch, small_schema

from gloader.config import ModelConfig
from gloader.models import build_hetero_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # PyG scripts classes while it is imported
    from torch_geometric.nn import GATConv, Linear, SAGEConv, to_hetero

H, C, HEADS, L = 8, 3, 2, 2
SCHEMA = small_schema()
# Some relations without an edge, edges that are there twice, nodes without any.
EDGES = st.fixed_dictionaries(
    {
        relation: st.lists(
            st.tuples(st.integers(0, NUM_NODES[relation[0]] - 1), st.integers(0, NUM_NODES[relation[2]] - 1)),
            max_size=14,
        )
        for relation in RELATIONS
    }
)


class OneType(torch.nn.Module):
    """MAG240M's baseline on one type, for `to_hetero`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            SAGEConv((-1, -1), H, root_weight=False)
            if name == "rsage"
            else GATConv((-1, -1), H // HEADS, heads=HEADS, add_self_loops=False)
            for _ in range(L)
        )
        self.skips = torch.nn.ModuleList(Linear(-1, H) for _ in range(L))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(H) for _ in range(L))
        self.activation = torch.nn.ReLU() if name == "rsage" else torch.nn.ELU()

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for depth in range(L):
            x = self.skips[depth](x) + self.convs[depth](x, edge_index)
            x = self.activation(self.norms[depth](x))
        return x


class MagRgcn:
    """What OGB's R-GCN of ogbn-mag computes, by the names of its parameters, on dense matrices."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.weights = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}

    def __call__(self, x: dict[str, torch.Tensor], edges) -> torch.Tensor:
        x = x | {name: self.weights[f"embs.{name}"] for name in x if f"embs.{name}" in self.weights}
        for depth in range(L):
            out = {}
            prefix = f"convs.{depth}"
            for name in NUM_NODES if depth < L - 1 else ["paper"]:
                root = f"{prefix}.root_lins.{name}"
                out[name] = x[name] @ self.weights[f"{root}.weight"].T + self.weights[f"{root}.bias"]
            for relation in RELATIONS:
                source, _, destination = relation
                if destination not in out:
                    continue
                adjacency = torch.zeros(NUM_NODES[destination], NUM_NODES[source])
                for u, v in edges[relation]:
                    adjacency[v, u] += 1
                adjacency = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
                weight = self.weights[f"{prefix}.rel_lins.{'__'.join(relation)}.weight"]
                out[destination] = out[destination] + adjacency @ (x[source] @ weight.T)
            x = {name: rows.relu() if depth < L - 1 else rows for name, rows in out.items()}
        return x["paper"]


def _model(name: str, seed: int):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = ModelConfig(name=name, hidden=H, heads=HEADS, dropout=0.0, batch_norm=name != "rgcn")
        model = build_hetero_model(config, SCHEMA, out_dim=C, num_layers=L)
        # Norms that are not the identity; a batch and the whole graph have other statistics, so these are given.
        for norm in model.modules():
            if isinstance(norm, torch.nn.BatchNorm1d):
                for tensor in (norm.running_mean, norm.weight, norm.bias):
                    torch.nn.init.normal_(tensor, std=0.5)
                torch.nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return model.eval()


@cache
def _theirs(name: str) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = to_hetero(OneType(name), (list(NUM_NODES), list(RELATIONS))).eval()
    nothing = torch.empty((2, 0), dtype=torch.int64)
    with torch.no_grad():  # lazy parameters get their shapes
        module(_inputs(0) | {"field": torch.zeros(3, H)}, dict.fromkeys(RELATIONS, nothing))
    return module


def _inputs(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(n, SCHEMA.feature_dims[name], generator=generator) for name, n in NUM_NODES.items()
    }


@pytest.mark.parametrize("name", ["rsage", "rgat"])
@given(edges=EDGES, seed=st.integers(0, 5))
def test_rsage_and_rgat_are_to_hetero_of_their_pyg_layers(name, edges, seed) -> None:
    model = _model(name, seed)
    theirs = _theirs(name)
    edge_index = {
        relation: torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T for relation, pairs in edges.items()
    }
    x = _inputs(seed)
    ours_x = {key: rows.clone().requires_grad_() for key, rows in x.items()}
    # Rows that are learned here are features there.
    learned = model.embs["field"].detach()
    theirs_x = {key: rows.clone().requires_grad_() for key, rows in (x | {"field": learned}).items()}
    own = {key: value for key, value in model.state_dict().items() if not key.startswith(("mlp", "embs"))}
    # What they have beyond ours does not reach the logits.
    assert theirs.load_state_dict(own, strict=False).unexpected_keys == []

    seeds = [4, 0, 2]
    ours = model(full_batch(SCHEMA, edges, seeds, num_hops=L, x=ours_x))
    found = model.mlp(theirs(theirs_x, edge_index)["paper"])[torch.tensor(seeds)]
    torch.testing.assert_close(ours, found, atol=1e-5, rtol=1e-4)

    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed))
    ours.backward(upstream)
    head = torch.autograd.grad(found, [*theirs_x.values(), *theirs.parameters()], upstream, allow_unused=True)
    expected_x, expected = (
        head[: len(x)],
        dict(zip(dict(theirs.named_parameters()), head[len(x) :], strict=True)),
    )
    for key, gradient in zip(x, expected_x, strict=True):
        mine = model.embs[key].grad.to_dense() if key == "field" else ours_x[key].grad
        torch.testing.assert_close(mine, gradient, atol=1e-5, rtol=1e-4)
    for key, parameter in model.named_parameters():
        if not key.startswith(("mlp", "embs")):
            torch.testing.assert_close(parameter.grad, expected.pop(key), atol=1e-4, rtol=1e-3)
    assert all(gradient is None for gradient in expected.values())


@given(edges=EDGES, seed=st.integers(0, 5))
def test_rgcn_is_that_of_ogbn_mag(edges, seed) -> None:
    model = _model("rgcn", seed)
    x = _inputs(seed)
    # One width for all, as there: learned rows have it too.
    seeds = [6, 1]
    ours = model(full_batch(SCHEMA, edges, seeds, num_hops=L, x=x))
    reference = MagRgcn(dict(model.named_parameters()))
    theirs = reference(x, edges)[torch.tensor(seeds)]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed))
    ours.backward(upstream)
    theirs.backward(upstream)
    for key, parameter in model.named_parameters():
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        torch.testing.assert_close(gradient, reference.weights[key].grad, atol=1e-5, rtol=1e-4)


def test_initial_values_are_drawn_as_pyg_and_ogb_draw_them() -> None:
    """The bounds of the uniform distributions: Kaiming's of torch's Linear, Glorot's of attention and of tables."""
    wide = small_schema(
        feature_dims={"paper": 40, "author": 40, "field": 0}, num_nodes=NUM_NODES | {"field": 500}
    )
    bounds = {
        "convs.0.paper__cites__paper.lin_src.weight": np.sqrt(6 / (40 + 96)),
        "convs.0.paper__cites__paper.att_src": np.sqrt(6 / (4 + 24)),
        "skips.0.author.weight": 1 / np.sqrt(40),
        "skips.0.author.bias": 1 / np.sqrt(40),
        "mlp.4.weight": 1 / np.sqrt(96),
        "embs.field": np.sqrt(6 / (500 + 40)),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = ModelConfig(name="rgat", hidden=96, heads=4)
        model = build_hetero_model(config, wide, out_dim=C, num_layers=L)
        rsage = build_hetero_model(ModelConfig(name="rsage", hidden=96), wide, out_dim=C, num_layers=L)
    parameters = dict(model.named_parameters()) | dict(rsage.convs[0].named_parameters())
    bounds["author__writes__paper.lin_l.weight"] = bounds["author__writes__paper.lin_l.bias"] = 1 / np.sqrt(
        40
    )
    for key, bound in bounds.items():
        largest = float(parameters[key].detach().abs().max())
        assert 0.8 * bound < largest <= bound, key
    assert model.embs["field"].shape == (500, 40)
    assert not model.convs[0]["paper__cites__paper"].bias.any()
