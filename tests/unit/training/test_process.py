from __future__ import annotations

import pytest
import torch

from gloader.training.group import RankGroup
from gloader.training.process import all_cores, own_cores, private_randomness, seed_torch

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


def test_ranks_share_the_cores_and_one_that_works_alone_has_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gloader.training.process._num_cores", lambda: 4)
    group, cpu = RankGroup(rank=0, machines=["a", "a"]), torch.device("cpu")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # what torchrun sets
    try:
        with own_cores(group, cpu):
            assert torch.get_num_threads() == 2
            with all_cores(group, cpu):
                assert torch.get_num_threads() == 4
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1
        with own_cores(RankGroup.alone(), cpu), all_cores(RankGroup.alone(), cpu):
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
