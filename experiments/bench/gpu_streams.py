"""Checks that batches keep their bits behind a slow, unawaited computation, and counts the batches held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from gpu_findings import GpuFinding, bounded, not_checked
from gpu_order import wrong_batches
from gpu_place import burn, cache_bytes, factor_of, forever, loader_on, small_graph, sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes

# Where the features of a loader are, and the share of them that the device holds.
LOADERS: Final = {
    "read in place": ("ram", 0.0),
    "cached and in place": ("ram", 0.1),
    "copied": ("ssd", 0.0),
    "cached and staged": ("ssd", 0.1),
}


def check_streams(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Check every batch of every way that rows are brought, behind a slow computation and without waiting for it."""
    for name in clock.each(LOADERS):
        yield wrong_batches(f"wrong batches of a loader, {name}", *_wrong_of_loader(sizes, name, clock))


def check_ahead(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Let the host run ahead of a slow device, and count the batches that are alive there."""
    name = "batches alive on the device at once"
    dataset, most = small_graph(sizes), 0
    factor = factor_of(sizes)
    product = torch.empty_like(factor)
    torch.mm(factor, factor, out=product)  # the workspace of cuBLAS is none of the batches'
    with loader_on(sizes, dataset, features="ram", device_cache=0) as loader:
        if sizes.is_gpu:
            sync(sizes)
            base = torch.cuda.memory_allocated(sizes.place)
            torch.cuda.reset_peak_memory_stats(sizes.place)
        for number, batch in enumerate(forever(loader)):
            if number == min(sizes.streamed, 60) or clock.left_s == 0:
                break
            most = max(most, batch.x.nbytes)
            for _ in range(20 if sizes.is_gpu else 1):
                torch.mm(factor, factor, out=product)
            batch.x.sum()
        sync(sizes)
        if not sizes.is_gpu:
            yield not_checked(name, must_be="at most 4.5")
            return
        peak = torch.cuda.max_memory_allocated(sizes.place) - base
    note = f"{peak / 1e6:,.0f} MB, of which blocks are a part"
    yield bounded(name, peak / most, "", most=4.5, note=note, predicted="3")


def _wrong_of_loader(sizes: Sizes, name: str, clock: Clock) -> tuple[int, int]:
    """Check the bits of a loader's batches against those of the CPU's, without waiting for the device."""
    dataset, batch_size, (features, share) = small_graph(sizes), sizes.batch_size // 4, LOADERS[name]
    with loader_on(
        sizes, dataset, batch_size=batch_size, device="cpu", device_cache=0, features="ram"
    ) as loader:
        wanted = _sums(loader, sizes, clock, 0)
    size = cache_bytes(dataset, share)
    with loader_on(sizes, dataset, batch_size=batch_size, features=features, device_cache=size) as loader:
        found = _sums(loader, sizes, clock, 4)
    num = min(len(found), len(wanted))
    return sum(int(a) != int(b) for a, b in zip(found, wanted, strict=False)), num


def _sums(loader: Any, sizes: Sizes, clock: Clock, times: int) -> list[torch.Tensor]:
    factor, sums = factor_of(sizes), []
    for batch in forever(loader):
        burn(factor, times)
        sums.append(batch.x.view(torch.int32).sum(dtype=torch.int64))
        del batch
        if len(sums) == sizes.streamed or clock.left_s == 0:
            return sums
    return sums
