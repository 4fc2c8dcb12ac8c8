from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from gloader.errors import ConfigError
from gloader.models import DotDecoder, MlpDecoder, build_decoder


class LinkPredictor(nn.Module):
    """As in OGB's examples of link prediction."""

    def __init__(self, in_channels, hidden_channels, out_channels, num_layers, dropout) -> None:
        super().__init__()
        self.lins = nn.ModuleList()
        self.lins.append(nn.Linear(in_channels, hidden_channels))
        for _ in range(num_layers - 2):
            self.lins.append(nn.Linear(hidden_channels, hidden_channels))
        self.lins.append(nn.Linear(hidden_channels, out_channels))
        self.dropout = dropout

    def forward(self, x_i, x_j):
        x = x_i * x_j
        for lin in self.lins[:-1]:
            x = lin(x)
            x = functional.relu(x)
            x = functional.dropout(x, p=self.dropout, training=self.training)
        x = self.lins[-1](x)
        return torch.sigmoid(x)


@pytest.fixture
def ends() -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of the ends of 5 pairs."""
    torch.manual_seed(0)
    return torch.randn(5, 6), torch.randn(5, 6)


def test_a_dot_product_is_that_of_each_pair(ends) -> None:
    source, destination = ends
    found = build_decoder("dot", dim=6, hidden=8, dropout=0.5)(source, destination)
    expected = [float(one @ other) for one, other in zip(source, destination, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected))
    assert not list(DotDecoder().parameters())


@pytest.mark.parametrize("layers", [2, 3, 4])
@pytest.mark.parametrize("training", [False, True])
def test_an_mlp_is_that_of_ogb_from_its_first_weight_to_its_gradients(layers, training, ends) -> None:
    torch.manual_seed(1)
    ours = MlpDecoder(6, 8, layers=layers, dropout=0.5).train(training)
    torch.manual_seed(1)
    theirs = LinkPredictor(6, 8, 1, layers, 0.5).train(training)
    assert list(ours.state_dict()) == list(theirs.state_dict())

    results = []
    for model in (ours, theirs):
        torch.manual_seed(2)  # of dropout
        source, destination = (end.clone().requires_grad_() for end in ends)
        result = model(source, destination)
        result = result if model is ours else torch.logit(result.double()).float().squeeze(1)
        result.square().sum().backward()
        results.append([result, source.grad, destination.grad, *[each.grad for each in model.parameters()]])
    assert results[0][0].shape == (5,)
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_an_mlp_by_name_has_three_layers_and_the_width_and_dropout_that_are_asked_for() -> None:
    found = build_decoder("mlp", dim=6, hidden=8, dropout=0.25)
    assert isinstance(found, MlpDecoder)
    assert [tuple(lin.weight.shape) for lin in found.lins] == [(8, 6), (8, 8), (1, 8)]
    assert found.dropout == 0.25


@pytest.mark.parametrize("name", ["dot", "mlp"])
def test_no_pairs_have_no_logits(name) -> None:
    decoder = build_decoder(name, dim=6, hidden=8, dropout=0.0)
    assert decoder(torch.zeros(0, 6), torch.zeros(0, 6)).shape == (0,)


def test_an_unknown_decoder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"decoder 'cosine' is not known; allowed: dot, mlp"):
        build_decoder("cosine", dim=6, hidden=8, dropout=0.0)
