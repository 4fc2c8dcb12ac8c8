from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gloader.config import ModelConfig
from gloader.errors import ConfigError
from gloader.models import build_model, takes_edge_features
from gloader.types import EDGE, NODE, BatchId, ReadyBatch

NAMES = ("graphsage", "gcn", "gat", "gine", "mlp")
RESIDUAL = tuple(f"residual {name}" for name in NAMES)
FE = 4


def _build(num_layers: int = 2, *, name: str = "graphsage", edge_dim: int = FE, **settings):
    is_residual = name.startswith("residual ")
    config = ModelConfig(name=name.removeprefix("residual "), residual=is_residual, **settings)
    return build_model(config, in_dim=6, out_dim=3, num_layers=num_layers, edge_dim=edge_dim)


def _told(block):
    """Return ``block`` with features of its edges."""
    generator = torch.Generator().manual_seed(0)
    return replace(block, edge_x=torch.randn(block.indices.shape[0], FE, generator=generator))


@pytest.mark.parametrize(
    ("name", "batch_norm"),
    [(name, is_normed) for name in NAMES for is_normed in (False, True)]
    + [(name, False) for name in RESIDUAL],
)
def test_logits_have_a_row_per_seed_and_a_column_per_class(name, batch_norm, make_block) -> None:
    blocks = [
        _told(make_block([0, 2, 3, 3], [3, 4, 1], num_src=5)),
        _told(make_block([0, 1, 2], [2, 0], num_src=3)),
    ]
    model = _build(name=name, hidden=8, batch_norm=batch_norm)
    logits = model(torch.randn(5, 6), blocks)
    assert logits.shape == (2, 3)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES + RESIDUAL)
def test_hops_without_edges_still_give_finite_logits(name, make_block) -> None:
    empty = _told(make_block([0, 0, 0], [], num_src=2))
    model = _build(name=name, hidden=8)
    logits = model(torch.randn(2, 6), [empty, empty])
    assert torch.isfinite(logits).all()
    logits.sum().backward()
    assert all("mlp" in name or parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES + RESIDUAL)
def test_features_of_edges_change_what_a_model_that_takes_them_says(name, make_block) -> None:
    blocks = [_told(make_block([0, 2, 3], [1, 0, 1], num_src=2))] * 2
    others = [replace(block, edge_x=2 * block.edge_x) for block in blocks]
    model, x = _build(name=name, hidden=8, dropout=0.0), torch.randn(2, 6)
    assert torch.equal(model(x, blocks), model(x, others)) != takes_edge_features(name.split()[-1])


def test_attention_works_without_features_of_edges(make_block) -> None:
    plain = make_block([0, 2, 3], [1, 0, 1], num_src=2)
    model, x = _build(name="gat", hidden=8, dropout=0.0, edge_dim=0), torch.randn(2, 6)
    assert torch.equal(model(x, [plain] * 2), model(x, [_told(plain)] * 2))
    assert not any("edge" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("name", ["gat", "gine"])
def test_a_batch_without_the_features_that_a_model_takes_is_refused(name, make_block) -> None:
    plain, model, x = (
        make_block([0, 2, 3], [1, 0, 1], num_src=2),
        _build(name=name, hidden=8),
        torch.randn(2, 6),
    )
    with pytest.raises(ConfigError, match="reads 4 features per edge, and the batch has none; use a dataset"):
        model(x, [plain] * 2)
    with pytest.raises(ConfigError, match="the batch has 5 features per edge, and the model reads 4"):
        model(x, [replace(plain, edge_x=torch.zeros(3, 5))] * 2)


def test_a_sum_of_what_edges_say_is_refused_where_they_say_nothing() -> None:
    with pytest.raises(ConfigError, match="model 'gine' needs edge features, and there are none"):
        _build(name="gine", edge_dim=0)


def test_an_mlp_sees_no_edge(make_block) -> None:
    model = _build(name="mlp", hidden=8).eval()
    x = torch.randn(5, 6)
    edges = [make_block([0, 2, 3], [3, 4, 1], num_src=5), make_block([0, 1, 2], [1, 0], num_src=2)]
    none = [make_block([0, 0, 0], [], num_src=2)] * 2
    assert torch.equal(model(x, edges), model(x[:2], none))


def test_the_wrong_number_of_blocks_is_refused(make_block) -> None:
    with pytest.raises(ConfigError, match="the batch has 1 hops and the model 2 layers"):
        _build()(torch.randn(2, 6), [make_block([0, 0], [], num_src=2)])


@pytest.mark.reliability("C15")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"name": "transformer"},
            "model 'transformer' is not known; allowed: graphsage, gcn, gat, gine, mlp, sign, sgc",
        ),
        ({"hidden": 0}, "hidden is 0; a model needs at least 1"),
        ({"heads": -1}, "heads is -1; a model needs at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0; allowed: 0 up to"),
        ({"name": "gat", "hidden": 30, "heads": 4}, "hidden is 30, which 4 heads do not divide"),
        ({"num_layers": 0}, "layers is 0; a model needs at least 1"),
        (
            {"name": "residual gat", "num_layers": 1, "hidden": 30},
            "hidden is 30, which 4 heads do not divide",
        ),
        (
            {"name": "residual gcn", "batch_norm": True},
            "--residual normalises every layer's input; leave --batch-norm out, or --residual",
        ),
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


@pytest.mark.parametrize("name", NAMES + RESIDUAL)
def test_a_network_takes_a_batch_or_its_rows_and_blocks(name, make_block) -> None:
    blocks = (
        _told(make_block([0, 2, 3, 3], [3, 4, 1], num_src=5)),
        _told(make_block([0, 1, 2], [2, 0], num_src=3)),
    )
    batch = ReadyBatch(
        id=BatchId(epoch=0, index=0),
        x=torch.randn(5, 6),
        y=torch.zeros(2, dtype=torch.int64),
        blocks=blocks,
        nodes=np.arange(5),
        num_seeds=2,
    )
    model = _build(name=name, hidden=8, batch_norm=name in NAMES).eval()
    expected = model(batch.x, blocks)
    for form in (batch, batch.typed):
        assert torch.equal(model(form), expected)
        assert torch.equal(model.embed(form)[NODE], expected)
    hidden = model.below(1)(batch.x, blocks[:1])
    rows = model.layers[1].forward({NODE: model.enter(1, NODE, hidden)}, {EDGE: blocks[1]}, {NODE: 2})[NODE]
    assert torch.equal(model.leave(rows), expected)


def test_a_hidden_layer_of_one_node_is_normalised_by_what_was_seen_before(make_block) -> None:
    """One seed without edges: torch would refuse it; the statistics stay as they are."""
    model = _build(hidden=8, batch_norm=True)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    lone = make_block([0, 0], [], num_src=1)
    assert torch.isfinite(model(torch.randn(1, 6), [lone, lone])).all()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
