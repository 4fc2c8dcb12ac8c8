"""The loader in front of a device: the same batches, the promised hit rate, and how much of loading shows."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gpu_findings import GpuFinding, bounded, compared, not_checked
from gpu_place import batch_digest, cache_bytes, forever, large_graph, loader_on, small_graph, sync

from gloader.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes

    from gloader import Dataset
    from gloader.types import ReadyBatch

COMPARED_BATCHES = 8
CACHED_SHARE = 0.1  # of the rows
POINTS = 2.0  # of hit rate that a presampled cache may miss
EXPOSED = 5.0  # percent of a step
TIMED_BATCHES = 60


def check_loader(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Load from a synthetic graph."""
    small, large = small_graph(sizes), large_graph(sizes)
    yield from _same_batches(small, sizes, clock)
    for features in clock.each(("ram", "ssd"), lambda features: f"loading that shows, {features}"):
        yield _exposed(large, sizes, features)
    for dataset in clock.each((large if sizes.is_gpu else small,), lambda _: "hit rate"):
        yield _hit_rate(dataset, sizes, clock)


def _same_batches(dataset: Dataset, sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    expected = _digests(dataset, sizes, device="cpu", features="ram", device_cache=0)
    ways = itertools.product(("ram", "ssd"), (0.0, CACHED_SHARE, 1.0))
    for features, share in clock.each(ways, lambda way: f"features in {way[0]}, {way[1]:.0%} cached"):
        cache = cache_bytes(dataset, share)
        found = _digests(dataset, sizes, features=features, device_cache=cache)
        yield compared(
            f"batches, features in {features}, device cache of {format_bytes(cache)}", found == expected
        )


def _hit_rate(dataset: Dataset, sizes: Sizes, clock: Clock) -> GpuFinding:
    """Compare the presampled cache with the rows that the next epoch wants most."""
    num_rows = int(CACHED_SHARE * dataset.num_nodes)
    size = cache_bytes(dataset, CACHED_SHARE)
    counts = np.zeros(dataset.num_nodes, dtype=np.int64)
    name = "hit rate of the presampled cache below the best static one"
    with loader_on(sizes, dataset, features="ram", device_cache=size) as loader:
        for _ in range(2):  # the second is not the epoch that was presampled
            counts[:] = 0
            for batch in loader:
                counts[batch.nodes] += 1
                if clock.left_s == 0:
                    return not_checked(name, "no time was left", must_be=f"at most {POINTS:g} points")
        rate = loader.stats.device_hits / max(loader.stats.rows_gathered, 1)
    best = np.sort(counts)[-num_rows:].sum() / counts.sum()
    return bounded(
        name,
        100 * (best - rate),
        "points",
        most=POINTS,
        predicted="1 to 2",
        note=f"{100 * rate:.1f} % of {100 * best:.1f} %, {CACHED_SHARE:.0%} of the rows",
    )


def _exposed(dataset: Dataset, sizes: Sizes, features: str) -> GpuFinding:
    """Time a computation that takes 1.3 times as long as loading, alone and behind the loader."""
    name = f"loading that shows in a step, features in {features}"
    size = cache_bytes(dataset, CACHED_SHARE)
    num = TIMED_BATCHES if sizes.is_gpu else 4
    with loader_on(sizes, dataset, features=features, device_cache=size) as loader:
        batches = forever(loader)
        for _ in range(num // 2):
            next(batches)
        load_s = _seconds_a_batch(batches, lambda _: None, num, sizes)
        once, factor = _multiplication(sizes)
        one_s = _seconds_alone(once, 20, sizes)
        repeats = max(round(1.3 * load_s / one_s), 1)

        def compute(batch: ReadyBatch | None) -> None:
            if batch is not None:
                factor[0, 0] = batch.x[0, 0]  # the step waits for its batch
            for _ in range(repeats):
                once()

        alone_s = _seconds_alone(lambda: compute(None), num, sizes)
        step_s = _seconds_a_batch(batches, compute, num, sizes)
    if not sizes.is_gpu:
        why = "there is no GPU: model and loader share the cores"
        return not_checked(name, why, must_be=f"at most {EXPOSED:g} % of the step")
    return bounded(
        name,
        100 * max(step_s - alone_s, 0) / step_s,
        "% of the step",
        most=EXPOSED,
        predicted="under 5",
        note=f"{1e3 * load_s:.2f} ms of loading, {1e3 * alone_s:.2f} ms of computing, {1e3 * step_s:.2f} ms together",
    )


def _multiplication(sizes: Sizes) -> tuple[Any, torch.Tensor]:
    side = sizes.factor_side // 2  # short beside a step
    factor, out = (torch.ones(side, side, device=sizes.place) for _ in range(2))
    return (lambda: torch.mm(factor, factor, out=out)), factor


def _seconds_alone(work: Any, count: int, sizes: Sizes) -> float:
    work()
    sync(sizes)
    started = time.perf_counter()
    for _ in range(count):
        work()
    sync(sizes)
    return (time.perf_counter() - started) / count


def _seconds_a_batch(batches: Iterator[ReadyBatch], compute: Any, count: int, sizes: Sizes) -> float:
    sync(sizes)
    started = time.perf_counter()
    for _ in range(count):
        compute(next(batches))
    sync(sizes)
    return (time.perf_counter() - started) / count


def _digests(dataset: Dataset, sizes: Sizes, **settings: Any) -> list[str]:
    with loader_on(sizes, dataset, **settings) as loader:
        return [batch_digest(batch) for batch in itertools.islice(loader, COMPARED_BATCHES)]
