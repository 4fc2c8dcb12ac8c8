from __future__ import annotations

import pytest
import torch

from gloader.training.seeding import private_randomness, seed_torch

CPU = torch.device("cpu")


@pytest.mark.reliability("F7")
def test_the_block_leaves_the_global_generator_as_it_was() -> None:
    before = torch.random.get_rng_state()
    with private_randomness(CPU):
        seed_torch(1, 2, device=CPU)
        torch.rand(10)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.reliability("F7")
def test_draws_depend_on_the_address_alone() -> None:
    with private_randomness(CPU):
        seed_torch(0, 1, 2, device=CPU)
        first = torch.rand(4)
        torch.rand(1000)
        seed_torch(0, 1, 2, device=CPU)
        again = torch.rand(4)
        others = []
        for address in ((0, 2, 1), (1, 1, 2), (0, 12)):
            seed_torch(*address, device=CPU)
            others.append(torch.rand(4))
    assert torch.equal(first, again)
    assert not any(torch.equal(first, other) for other in others)
