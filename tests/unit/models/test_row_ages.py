"""A network reads the ages of rows beside their features."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from typed_batches import full_batch, random_edges, small_schema

from gloader.config import ModelConfig
from gloader.errors import ConfigError
from gloader.models import build_hetero_model, build_model
from gloader.models.row_ages import AGE_DIM, RowAges
from gloader.types import DeviceBlock

DAY = 86_400.0


def test_ages_are_sines_and_cosines_of_days_mixed_by_a_linear() -> None:
    torch.manual_seed(0)
    encoder, x = RowAges(), torch.randn(4, 3)
    ages = torch.tensor([0.0, DAY, 1000 * DAY, float("nan")])
    rows = encoder(x, ages)
    assert torch.equal(rows[:, :3], x)
    frequencies = torch.tensor([1e-4 ** (k / 7) for k in range(AGE_DIM // 2)])
    for row, days in zip(rows[:3, 3:], (0.0, 1.0, 1000.0), strict=True):
        encoded = torch.cat([(days * frequencies).sin(), (days * frequencies).cos()])
        torch.testing.assert_close(row, encoder.lin(encoded), atol=2e-4, rtol=0)
    assert torch.equal(rows[3, 3:], encoder.lin.bias)  # a row without a time
    rows.sum().backward()
    assert encoder.lin.weight.grad.isfinite().all()


def _block(n: int) -> DeviceBlock:
    return DeviceBlock(
        indptr=torch.arange(n + 1, dtype=torch.int32),
        indices=((torch.arange(n) + 1) % n).int(),
        edge_ids=torch.arange(n),
        src_degree=torch.ones(n),
        num_src=n,
        num_dst=n,
    )


@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat", "mlp"])
def test_a_network_of_one_type_depends_on_ages_and_refuses_a_batch_without(name) -> None:
    config = ModelConfig(name=name, hidden=8, heads=2, dropout=0.0)
    model = build_model(config, in_dim=3, out_dim=2, num_layers=1, is_aged=True).eval()
    x, blocks = torch.randn(5, 3), [_block(5)]
    young, old = (model(x, blocks, torch.full((5,), days * DAY)) for days in (1.0, 40.0))
    assert not torch.allclose(young, old)
    with pytest.raises(ConfigError, match="reads the ages of rows of type 'node', and the batch has none"):
        model(x, blocks)
    assert "ages.node.lin.weight" in model.state_dict()
    assert not [key for key in model.state_dict() if "frequencies" in key]


@pytest.mark.parametrize("name", ["rsage", "rgcn", "rgat"])
def test_a_network_of_several_types_reads_the_ages_of_those_that_have_some(name) -> None:
    plain = small_schema()
    first = next(iter(plain.num_nodes))
    schema = replace(plain, aged=(first,))
    config = ModelConfig(name=name, hidden=8, heads=2, dropout=0.0)
    model = build_hetero_model(config, schema, out_dim=3, num_layers=2).eval()
    x = {name: torch.randn(count, schema.feature_dims[name]) for name, count in schema.num_nodes.items()}
    batch = full_batch(schema, random_edges(schema, seed=0), [0, 3], num_hops=2, x=x)
    count = len(batch.nodes[first])
    young, old = (
        model(replace(batch, row_age={first: torch.full((count,), days * DAY)})) for days in (1.0, 40.0)
    )
    assert not torch.allclose(young, old)
    with pytest.raises(ConfigError, match=f"the ages of rows of type '{first}'"):
        model(batch)
