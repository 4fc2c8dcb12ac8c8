"""Benchmarks for feature rows: gathered from memory, and in an epoch with features on the SSD.

To gather is to copy the rows of a batch from a table into one buffer. `bench_gather` compares rows per second with
`torch.index_select` on one thread. `bench_epoch` compares an epoch's seconds with the same epoch with features in
memory.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import ConfigError
from gloader.lab.bench.environment import provenance
from gloader.loader import HeteroLoader, Loader
from gloader.observe.epoch_stats import hit_rate
from gloader.ssd_store import RamFeatures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.dataset import Dataset
    from gloader.observe.epoch_stats import EpochStats


# Bytes gathered between two reads of the clock, so many that the clock's resolution does not count.
_BYTES_PER_ROUND = 1 << 30


def bench_gather(
    *,
    dims: Sequence[int] = (64, 100, 128, 512, 1632),
    rows: int = 100_000,
    table_bytes: int = 1 << 31,
    repeats: int = 7,
) -> dict[str, Any]:
    """Gather the same random float32 rows into the same warm buffer by both contenders, in turns.

    A ratio is the median over the repeats' ratios: a change in the machine's load affects both contenders.

    Parameters
    ----------
    dims : row widths, each with its own measurement
    rows : rows per gather
    table_bytes : source table's size; larger than the processor's caches
    repeats : rounds; the median counts

    Returns
    -------
    A JSON-like dict with `results` (for each width `row_bytes`, `rows_per_s` of both, `ratios`, `ratio`), the
    versions and the machine.

    Raises
    ------
    ConfigError
        The workload is impossible.
    """
    if not dims or min(*dims, rows, repeats) < 1 or table_bytes < 4 * max(dims):
        raise ConfigError("dims, rows and repeats must be at least 1, and table_bytes must hold a row")
    results = [_measure(dim, rows, table_bytes, repeats) for dim in dims]
    return {"benchmark": "gather", "results": results, **provenance()}


def _measure(dim: int, num_rows: int, table_bytes: int, repeats: int) -> dict[str, Any]:
    """Return the figures for rows of width ``dim``; see `bench_gather`."""
    import torch

    rng = np.random.default_rng(0)
    table = np.empty((table_bytes // (4 * dim), dim), np.float32)
    table[:] = np.arange(len(table), dtype=np.float32)[:, None]
    rows = rng.integers(len(table), size=num_rows)
    # The buffer is written once, so that no round includes a page's first touch.
    out = np.ones((num_rows, dim), np.float32)
    source, tensor = RamFeatures(table), torch.from_numpy(table)
    ids, buffer = torch.from_numpy(rows), torch.from_numpy(out)
    contenders: dict[str, Callable[[], object]] = {
        "gloader": lambda: source.read_into(rows, out),
        "index_select": lambda: torch.index_select(tensor, 0, ids, out=buffer),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = in_turns(contenders, repeats, num_calls=max(1, _BYTES_PER_ROUND // out.nbytes))
    finally:
        torch.set_num_threads(threads)
    rates = {name: num_rows / statistics.median(values) for name, values in seconds.items()}
    ratios = [theirs / ours for ours, theirs in zip(seconds["gloader"], seconds["index_select"], strict=True)]
    return {"row_bytes": 4 * dim, "rows_per_s": rates, "ratios": ratios, "ratio": statistics.median(ratios)}


def in_turns(
    contenders: dict[str, Callable[[], object]], repeats: int, *, num_calls: int
) -> dict[str, list[float]]:
    """Return each contender's seconds per call in each round. Every second round runs in reverse order.

    Parameters
    ----------
    contenders : the functions to measure, by name
    repeats : number of rounds
    num_calls : calls of each contender in a round
    """
    # Each contender's first call compiles or loads its kernel and does not count.
    for gather in contenders.values():
        gather()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(repeats):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            began = time.perf_counter()
            for _ in range(num_calls):
                contenders[name]()
            seconds[name].append((time.perf_counter() - began) / num_calls)
    return seconds


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
    """Run a loader's epochs without computation, from the SSD and then in memory.

    Each loader's first epoch compiles kernels and fills the cache, and does not count.

    Parameters
    ----------
    dataset : a prepared dataset; its training nodes are the seeds
    fanouts : neighbours sampled per node, one number per hop, the hop next to the seeds first
    batch_size : seeds per batch
    cache_share : the SSD loader's host cache rows, as a share of the nodes
    epochs : counted epochs per loader
    threads : sampling threads. None means one for each of the process's cores.
    seed : key for the order and the sampling

    Returns
    -------
    A JSON-like dict with `seconds_per_epoch`, `ram_seconds_per_epoch`, `ratio_to_ram` (medians, and their ratio),
    the traffic per SSD epoch, every run, the workload, the versions and the machine.

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
        # A superbatch may be read in the epoch before its use, so only the mean includes every byte.
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
    """Return the seconds for every counted epoch, and the statistics for every epoch."""
    seconds, stats = [], []
    # The loader has the number of epochs; otherwise it would sample the next epoch while the last is measured.
    opened = HeteroLoader if dataset.kind == "hetero" else Loader
    with opened(dataset, epochs=epochs + 1, **keywords) as loader:
        for _ in range(epochs + 1):
            began = time.perf_counter()
            for _batch in loader:
                pass
            seconds.append(time.perf_counter() - began)
            stats.append(loader.stats)
    return seconds[1:], stats
