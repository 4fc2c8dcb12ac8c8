from __future__ import annotations

import pytest
import torch

from gloader.config import ModelConfig
from gloader.models import conv
from gloader.models.build import build_model
from gloader.models.conv import gather_cost, multiplies_first

LAYER = {"num_src": 96_000, "num_dst": 11_000, "num_edges": 110_000}


def test_wide_inputs_over_few_destinations_are_aggregated_first() -> None:
    assert not multiplies_first(**LAYER, in_dim=1632, out_dim=128, input_has_grad=False)


def test_wide_inputs_over_many_edges_are_multiplied_first() -> None:
    dense = {"num_src": 20_000, "num_dst": 20_000, "num_edges": 1_000_000}
    assert multiplies_first(**dense, in_dim=1632, out_dim=128, input_has_grad=False)


def test_narrow_inputs_are_aggregated_first() -> None:
    assert not multiplies_first(**LAYER, in_dim=10, out_dim=128, input_has_grad=False)
    assert not multiplies_first(**LAYER, in_dim=10, out_dim=128, input_has_grad=True)


def test_a_narrow_output_over_many_edges_is_multiplied_first() -> None:
    last = {"num_src": 11_000, "num_dst": 1_024, "num_edges": 100_000}
    assert multiplies_first(**last, in_dim=256, out_dim=5, input_has_grad=True)


def test_every_head_is_one_more_aggregation() -> None:
    layer = {**LAYER, "in_dim": 200, "out_dim": 128, "input_has_grad": False}
    assert not multiplies_first(**layer)
    assert multiplies_first(**layer, num_heads=8)


def test_a_gpu_multiplies_sooner_and_autocast_changes_nothing_on_a_cpu() -> None:
    assert gather_cost("cuda") > gather_cost("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert gather_cost("cpu") == 15
    # A gather that costs more than the products it saves: rows are multiplied first, and gathered narrow.
    layer = {**LAYER, "in_dim": 1632, "out_dim": 128, "input_has_grad": False}
    assert not multiplies_first(**layer)
    assert multiplies_first(**layer, gather_cost=300)


@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat"])
def test_both_orders_give_the_same_result(name, make_block, monkeypatch: pytest.MonkeyPatch) -> None:
    block = make_block([0, 2, 5, 5], [3, 4, 0, 0, 2], num_src=5, src_degree=[4, 3, 0, 2, 9])
    torch.manual_seed(0)
    model = build_model(ModelConfig(name=name, hidden=8), in_dim=6, out_dim=4, num_layers=1).eval()
    x = torch.randn(5, 6)
    results = []
    for order in (True, False):
        monkeypatch.setattr(conv, "multiplies_first", lambda order=order, **_: order)
        results.append(model(x, [block]))
    torch.testing.assert_close(*results)
