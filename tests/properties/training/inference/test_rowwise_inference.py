"""Inference of networks of hop columns: any nodes, in any order, from their own rows alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gloader.config import ModelConfig
from gloader.models import build_model
from gloader.samplers import CscGraph
from gloader.ssd_store import RamFeatures
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.training.inference.layer_plan import Extent, plan_inference
from gloader.training.inference.layerwise_inference import HeteroInference
from gloader.types import EDGE, NODE

N, F, OUT = 60, 6, 3
GROUPS = (("x", 0, 2), ("in1.mean", 2, 6))


class _Counted(RamFeatures):
    """Features that remember which rows were read."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__(rows)
        self.read: list[int] = []

    def read_into(self, rows, out, /, *, at=None):
        self.read += rows.tolist()
        return super().read_into(rows, out, at=at)


@given(
    nodes=st.lists(st.integers(0, N - 1), min_size=1, max_size=90),
    name=st.sampled_from(["sign", "sgc"]),
    budget=st.sampled_from([20_000, 1 << 20]),
    is_on_device=st.booleans(),
)
def test_logits_are_those_of_the_rows_and_no_other_row_is_read(
    nodes: list[int], name: str, budget: int, is_on_device: bool
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(len(nodes))
        config = ModelConfig(name=name, hidden=5, batch_norm=name == "sign")  # type: ignore[arg-type]
        model = build_model(config, in_dim=F, out_dim=OUT, num_layers=1, groups=GROUPS)
    x = np.random.default_rng(0).normal(size=(N, F)).astype(np.float32)
    features = _Counted(x)
    job = HeteroInference.of_one_type(
        graph=CscGraph(indptr=np.arange(N + 1), indices=np.arange(N, dtype=np.int32)),
        features=features,
        memory_budget_bytes=budget,
        device=RehearsedDevice() if is_on_device else None,
    )
    found = torch.cat([rows.clone() for _, rows in job.logits(model, np.array(nodes))])
    (conv,) = model.eval().layers[0].relations.values()
    with torch.no_grad():
        (expected,) = conv.project(torch.from_numpy(x), torch.empty(0), slice(0, OUT))
    torch.testing.assert_close(found, expected[nodes], rtol=1e-5, atol=1e-6)
    # Where all nodes are requested in order, and on a device that holds the rows, they are read as ranges.
    if not is_on_device and nodes != list(range(N)):
        assert features.read == nodes


@pytest.mark.parametrize("num_nodes", [1000, 10**9])
def test_a_plan_holds_no_table_of_all_nodes(num_nodes: int) -> None:
    model = build_model(
        ModelConfig(name="sign", hidden=8), in_dim=F, out_dim=OUT, num_layers=1, groups=GROUPS
    )
    extent = Extent(num_nodes={NODE: num_nodes}, relations=(EDGE,), outputs={NODE: 100})
    (plans,) = plan_inference(model.layers, extent, budget_bytes=100_000)
    assert plans[NODE].slabs == (slice(0, OUT),)
    assert not plans[NODE].is_on_disk
