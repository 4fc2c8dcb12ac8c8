"""Digests of batch streams, and ways of reading features that all give the same stream."""

from typing import Any

import gloader
from gloader.testing.resume import batch_digest as digest

from .conftest import DIM

ROW = DIM * 4
SAMPLING: dict[str, Any] = {"fanouts": [4, 3], "batch_size": 16}
PLACES: list[dict[str, Any]] = [
    {"features": "ram"},
    *(
        {"features": "ssd", "cache": 100 * ROW, "superbatch": size, "io_strategy": strategy}
        for strategy, size in (("packed", 3), ("staged", 2), ("direct", 4), ("auto", 5))
    ),
    {"features": "ssd", "cache": 60 * ROW, "superbatch": 4, "policy": "s3fifo", "io_strategy": "packed"},
    {"features": "ssd", "cache": 0, "superbatch": 2, "spill_budget": 0},
]


def in_memory(dataset: gloader.Dataset, epochs: int) -> list[list[str]]:
    """Return the digests of every batch of the first epochs, from features in memory and one thread."""
    with gloader.Loader(
        dataset, **SAMPLING, features="ram", threads=1, memory_budget="200MB", epochs=epochs
    ) as loader:
        return [[digest(batch) for batch in loader] for _ in range(epochs)]
