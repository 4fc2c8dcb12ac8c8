"""Torch's vector mathematics: one thread makes the first call, so that no run begins with 12-bit square roots."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gloader
from gloader.config import ModelConfig
from gloader.models import build_model
from gloader.training.inference.layerwise_inference import HeteroInference

_NUM_PROCESSES = 80  # about one of 16 has other roots where several threads make the first call
_FIRST_ROOTS = """
import torch
from gloader.device.seam import settle_vector_math
torch.set_num_threads(4)
settle_vector_math()
values = torch.rand(32, 128) + 0.1  # two threads' worth
first, again = values.sqrt(), values.sqrt()
print(int((first != again).sum()))
"""


class _Roots(TorchDispatchMode):
    """Notes how many elements each square root was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.sqrt.default:
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def ring(tmp_path: Path) -> gloader.Dataset:
    """Return 40 nodes in a ring, with eight features."""
    ids = np.arange(40)
    return gloader.Dataset.from_numpy(
        tmp_path / "ring",
        edge_index=np.stack([ids, np.roll(ids, 1)]),
        features=np.ones((40, 8), np.float32),
        labels=ids % 2,
    )


def test_a_loader_takes_the_first_root_of_one_element(ring: gloader.Dataset) -> None:
    roots = _Roots()
    with roots, gloader.Loader(ring, fanouts=[2], batch_size=16, memory_budget="200MB"):
        pass
    assert roots.sizes == [1]


def test_inference_takes_the_first_root_of_one_element(ring: gloader.Dataset) -> None:
    model = build_model(ModelConfig(name="gat", hidden=8), in_dim=8, out_dim=2, num_layers=2)
    roots = _Roots()
    with roots, ring.open_features() as features:
        job = HeteroInference.of_one_type(
            graph=ring.load_graph(), features=features, memory_budget_bytes=1 << 20
        )
        assert sum(len(logits) for _, logits in job.logits(model, np.arange(40))) == 40
    assert roots.sizes == [1]


@pytest.mark.long
def test_the_first_roots_of_a_process_are_those_of_every_later_call() -> None:
    checkout = Path(__file__).parents[2]
    said = [
        subprocess.run(
            [sys.executable, "-c", _FIRST_ROOTS],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(checkout)},
        ).stdout.strip()
        for _ in range(_NUM_PROCESSES)
    ]
    assert said == ["0"] * _NUM_PROCESSES
