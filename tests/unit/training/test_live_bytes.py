from __future__ import annotations

import torch

from gloader.training.live_bytes import LiveBytes

KILO = 250  # floats of 1000 bytes


def test_the_peak_is_what_is_alive_at_once() -> None:
    with LiveBytes() as live:
        first = torch.zeros(3 * KILO)
        del first
        second = torch.zeros(2 * KILO)
        third = second + 1
        del second, third
    assert live.peak_bytes == 4000


def test_views_and_known_tensors_do_not_count() -> None:
    known = torch.ones(KILO)
    with LiveBytes([known]) as live:
        result = known.view(-1, 2).t()
        assert result.shape == (2, KILO // 2)
    assert live.peak_bytes == 0


def test_what_autograd_saves_counts_until_it_is_used() -> None:
    weight = torch.ones(KILO, requires_grad=True)
    with LiveBytes([weight]) as live:
        total = (weight.exp() * 2).exp().sum()
        held = live.peak_bytes
        total.backward()
    assert held >= 2000
    assert live.peak_bytes > held
