"""A small graph whose edges are swept, loaders over it, and the batches of one in memory."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import gloader
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.testing.resume import batch_digest as digest

NODES, DIM = 700, 6
UNWANTED = 600  # from this node on, in graphs that have them, no list is ever drawn from
SAMPLING: dict[str, Any] = {"fanouts": [4, 3, 2], "batch_size": 16, "memory_budget": "200MB"}
IN_MEMORY: dict[str, Any] = {"features": "ram"}
PACKED: dict[str, Any] = {"features": "ssd", "cache": 2400, "superbatch": 3, "io_strategy": "packed"}
PLACES = {"memory": IN_MEMORY, "packed": PACKED, "direct": {"features": "ssd", "cache": 0, "superbatch": 8}}


def write_graph(path: Path, *, num_unwanted: int = 0, seed: int = 1, overwrite: bool = False) -> Path:
    """Write a graph of a hub, isolated nodes, parallel edges and self loops; its last page of edges is not full.

    Parameters
    ----------
    path : where
    num_unwanted : edges of nodes that are neither seeds nor anybody's neighbours, the last ones of the file
    seed : of its edges, features and weights
    overwrite : whether it replaces another
    """
    random = np.random.default_rng(seed)
    wanted = UNWANTED if num_unwanted else NODES
    sources = random.integers(0, wanted, 9_001 + num_unwanted)
    targets = np.where(random.random(9_001) < 0.4, 5, random.integers(0, min(wanted, NODES - 50), 9_001))
    targets = np.concatenate([targets, random.integers(UNWANTED, NODES, num_unwanted)])
    gloader.Dataset.from_numpy(
        path,
        features=random.standard_normal((NODES, DIM)).astype(np.float32),
        labels=np.arange(NODES) % 3,
        edge_index=np.stack([sources, targets]),
        edge_weight=(random.random(len(sources)) * (random.random(len(sources)) > 0.2)).astype(np.float32),
        train=np.arange(0, wanted, 3),
        valid=np.arange(1, 60, 3),
        test=np.arange(2, NODES, 3),
        overwrite=overwrite,
    )
    return path


@contextmanager
def loader_of(path: Path, *, os_io: OsIO = REAL_OS, **settings: Any) -> Iterator[gloader.Loader]:
    """Yield a loader."""
    with gloader.Loader(gloader.Dataset.open(path, os_io=os_io), **(SAMPLING | settings)) as loader:
        yield loader


@contextmanager
def sweeping(
    path: Path, spill: Path, num_batches: int, *, way: str | None = None, **settings: Any
) -> Iterator[gloader.Loader]:
    """Yield a loader whose passes serve so many batches, and read in this way."""
    # A budget, as temporary files may be in memory.
    place = {"topology": "sweep", "spill_dir": spill, "spill_budget": "64MB"}
    with loader_of(path, **(place | settings)) as loader:
        tier = loader._held.tier
        go_by(tier.sweeps.passes, way)
        sweeps = dataclasses.replace(tier.sweeps, num_batches=num_batches)
        loader._held.tier = dataclasses.replace(tier, sweeps=sweeps)
        yield loader


def go_by(passes: Any, way: str | None) -> None:
    """Make every further pass read in this way; None leaves it to the rates."""
    passes._settings = dataclasses.replace(passes._settings, way=way)


def epochs(loader: gloader.Loader, count: int) -> list[list[str]]:
    """Return the digests of the batches of each epoch."""
    return [[digest(batch) for batch in loader] for _ in range(count)]


def epochs_in_memory(path: Path, count: int, **settings: Any) -> list[list[str]]:
    """Return the same of a loader that has all in memory."""
    with loader_of(path, topology="ram", **(settings | IN_MEMORY)) as loader:
        return epochs(loader, count)
