"""Seconds of an epoch of batches with features on the SSD, beside the same epoch with features in memory."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from gloader.errors import ConfigError
from gloader.lab.bench.environment import provenance
from gloader.loader import Loader
from gloader.observe.epoch_stats import hit_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.dataset import Dataset
    from gloader.observe.epoch_stats import EpochStats


def bench_epoch(
    dataset: Dataset,
    *,
    fanouts: Sequence[int] = (10, 10, 10),
    batch_size: int = 1000,
    cache_share: float = 0.1,
    epochs: int = 3,
    threads: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Run epochs of a loader whose batches nobody computes on, from the SSD and then in memory.

    The first epoch of each compiles kernels and fills the cache, and is not counted.

    Parameters
    ----------
    dataset : a prepared dataset; its training nodes are the seeds
    fanouts : neighbours sampled per node, one number per hop, the hop next to the seeds first
    batch_size : seeds per batch
    cache_share : rows in the host cache of the loader on the SSD, as a share of the nodes
    epochs : counted epochs of each
    threads : sampling threads; None: as many as the process has cores
    seed : key of the order and the sampling

    Returns
    -------
    A JSON-like dict with `seconds_per_epoch`, `ram_seconds_per_epoch`, `ratio_to_ram` (medians, and their ratio),
    what an epoch on the SSD moved, every run, the workload, the versions and the machine.

    Raises
    ------
    ConfigError
        The workload is impossible.
    """
    if epochs < 1 or not 0 < cache_share <= 1:
        raise ConfigError("needs epochs >= 1 and 0 < cache_share <= 1")
    common: dict[str, Any] = {"fanouts": fanouts, "batch_size": batch_size, "threads": threads, "seed": seed}
    cache_bytes = max(1, round(cache_share * dataset.feature_bytes))
    ssd_seconds, stats = _run(dataset, epochs, features="ssd", cache=cache_bytes, **common)
    ram_seconds, _ = _run(dataset, epochs, features="ram", **common)
    ssd, ram = statistics.median(ssd_seconds), statistics.median(ram_seconds)
    return {
        "benchmark": "epoch",
        "seconds_per_epoch": ssd,
        "ram_seconds_per_epoch": ram,
        "ratio_to_ram": ssd / ram,
        "seeds_per_second": stats[-1].seeds / ssd,
        "rows_per_second": stats[-1].rows_gathered / ssd,
        "hit_rate": hit_rate(stats),
        # A superbatch may be read in the epoch before the one that uses it: only the mean is sure to hold every byte.
        "bytes_read_per_epoch": sum(epoch.bytes_read for epoch in stats) / len(stats),
        "bytes_written_per_epoch": sum(epoch.bytes_written for epoch in stats) / len(stats),
        "runs_seconds": {"ssd": ssd_seconds, "ram": ram_seconds},
        "workload": {
            "dataset": dataset.name,
            "fanouts": list(fanouts),
            "batch_size": batch_size,
            "batches": stats[-1].batches,
            "cache_share": cache_share,
            "epochs": epochs,
            "seed": seed,
        },
        **provenance(),
    }


def _run(dataset: Dataset, epochs: int, **keywords: Any) -> tuple[list[float], list[EpochStats]]:
    """Return the seconds of every counted epoch, and the sums of every epoch."""
    seconds, stats = [], []
    # The loader is told the number of epochs: otherwise it would sample the next one while the last is measured.
    with Loader(dataset, epochs=epochs + 1, **keywords) as loader:
        for _ in range(epochs + 1):
            began = time.perf_counter()
            for _batch in loader:
                pass
            seconds.append(time.perf_counter() - began)
            stats.append(loader.stats)
    return seconds[1:], stats
