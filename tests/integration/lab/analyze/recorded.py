"""A small dataset, runs of loaders over it that are recorded, and what they did, as `gloader.lab.analyze` counts it."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gloader
from gloader.replay.recording import Recording, read_recording
from gloader.replay.work import BatchCounts, SuperbatchCounts

NUM_NODES, DIM, NUM_TRAIN = 20_000, 64, 500
ROW = 4 * DIM
EPOCHS = 2
RUN: dict[str, Any] = {
    "fanouts": [4, 3],
    "batch_size": 32,
    "memory_budget": "200MB",
    "spill_budget": "64MB",
    "epochs": EPOCHS,
    "threads": 2,
    "trace": True,
}
SSD: dict[str, Any] = {"features": "ssd", "cache": 600 * ROW, "superbatch": 4}


def write_dataset(
    path: Path, *, dtype: str = "float32", order: str = "none", dim: int = DIM
) -> gloader.Dataset:
    """Write a graph whose nodes are used very unevenly, so that caches have something to do."""
    rng = np.random.default_rng(0)
    # Shuffled, so that the order by degree is another than the one that is there.
    sources = rng.permutation(NUM_NODES)[(NUM_NODES * rng.random(100_000) ** 3).astype(np.int64)]
    return gloader.Dataset.from_numpy(
        path,
        edge_index=np.stack([sources, rng.integers(0, NUM_NODES, 100_000)]),
        features=rng.standard_normal((NUM_NODES, dim), np.float32),
        dtype=dtype,
        order=order,
        labels=rng.integers(0, 3, NUM_NODES),
        train=np.arange(NUM_TRAIN),
        valid=np.arange(NUM_TRAIN, NUM_TRAIN + 100),
        test=np.arange(NUM_TRAIN + 100, NUM_TRAIN + 200),
    )


def open_loader(dataset: gloader.Dataset, spill: Path, **settings: Any) -> gloader.Loader:
    """Return a loader that records."""
    return gloader.Loader(dataset, spill_dir=spill, **(RUN | settings))


def record(loader: Any, path: Path) -> Recording:
    """Run a loader to the end of its last epoch, and return what it recorded."""
    while loader.epoch < EPOCHS:
        for _ in loader:
            pass
    loader.write_trace(path)
    return read_recording(path)


def batches_of(recording: Recording) -> list[BatchCounts]:
    """Return what each batch did."""
    found: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    for event in recording.events:
        at = found[event.epoch, event.batch]
        if event.stage == "read":
            at |= {"misses": event.notes["misses"], "read_requests": event.requests}
            at |= {"read_bytes": event.bytes_read}
        elif event.stage == "gather":
            at |= {"hits": event.notes["hits"], "admitted": event.notes["admitted"]}
    return [BatchCounts(rows=one["hits"] + one["misses"], **one) for _, one in sorted(found.items()) if one]


def superbatches_of(recording: Recording) -> list[tuple[Any, ...]]:
    """Return what staging each superbatch did, as `staged` does of counts."""
    return [
        (
            event.batches,
            event.notes["strategy"],
            event.notes["accesses"],
            event.requests,
            event.bytes_read,
            event.bytes_written,
            event.notes["unique_rows"],
        )
        for event in recording.events
        if event.stage == "stage"
    ]


def staged(counts: Sequence[SuperbatchCounts]) -> list[tuple[Any, ...]]:
    """Return what staging each superbatch would do."""
    return [
        (
            one.num_batches,
            one.strategy,
            one.accesses,
            one.stage_requests,
            one.stage_bytes,
            one.written_bytes,
            one.unique_rows,
        )
        for one in counts
    ]


def batches(counts: Sequence[SuperbatchCounts]) -> list[BatchCounts]:
    """Return the counts of all batches."""
    return [batch for one in counts for batch in one.batches]
