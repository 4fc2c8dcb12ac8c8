from __future__ import annotations

import pytest
import torch

from gloader.config import ModelConfig
from gloader.errors import ConfigError
from gloader.models import build_model

NAMES = ("graphsage", "gcn", "gat", "mlp")


def _build(num_layers: int = 2, **settings):
    return build_model(ModelConfig(**settings), in_dim=6, out_dim=3, num_layers=num_layers)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_logits_have_a_row_per_seed_and_a_column_per_class(name, batch_norm, make_block) -> None:
    blocks = [make_block([0, 2, 3, 3], [3, 4, 1], num_src=5), make_block([0, 1, 2], [2, 0], num_src=3)]
    model = _build(name=name, hidden=8, batch_norm=batch_norm)
    logits = model(torch.randn(5, 6), blocks)
    assert logits.shape == (2, 3)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_hops_without_edges_still_give_finite_logits(name, make_block) -> None:
    empty = make_block([0, 0, 0], [], num_src=2)
    assert torch.isfinite(_build(name=name, hidden=8)(torch.randn(2, 6), [empty, empty])).all()


def test_an_mlp_sees_no_edge(make_block) -> None:
    model = _build(name="mlp", hidden=8).eval()
    x = torch.randn(5, 6)
    edges = [make_block([0, 2, 3], [3, 4, 1], num_src=5), make_block([0, 1, 2], [1, 0], num_src=2)]
    none = [make_block([0, 0, 0], [], num_src=2)] * 2
    assert torch.equal(model(x, edges), model(x[:2], none))


def test_the_wrong_number_of_blocks_is_refused(make_block) -> None:
    with pytest.raises(ConfigError, match="the batch has 1 blocks and the model 2 layers"):
        _build()(torch.randn(2, 6), [make_block([0, 0], [], num_src=2)])


@pytest.mark.reliability("C15")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "transformer"}, "model 'transformer' is not known; allowed: graphsage, gcn, gat, mlp"),
        ({"hidden": 0}, "hidden is 0; a model needs at least 1"),
        ({"heads": -1}, "heads is -1; a model needs at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0; allowed: 0 up to"),
        ({"name": "gat", "hidden": 30, "heads": 4}, "hidden is 30, which 4 heads do not divide"),
        ({"num_layers": 0}, "layers is 0; a model needs at least 1"),
    ],
)
def test_settings_that_are_not_allowed_are_named(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        _build(**settings)


def test_dropout_acts_in_training_only(make_block) -> None:
    blocks = [make_block([0, 1, 2], [1, 0], num_src=2)] * 2
    model = _build(hidden=64, dropout=0.5)
    x = torch.randn(2, 6)
    assert not torch.equal(model(x, blocks), model(x, blocks))
    model.eval()
    assert torch.equal(model(x, blocks), model(x, blocks))
