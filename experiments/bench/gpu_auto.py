"""``device_cache="auto"`` where the rows do not fit, and a training loop that never waits for the device."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Final

import torch
from gpu_findings import GpuFinding, not_checked, reported, required
from gpu_models import network
from gpu_place import forever, large_graph, loader_on, sync

from gloader.device import dry_step
from gloader.training.replica import logits_and_loss
from gloader.training.train_step import Adam

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes

    from gloader.types import ReadyBatch

FREE_BYTES: Final = 3 << 29  # that are left to the loader and the model: not enough for all rows
_STEPS: Final = 120


def check_auto(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Train with little memory left, and count how often the allocator had to begin again."""
    dataset = large_graph(sizes)
    hog = _take_all_but(FREE_BYTES, sizes)
    net = network("graphsage", sizes, sizes.place)
    optimizer = Adam(net.parameters(), lr=1e-3, weight_decay=0.0, decoupled=False)

    def loss_of(batch: ReadyBatch) -> torch.Tensor:
        return logits_and_loss(net, batch, "none")[1]

    for features in clock.each(("ram", "ssd")):
        name = f'device_cache="auto", features in {features}'
        trial: Any = {"device_cache": "auto", "device_dry_run": dry_step(net, loss_of)}
        with loader_on(sizes, dataset, features=features, **trial) as loader:
            lines = [line for line in loader.explain().splitlines() if line.startswith("device")]
            yield reported(f"{name}: what it took", None, note="; ".join(lines) or "nothing")
            began, num = time.perf_counter(), 0
            for batch in itertools.islice(forever(loader), _STEPS if sizes.is_gpu else 4):
                optimizer.zero_grad()
                loss_of(batch).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                num += 1
                if clock.left_s == 0:
                    break
            sync(sizes)
            note = loader.bottleneck()
            yield reported(f"{name}: a step", 1e3 * (time.perf_counter() - began) / num, "ms", note=note)
        for what, key in (("allocations tried again", "num_alloc_retries"), ("out of memory", "num_ooms")):
            title = f"{name}: {what}"
            if not sizes.is_gpu:
                yield not_checked(title, must_be="0")
                continue
            count = int(torch.cuda.memory_stats(sizes.place).get(key, 0))
            yield required(title, count == 0, "0", note=str(count), predicted="0")
    del hog


def _take_all_but(num_bytes: int, sizes: Sizes) -> torch.Tensor | None:
    if not sizes.is_gpu:
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_accumulated_memory_stats(sizes.place)
    taken = max(torch.cuda.mem_get_info(sizes.place)[0] - num_bytes, 0)
    return torch.empty(taken, dtype=torch.uint8, device=sizes.place)
