from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gloader.config import ModelConfig
from gloader.errors import ConfigError
from gloader.models import build_model
from gloader.models.hop_columns import last_hop

GROUPS = (("x", 0, 3), ("in1.mean", 3, 6), ("in2.mean", 6, 8), ("label.in1", 8, 10))
WIDTH, OUT, HIDDEN = 10, 4, 6


def _build(name: str = "sign", groups=GROUPS, num_layers: int = 1, **settings):
    config = ModelConfig(name=name, **({"hidden": HIDDEN, "dropout": 0.0} | settings))
    return build_model(config, in_dim=WIDTH, out_dim=OUT, num_layers=num_layers, groups=groups)


class _Sign(nn.Module):
    """SIGN as in the paper, in plain torch."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(stop - start, HIDDEN) for _, start, stop in GROUPS)
        joined = HIDDEN * len(GROUPS)
        self.norm = nn.BatchNorm1d(joined) if batch_norm else None
        self.middle = nn.BatchNorm1d(HIDDEN) if batch_norm else None
        self.slopes = nn.ParameterList([torch.full((1,), 0.25), torch.full((1,), 0.25)])
        self.first, self.last = nn.Linear(joined, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branches = zip(self.branches, GROUPS, strict=True)
        rows = torch.cat([branch(x[:, start:stop]) for branch, (_, start, stop) in branches], dim=1)
        for norm, slope, linear in zip(
            (self.norm, self.middle), self.slopes, (self.first, self.last), strict=True
        ):
            rows = rows if norm is None else norm(rows)
            rows = linear(torch.where(rows > 0, rows, slope * rows))
        return rows


@pytest.mark.parametrize("batch_norm", [False, True])
def test_sign_is_the_papers_network(batch_norm, make_block) -> None:
    model, plain = _build(batch_norm=batch_norm), _Sign(batch_norm)
    pairs = list(zip(model.convs[0].rows.lins, plain.branches, strict=True))
    linears = [part for part in model.convs[0].rows.mlp if isinstance(part, nn.Linear)]
    pairs += list(zip(linears, (plain.first, plain.last), strict=True))
    for ours, theirs in pairs:
        theirs.load_state_dict(ours.state_dict())
    x = torch.randn(7, WIDTH)
    # Sources behind the seeds, and edges from them, change nothing.
    given = torch.cat([x, torch.randn(2, WIDTH)])
    found = model(given, [make_block([0, 2, *[2] * 6], [7, 8], num_src=9)])
    torch.testing.assert_close(found, plain(x), rtol=1e-5, atol=1e-6)
    found.square().sum().backward()
    plain(x).square().sum().backward()
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-5)


def test_sgc_is_one_linear_of_the_last_hop(make_block) -> None:
    model, x = _build("sgc"), torch.randn(2, WIDTH)
    (name, weight), (_, bias) = model.state_dict().items()
    assert (name, weight.shape) == ("convs.0.rows.lin.weight", (OUT, 2))
    found = model(x, [make_block([0, 0, 0], [], num_src=2)])
    torch.testing.assert_close(found, x[:, 6:8] @ weight.T + bias)


def test_the_last_hop_is_not_a_group_of_labels() -> None:
    assert last_hop(GROUPS) == ("in2.mean", 6, 8)
    assert last_hop(GROUPS[3:]) == ("label.in1", 8, 10)


def test_a_batch_of_one_seed_is_normalised_by_earlier_batches(make_block) -> None:
    model = _build(batch_norm=True).train()
    found = model(torch.randn(1, WIDTH), [make_block([0, 0], [], num_src=1)])
    assert torch.isfinite(found).all()


def test_rows_alone_give_what_a_batch_gives(make_block) -> None:
    model = _build(batch_norm=True).eval()
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(5, WIDTH)).astype(np.float32))
    (conv,) = model.layers[0].relations.values()
    (rows,) = conv.project(x, x.new_empty(0), slice(0, OUT))
    assert conv.is_rowwise
    assert torch.equal(rows, model(x, [make_block([0] * 6, [], num_src=5)]))


@pytest.mark.parametrize("name", ["sign", "sgc"])
def test_bfloat16_rounds_and_gradients_are_float32(name, make_block) -> None:
    torch.manual_seed(0)
    model, x = _build(name, batch_norm=name == "sign"), torch.randn(64, WIDTH)
    blocks = [make_block([0] * 65, [], num_src=64)]
    exact = model(x, blocks)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(x, blocks)
    assert 0 < (found.float() - exact).norm() / exact.norm() < 4 * 2**-8
    found.float().square().sum().backward()
    assert {weight.grad.dtype for weight in model.parameters() if weight.grad is not None} == {torch.float32}


@pytest.mark.parametrize("name", ["sign", "sgc"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": ()}, "has one layer over groups of hop columns; it got 1 layers and 0 groups"),
        ({"num_layers": 3}, "it got 3 layers and 4 groups"),
        ({"residual": True}, "--residual is for layers over edges, and .* has none; leave it out"),
    ],
)
def test_settings_that_do_not_fit_are_refused(name, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        _build(name, **settings)
