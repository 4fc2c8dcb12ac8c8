"""Random small runs over swept edges, left at random places: every one of them comes to its end, in time."""

import random
import threading
from pathlib import Path
from typing import Any

import pytest

import gloader

from .swept_edges import PLACES, sweeping, write_graph

LIMIT_S = 30.0  # behind which nothing moves any more
RUNS = 2 * 10**3


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("swept") / "graph")


def settings_of(draw: random.Random) -> dict[str, Any]:
    """Draw a loader: what passes serve and what is planned at once, threads, ranks, epochs and how batches are made."""
    world = draw.choice((1, 1, 2, 3))
    place = dict(PLACES[draw.choice(tuple(PLACES))])
    if "superbatch" in place:
        place["superbatch"] = draw.choice((1, 2, 3, 8))
    return place | {
        "num_batches": draw.choice((1, 2, 3, 5, 8, 64)),
        "way": draw.choice((None, "direct", "merged", "full")),
        "sampler": draw.choice(("neighbor", "neighbor:replace=true", "weighted", "labor")),
        "fanouts": draw.choice(([2], [3, 2], [2, 2, 2], [3, 0, 1], [-1, 1])),
        "batch_size": draw.choice((9, 20, 50, 78)),
        "threads": draw.randint(1, 8),
        "epochs": draw.choice((1, 2, 3, None)),
        "world_size": world,
        "rank": draw.randrange(world),
    }


def run(path: Path, spill: Path, seed: int) -> None:
    """Take epochs or parts of them, and check that each batch is the next one."""
    draw = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    settings = settings_of(draw)
    with sweeping(path, spill, **settings) as loader:
        ended = threading.Event()
        watch = threading.Timer(LIMIT_S, lambda: (ended.set(), loader.close()))
        watch.start()
        try:
            for _ in range(settings["epochs"] or 3):
                take(loader, draw.choice((len(loader), len(loader), draw.randint(0, len(loader)))))
                if draw.random() < 0.1:
                    loader.load_state_dict(
                        loader.state_dict()
                        | {"next": [draw.randrange(settings["epochs"] or 9), draw.randrange(len(loader))]}
                    )
        finally:
            watch.cancel()
            watch.join()
    assert not ended.is_set(), f"seed {seed} stood still: {settings}"
    assert list(spill.iterdir()) == []


def take(loader: gloader.Loader, count: int) -> None:
    """Take so many batches of an epoch, or what is left of it."""
    stream = iter(loader)
    begin, epoch = loader.state_dict()["next"][1], loader.epoch
    found = [(batch.id.epoch, batch.id.index) for _, batch in zip(range(count), stream, strict=False)]
    assert found == [(epoch, index) for index in range(begin, min(begin + count, len(loader)))]


@pytest.mark.reliability("K11")
def test_dozens_of_random_runs_end(path: Path, tmp_path: Path) -> None:
    for seed in range(12):
        run(path, tmp_path, seed)


@pytest.mark.long
@pytest.mark.reliability("K11")
@pytest.mark.parametrize("block", range(RUNS // 100))
def test_thousands_of_random_runs_end(path: Path, tmp_path: Path, block: int) -> None:
    for seed in range(1000 + 100 * block, 1000 + 100 * (block + 1)):
        run(path, tmp_path, seed)
