"""A training step launches few operations on a device; none waits for the device, and none has a varying result."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gloader.config import ModelConfig
from gloader.device import has_triton
from gloader.models import attention, build_model
from gloader.models.adjacency import Adjacency, Part
from gloader.models.attention import attend
from gloader.pipeline.send import to_device_block
from gloader.samplers import CscGraph, make_sampler
from gloader.training.replica import logits_and_loss
from gloader.training.train_step import Adam
from gloader.types import BatchId, ReadyBatch

# They give out memory or say how it is seen; everything else that is dispatched and is no view counts as a launch.
NO_LAUNCH = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_unsafe_view",
    "detach",
}
# They bring a number to the host, or their result has a size that depends on data.
WAITS = {
    "item",
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique",
    "_unique2",
    "unique_consecutive",
    "equal",
}
# On CUDA they add with atomics, in an order that varies, or are listed by torch.use_deterministic_algorithms.
VARIES = {
    "index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "index_reduce",
    "put_", "bincount", "histc", "median", "index_copy", "gather_backward", "embedding_dense_backward",
    "_embedding_bag_backward", "_embedding_bag_dense_backward", "index_put", "index_put_", "_index_put_impl_",
    "index_select_backward", "_segment_reduce_backward", "nll_loss2d_forward", "cumsum",
}  # fmt: skip


class Launches(TorchDispatchMode):
    """Counts what is dispatched, and refuses what waits or varies."""

    def __init__(self, *, reads: Collection[str] = ()) -> None:
        super().__init__()
        self.reads = reads
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        assert name not in VARIES, name
        if name in self.reads:
            return func(*args, **(kwargs or {}))
        assert name not in WAITS, name
        is_masked = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        assert not is_masked, "a masked index has a result of unknown size"
        assert name != "repeat_interleave" or (kwargs or {}).get("output_size") is not None
        assert name != "_to_copy" or "device" not in (kwargs or {}), "a copy between devices"
        if not func.is_view and name not in NO_LAUNCH:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def _batch(sampler: str, *, num_seeds: int = 50, fanout: int = 5) -> ReadyBatch:
    random = np.random.default_rng(0)
    degrees = random.integers(0, 25, 2000)
    num_edges = int(degrees.sum())
    graph = CscGraph(
        indptr=np.concatenate([[0], np.cumsum(degrees)]),
        indices=random.integers(0, 2000, num_edges),
        edge_weight=random.lognormal(size=num_edges),
    )
    sampled = make_sampler(sampler, graph, [fanout] * 3, 0)
    sampled = sampled.sample(BatchId(epoch=0, index=0), np.arange(num_seeds))
    degree = torch.from_numpy(graph.in_degrees(sampled.nodes)).float()
    return ReadyBatch(
        id=sampled.id,
        x=torch.ones(len(sampled.nodes), 100),
        y=torch.arange(num_seeds) % 47,
        blocks=tuple(to_device_block(block, degree, torch.device("cpu")) for block in sampled.blocks),
        nodes=sampled.nodes,
        num_seeds=num_seeds,
    )


def _count(name: str, batch: ReadyBatch, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return what a step of three layers of 128 columns dispatches, with dropout and, in attention, four heads.

    Forward, loss, backward and, as on a GPU, Adam by lists.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = ModelConfig(name=name, hidden=128, heads=4, dropout=0.5)
        model = build_model(config, in_dim=100, out_dim=47, num_layers=3)
        adam = Adam(model.parameters(), lr=0.01, weight_decay=0.0, decoupled=False)
        with Launches() as launches:
            _, loss = logits_and_loss(model, batch, "none")
            loss.backward()
    assert launches.counts.total() > 15  # the backward pass was seen too
    # As torch does by itself where the parameters are on a GPU. The number of steps stays on the host.
    monkeypatch.setattr(adam, "_update", partial(adam._update, foreach=True))
    with Launches(reads={"_local_scalar_dense"}) as updates:
        adam.step()
    return launches.counts + updates.counts


# Attention as a GPU has it only where its kernels do not run.
@pytest.mark.parametrize("sampler", ["neighbor", "labor"])
@pytest.mark.parametrize(("name", "most"), [("graphsage", 80), ("gcn", 105), ("gat", 212), ("mlp", 60)])
def test_a_step_launches_few_operations_and_none_that_waits_or_varies(
    name: str, most: int, sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = _count(name, _batch(sampler), monkeypatch)
    assert counts.total() <= most, counts


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels are compiled here, and tests/gpu runs them"
)
@pytest.mark.skipif(
    not has_triton(), reason="the kernels are not run: Triton is missing (pip install -e '.[gpu]')"
)
def test_a_step_of_attention_by_kernels_launches_fewer_still(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = importlib.import_module("gloader.models.attention_kernels")
    launched: Counter[str] = Counter()
    for name in ("_forward_kernel", "_edges_kernel", "_sources_kernel"):
        monkeypatch.setattr(kernels, name, _Counted(name, getattr(kernels, name), launched))
    monkeypatch.setattr(attention, "attention_kernels", lambda _: kernels.attend_by_kernels)
    # Small, for the interpreter: nothing that is counted depends on sizes.
    counts = _count("gat", _batch("labor", num_seeds=2, fanout=1), monkeypatch)
    assert launched == {"_forward_kernel": 3, "_edges_kernel": 3, "_sources_kernel": 3}
    assert counts.total() + launched.total() <= 95, counts


class _Counted:
    """A kernel of Triton whose launches are counted, and not what its interpreter does in torch."""

    def __init__(self, name: str, kernel: Any, launched: Counter[str]) -> None:
        self.name, self.kernel, self.launched = name, kernel, launched

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            self.launched[self.name] += 1
            with _disable_current_modes():
                self.kernel[grid](*args, **kwargs)

        return launch


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("has_loops", [True, False])
def test_the_gradients_of_attention_are_those_of_finite_differences(is_own: bool, has_loops: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    edges = Adjacency(
        torch.tensor([0, 3, 3, 4], dtype=torch.int32),
        torch.tensor([2, 2, 4, 0], dtype=torch.int32),
        num_src=5,
    )
    rows = torch.randn(5, 2, 3, dtype=torch.float64, generator=generator)[:, slice(None) if is_own else 0]
    scores = torch.randn(5, 2, 2, dtype=torch.float64, generator=generator)
    importance = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)

    def run(rows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return attend(rows, scores, edges, importance=importance, has_loops=has_loops)

    assert torch.autograd.gradcheck(run, (rows.requires_grad_(), scores.requires_grad_()))


def test_inference_with_attention_adds_up_in_one_order() -> None:
    from gloader.models.gat import GatConv

    conv = GatConv(6, 8, heads=4, concat=True)
    edges = Adjacency(torch.tensor([0, 3, 3, 4]), torch.tensor([2, 2, 4, 0]), num_src=5)
    degree, columns = torch.zeros(5), slice(0, 8)
    with torch.no_grad(), Launches():
        table = conv.project(torch.randn(5, 6), degree, columns)
        part = Part(nodes=torch.arange(3), degree=degree[:3], pieces=[edges])
        conv.propagate(table, (), part, columns)
