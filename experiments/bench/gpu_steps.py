"""The cost of a training step on the device, and the sum over edges compared with other ways of adding up."""

from __future__ import annotations

import itertools
import time
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import torch
from gpu_findings import GpuFinding, bounded, reported
from gpu_models import NAMES
from gpu_place import DIM, NUM_CLASSES, large_graph, loader_on, sync
from gpu_sizes import seconds_of
from torch.nn.functional import embedding_bag

from gloader.config import ModelConfig
from gloader.models import build_model
from gloader.training.replica import logits_and_loss
from gloader.training.train_step import Adam

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_sizes import Clock, Sizes

    from gloader.types import DeviceBlock, ReadyBatch

FANOUTS: Final = (15, 10, 5)
BAG_SHARE = 60.0  # percent of cuSPARSE's rate
PREDICTED: Final = {"graphsage": "3 ms", "gcn": "3.5 ms", "gat": "2 to 8 ms"}


def check_steps(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Time steps of every network, with and without autocast, and count their kernels."""
    batch = _batch(sizes)
    yield reported("rows and edges of the timed batch", len(batch.x), note=f"{_num_edges(batch):,} edges")
    for name, autocast in clock.each(itertools.product(NAMES, ("none", "bf16"))):
        net, step = _step(name, autocast, batch, sizes)
        step()
        sync(sizes)
        began, repeats = time.perf_counter(), 20 if sizes.is_gpu else 1
        for _ in range(repeats):
            step()
        launched = (time.perf_counter() - began) / repeats
        sync(sizes)
        total = (time.perf_counter() - began) / repeats
        note = f"{1e3 * launched:.2f} ms of launching"
        if sizes.is_gpu:
            kernels = _kernels(step, sizes)
            longest = ", ".join(f"{kernel[:40]} {us:.0f} us" for kernel, us in kernels.most_common(3))
            note += f", {kernels.total_calls} kernels with Adam's; longest: {longest}"
        del net
        title = f"a step of {name}, {autocast if autocast != 'none' else 'float32'}"
        yield reported(title, 1e3 * total, "ms", note=note, predicted=PREDICTED[name])


def check_bags(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Add up rows over the edges of a block, as gloader does, by cuSPARSE, and as PyG does."""
    block = _batch(sizes).blocks[0]
    place, edges = sizes.place, len(block.indices)
    peer = "cuSPARSE" if sizes.is_gpu else "torch.sparse"
    for dim in clock.each((100, 256), lambda dim: f"{dim} columns"):
        x = torch.ones(block.num_src, dim, device=place)
        ones = torch.ones(edges, device=place)
        with warnings.catch_warnings(action="ignore"):  # that CSR tensors are in beta
            csr = torch.sparse_csr_tensor(
                block.indptr, block.indices, ones, size=(block.num_dst, block.num_src)
            )
        ways = {peer: lambda csr=csr, x=x: csr @ x} | _ways_to_add(block, x)
        moved = 4 * dim * (edges + block.num_dst)
        rates = {way: moved / seconds_of(call, place) / 1e9 for way, call in ways.items()}
        what = f"sum over {edges:,} edges of {dim} columns"
        for way in (peer, "gather and index_add, as PyG"):
            yield reported(f"{what}, {way}", rates[way], "GB/s")
        share = 100 * rates["embedding_bag"] / rates[peer]
        note = f"{rates['embedding_bag']:,.1f} GB/s"
        yield bounded(
            f"{what}, embedding_bag",
            share,
            f"% of {peer}",
            least=BAG_SHARE,
            note=note,
            predicted="50 to 60 %",
        )


def _ways_to_add(block: DeviceBlock, x: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    index, indptr, dst = block.indices, block.indptr, block.edge_index[1]
    out = torch.zeros(block.num_dst, x.shape[1], device=x.device)
    return {
        "gather and index_add, as PyG": lambda: out.index_add_(0, dst, x.index_select(0, index)),
        "embedding_bag": lambda: embedding_bag(index, x, indptr, mode="sum", include_last_offset=True),
    }


def _batch(sizes: Sizes) -> ReadyBatch:
    """Return a batch of three hops that stays on the device."""
    dataset = large_graph(sizes)
    with loader_on(sizes, dataset, features="ram", fanouts=FANOUTS, device_cache=0, epochs=1) as loader:
        return next(iter(loader))


def _num_edges(batch: ReadyBatch) -> int:
    return sum(len(block.indices) for block in batch.blocks)


def _step(name: Any, autocast: Any, batch: ReadyBatch, sizes: Sizes) -> tuple[Any, Any]:
    config = ModelConfig(name=name, hidden=sizes.hidden)
    net = build_model(config, in_dim=DIM, out_dim=NUM_CLASSES, num_layers=len(FANOUTS)).to(sizes.place)
    optimizer = Adam(net.parameters(), lr=1e-3, weight_decay=0.0, decoupled=False)

    def step() -> None:
        _, loss = logits_and_loss(net, batch, autocast)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return net, step


class Kernels(Counter[str]):
    """Microseconds by the names of kernels."""

    total_calls = 0


def _kernels(step: Any, sizes: Sizes) -> Kernels:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        sync(sizes)
    found = Kernels()
    for event in profile.events() or ():
        if event.device_type.name == "CUDA":
            found[event.name] += event.time_range.elapsed_us()
            found.total_calls += 1
    return found
