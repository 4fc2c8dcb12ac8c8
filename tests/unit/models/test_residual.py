"""A residual network is the one of Platonov et al. (2023), written with dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from gloader.config import ModelConfig
from gloader.errors import ConfigError
from gloader.models import GraphNetwork, Schema, build_hetero_model, build_model
from gloader.models.residual import ResidualConv
from gloader.types import DeviceBlock

N, F, H, C, LAYERS = 9, 5, 8, 2, 3


def _graph() -> tuple[torch.Tensor, DeviceBlock]:
    """A graph in which node 4 has no in-edge, as a matrix with a row per destination and as one block."""
    generator = torch.Generator().manual_seed(2)
    dense = (torch.rand(N, N, generator=generator) < 0.4).float().fill_diagonal_(0.0)
    dense[4] = 0.0
    destinations, sources = dense.nonzero(as_tuple=True)
    counts = torch.bincount(destinations, minlength=N)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    block = DeviceBlock(
        indptr=indptr.int(),
        indices=sources.int(),
        edge_ids=torch.arange(len(sources)),
        src_degree=counts.float(),
        num_src=N,
        num_dst=N,
    )
    return dense, block


def _network(name: str, *, dropout: float = 0.0) -> GraphNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = ModelConfig(name=name, hidden=H, heads=2, dropout=dropout, residual=True)  # type: ignore[arg-type]
        return build_model(config, in_dim=F, out_dim=C, num_layers=LAYERS)


def _of_the_paper(
    name: str, weights: dict[str, torch.Tensor], x: torch.Tensor, dense: torch.Tensor
) -> torch.Tensor:
    """Return the output of the paper's network, whose modules have a Linear where ours have a convolution."""
    degree = dense.sum(1)
    mean = dense / degree.clamp(min=1.0).unsqueeze(1)
    norm = (degree + 1.0).rsqrt()
    normed = norm.unsqueeze(1) * (dense + torch.eye(N)) * norm
    part = lambda layer, key: weights[f"convs.{layer}.{key}"]  # noqa: E731
    h = functional.gelu(functional.linear(x, part(0, "input.0.weight"), part(0, "input.0.bias")))
    for layer in range(LAYERS):
        x = functional.layer_norm(h, (H,), part(layer, "norm.weight"), part(layer, "norm.bias"))
        match name:
            case "graphsage":  # a Linear of the node's own row next to the mean
                matrix = torch.cat(
                    (part(layer, "conv.lin_r.weight"), part(layer, "conv.lin_l.weight")), dim=1
                )
                x = functional.linear(torch.cat((x, mean @ x), dim=1), matrix, part(layer, "conv.lin_l.bias"))
            case "gcn":
                x = functional.linear(normed @ x, part(layer, "conv.lin.weight"), part(layer, "conv.bias"))
            case _:
                x = functional.linear(x, part(layer, "conv.lin.weight"), part(layer, "conv.lin.bias"))
        x = functional.linear(
            functional.gelu(x), part(layer, "feed_forward.2.weight"), part(layer, "feed_forward.2.bias")
        )
        h = h + x
    h = functional.layer_norm(h, (H,), weights["mlp.0.weight"], weights["mlp.0.bias"])
    return functional.linear(h, weights["mlp.1.weight"], weights["mlp.1.bias"])


@pytest.mark.parametrize("name", ["graphsage", "gcn", "mlp"])
def test_outputs_and_gradients_are_those_of_the_papers_network(name: str) -> None:
    dense, block = _graph()
    network = _network(name)
    x = torch.randn(N, F, generator=torch.Generator().manual_seed(1))
    for (
        parameter
    ) in network.parameters():  # norms and biases begin with ones and zeros, which would hide a mistake
        torch.nn.init.uniform_(
            parameter, -0.6, 0.6, generator=torch.Generator().manual_seed(parameter.numel())
        )
    ours = network(x, [block] * LAYERS)
    weights = {key: value.detach().clone().requires_grad_() for key, value in network.named_parameters()}
    theirs = _of_the_paper(name, weights, x, dense)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for key, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[key].grad, atol=1e-4, rtol=1e-3)


def test_dropout_acts_before_each_activation_and_after_each_feed_forward_part() -> None:
    _, block = _graph()
    network, x = _network("gcn", dropout=0.5), torch.randn(N, F)
    layers = [module for module in network.modules() if isinstance(module, torch.nn.Dropout)]
    assert len(layers) == 1 + 2 * LAYERS
    assert {layer.p for layer in layers} == {0.5}
    assert not torch.equal(network(x, [block] * LAYERS), network(x, [block] * LAYERS))
    network.eval()
    assert torch.equal(network(x, [block] * LAYERS), network(x, [block] * LAYERS))


def test_heads_form_a_hidden_row_in_the_last_layer_too() -> None:
    assert [conv.conv.concat for conv in _network("gat").convs] == [True] * LAYERS  # type: ignore[union-attr]


@pytest.mark.parametrize("heads", [1, 2])
def test_a_layer_leaves_the_rows_that_it_is_given_as_they_are(heads: int) -> None:
    """The rows that inference keeps between layers are read once for each slab."""
    config = ModelConfig(name="gat", hidden=H, heads=heads, residual=True)
    network = build_model(config, in_dim=F, out_dim=C, num_layers=2).eval()
    kept = torch.randn(N, 2 * H)
    before = kept.clone()
    layer = network.convs[0]
    assert isinstance(layer, ResidualConv)
    with torch.no_grad():
        rows = layer.head(kept)
    assert rows.shape == (N, H)
    assert torch.equal(kept, before)


@pytest.mark.parametrize("name", ["rsage", "rgcn", "rgat"])
def test_models_of_several_node_types_are_refused(name: str) -> None:
    schema = Schema(num_nodes={"a": 3}, feature_dims={"a": 2}, relations=(("a", "to", "a"),), targets=("a",))
    config = ModelConfig(name=name, residual=True)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError,
        match=rf"--residual is for models of one node type \(.*, mlp, correct-and-smooth\), and '{name}' is for",
    ):
        build_hetero_model(config, schema, out_dim=2, num_layers=2)
