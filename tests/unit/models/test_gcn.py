from __future__ import annotations

import numpy as np
import torch

from gloader.models.gcn import GcnConv

DEGREE = 40
WANTED = 4


def _conv(*, add_self_loops: bool = True) -> GcnConv:
    conv = GcnConv(3, 3, add_self_loops=add_self_loops)
    with torch.no_grad():
        conv.lin.weight.copy_(torch.eye(3))
    return conv


def test_the_sum_over_a_sample_estimates_the_full_sum_without_bias(make_block) -> None:
    rng = np.random.default_rng(0)
    degrees = np.concatenate([[DEGREE], rng.integers(1, 100, DEGREE)])
    x = torch.from_numpy(rng.normal(size=(1 + DEGREE, 3)).astype(np.float32))
    conv = _conv()
    everything = make_block([0, DEGREE], np.arange(1, DEGREE + 1), num_src=1 + DEGREE, src_degree=degrees)
    with torch.no_grad():
        full = conv(x, x[:1], everything)[0]
        draws = torch.stack(
            [
                conv(
                    x,
                    x[:1],
                    make_block(
                        [0, WANTED],
                        rng.choice(DEGREE, WANTED, replace=False) + 1,
                        num_src=1 + DEGREE,
                        src_degree=degrees,
                    ),
                )[0]
                for _ in range(4000)
            ]
        )
    error = (draws.mean(dim=0) - full) / (draws.std(dim=0) / len(draws) ** 0.5)
    assert error.abs().max() < 4
    unscaled = (draws.mean(dim=0) - x[0] / (DEGREE + 1)) * WANTED / DEGREE + x[0] / (DEGREE + 1)
    assert ((unscaled - full) / (draws.std(dim=0) / len(draws) ** 0.5)).abs().max() > 10


def test_the_self_loop_is_exact_however_few_edges_were_sampled(make_block) -> None:
    block = make_block([0, 0], [], num_src=1, src_degree=[3])
    x = torch.tensor([[4.0, 8.0, 12.0]])
    torch.testing.assert_close(_conv()(x, x, block), x / 4)


def test_edges_weigh_the_inverse_root_of_both_degrees(make_block) -> None:
    block = make_block([0, 1], [1], num_src=2, src_degree=[1, 7])
    x = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    torch.testing.assert_close(_conv()(x, x[:1], block), x[1:] / (2 * 8) ** 0.5)


def test_stored_self_loops_are_not_added_again(make_block) -> None:
    block = make_block([0, 2], [0, 1], num_src=2, src_degree=[2, 8])
    x = torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])
    expected = x[:1] / 2 + x[1:] / (2 * 8) ** 0.5
    torch.testing.assert_close(_conv(add_self_loops=False)(x, x[:1], block), expected)


def test_an_isolated_node_without_self_loop_gets_zeros(make_block) -> None:
    block = make_block([0, 0], [], num_src=1, src_degree=[0])
    assert _conv(add_self_loops=False)(torch.ones(1, 3), torch.ones(1, 3), block).abs().max() == 0
