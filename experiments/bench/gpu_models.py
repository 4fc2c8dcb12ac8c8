"""The networks on the device against the same networks on the CPU: logits and gradients, autocast, compilation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from gpu_findings import GpuFinding, bounded, required
from gpu_place import DIM, NUM_CLASSES, cache_bytes, loader_on, small_graph

from gloader.config import ModelConfig
from gloader.models import build_model
from gloader.training.replica import logits_and_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes

    from gloader.config import Autocast
    from gloader.types import ReadyBatch

SETTINGS: Final[dict[str, Any]] = {"features": "ram", "batch_size": 64, "fanouts": (8, 4)}
NAMES: Final = ("graphsage", "gcn", "gat")
# Relative distances of logits and gradients to those of float32 on the CPU.
FLOAT32, BFLOAT16 = (1e-5, 1e-4), (2e-2, 1e-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a network makes of a batch."""

    logits: torch.Tensor
    gradients: torch.Tensor

    def distances(self, other: Result) -> tuple[float, float]:
        """Return the relative distances of logits and gradients."""
        pairs = ((self.logits, other.logits), (self.gradients, other.gradients))
        found = [float((a - b).norm() / b.norm()) for a, b in pairs]
        return found[0], found[1]

    def same_bits(self, other: Result) -> bool:
        """Return whether all bits are the same."""
        return torch.equal(self.logits, other.logits) and torch.equal(self.gradients, other.gradients)


def network(name: Any, sizes: Sizes, place: torch.device, *, hidden: int | None = None) -> Any:
    """Return a network of two layers with the same weights wherever it is.

    Parameters
    ----------
    name : of the network
    sizes : says how wide it is, unless ``hidden`` does
    place : where it computes
    hidden : width; None: that of ``sizes``
    """
    torch.manual_seed(0)
    config = ModelConfig(name=name, hidden=hidden or sizes.hidden, dropout=0.0)
    return build_model(config, in_dim=DIM, out_dim=NUM_CLASSES, num_layers=2).to(place)


def check_models(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Compute one batch here and there."""
    dataset, cpu = small_graph(sizes), torch.device("cpu")
    with (
        loader_on(sizes, dataset, device="cpu", device_cache=0, **SETTINGS) as host,
        loader_on(sizes, dataset, device_cache=cache_bytes(dataset, 0.1), **SETTINGS) as device,
    ):
        on_host, on_device = next(iter(host)), next(iter(device))
        for name in clock.each(NAMES):
            net = network(name, sizes, cpu, hidden=64)
            exact = _result(net, on_host, "none")
            net = network(name, sizes, sizes.place, hidden=64)
            yield from _far(f"{name}, float32", _result(net, on_device, "none"), exact, FLOAT32)
            yield from _far(f"{name}, autocast bf16", _result(net, on_device, "bf16"), exact, BFLOAT16)
            twice = _result(net, on_device, "none").same_bits(_result(net, on_device, "none"))
            yield required(f"{name}: two runs", twice, "the same bits", note=f"the same bits: {twice}")


def check_compiled(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Compute one batch on the device by compiled networks."""
    dataset, cpu = small_graph(sizes), torch.device("cpu")
    with (
        loader_on(sizes, dataset, device="cpu", device_cache=0, **SETTINGS) as host,
        loader_on(sizes, dataset, device_cache=0, **SETTINGS) as device,
    ):
        on_host, on_device = next(iter(host)), next(iter(device))
        for name in clock.each(NAMES):
            exact = _result(network(name, sizes, cpu, hidden=64), on_host, "none")
            yield from _compiled(name, sizes, on_device, exact)


def _result(net: Any, batch: ReadyBatch, autocast: Autocast, compiled: Any = None) -> Result:
    net.zero_grad()
    logits, loss = logits_and_loss(net if compiled is None else compiled, batch, autocast)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = torch.cat([parameter.grad.flatten() for parameter in net.parameters()])
    return Result(logits=logits.detach().cpu().double(), gradients=gradients.cpu().double())


def _far(name: str, found: Result, exact: Result, most: tuple[float, float]) -> Iterator[GpuFinding]:
    """Yield the distances of a result to that of float32 on the CPU."""
    for what, distance, bound in zip(("logits", "gradients"), found.distances(exact), most, strict=True):
        title = f"{name}: {what}, relative distance to float32 on the CPU"
        yield bounded(title, distance, "", most=bound, is_right=False, predicted="so")


def _compiled(name: str, sizes: Sizes, batch: ReadyBatch, exact: Result) -> Iterator[GpuFinding]:
    """Compile as training does; without a GPU only as far as that needs no C++ compiler."""
    net = network(name, sizes, sizes.place, hidden=64)
    backend = "inductor" if sizes.is_gpu else "eager"
    compiled = torch.compile(net, dynamic=True, backend=backend)
    try:
        found = _result(net, batch, "none", compiled)
    except Exception as error:  # noqa: BLE001 - of the compiler, which has many
        note = f"{type(error).__name__}: {str(error).splitlines()[0]}"[:300]
        yield required(f"{name}, torch.compile", False, "a step", note=note)
        return
    yield from _far(f"{name}, torch.compile ({backend})", found, exact, FLOAT32)
